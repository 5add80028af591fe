"""The traffic agent's adapters and the agent itself, on loopback."""
