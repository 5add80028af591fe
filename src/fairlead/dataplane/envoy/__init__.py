"""The Envoy dataplane: an Envoy that reads its tables from files, and a dead-man process beside it.

    dataplane = EnvoyDataplane(Path("/run/fairlead/envoy"))

Envoy cannot judge a heartbeat, so `deadman` does: see `docs/operate/dataplane-envoy.md`. A flip is
the rename of one route file; `documents` holds its configuration.
"""

from fairlead.dataplane.envoy.dataplane import EnvoyDataplane

__all__ = ["EnvoyDataplane"]
