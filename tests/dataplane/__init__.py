"""Planes: what every one of them promises, and what each does in its own way."""
