"""`fairlead kube`: Kubernetes programs and clusters."""
