"""Tests of the HTTP API through a real server."""
