"""RouteGroups on a cluster, for the traffic agent of one node.

groups       RouteGroups, Services and EndpointSlices become the agent's groups
follow       keeps copies of them, and tells the agent when its groups change
status       what became of each RouteGroup: conditions, an entry for each node, Events
"""
