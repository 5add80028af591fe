"""Where adapters meet engines: the only package that knows both sides of the ports.

A module for each thing that runs, so that none pays for what another needs: the node agent for the
web stack, a command that archives for either.
"""
