"""Simulations."""
