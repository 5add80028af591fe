"""Tests: tests/core mirrors src, tests/golden holds byte-exact decisions, tests/soak the counts."""
