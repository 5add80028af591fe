"""The virtual world."""
