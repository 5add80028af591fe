"""The Envoy dataplane: an Envoy that reads its tables from files, and a dead-man process beside it
that judges the heartbeat for it: see `docs/operate/dataplane-envoy.md`.
"""

from fairlead.dataplane.envoy.dataplane import EnvoyDataplane

__all__ = ["EnvoyDataplane"]
