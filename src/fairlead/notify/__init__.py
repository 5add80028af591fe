"""Webhooks: signed notices to receivers outside. README.md says how a receiver checks them."""
