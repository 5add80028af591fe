"""Kubernetes: the programs, clusters, and what runs on them."""
