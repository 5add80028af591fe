"""CPU on Kubernetes.

pods         what a Pod document says about CPU: limits, requests, what is in force
roster       the pods of one node, for the node agent
publish      the node agent's actuator: one PodAllocation per pod
resizer      the controller's part: PodAllocations become resizes
restore      the user's own limits put back
"""
