"""The HTTP API of the control plane: a typed table of endpoints, authentication, the server."""
