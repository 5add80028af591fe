"""The standalone verifiers: each against the other, the vectors, and every kind of lie."""
