"""Kubernetes: CRDs, the controller, pods as the executor, the development cluster."""
