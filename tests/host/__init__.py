"""What the host package promises to every adapter."""
