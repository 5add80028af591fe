"""The vectorised path: bit-equal to core, or honestly handed back to core."""
