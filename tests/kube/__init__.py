"""The controller and the development cluster, on a real API server."""
