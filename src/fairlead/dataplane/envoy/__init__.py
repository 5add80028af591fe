"""The Envoy plane: a real Envoy that reads its tables from files, and a dead-man process beside it.

    plane = EnvoyPlane(Path("/run/fairlead/envoy"))

Envoy cannot judge a heartbeat, so `deadman` does; `docs/operate/dataplane-envoy.md` says how. A
flip is the rename of one route file (`routes`); `documents` holds everything else Envoy is told.
"""

from fairlead.dataplane.envoy.plane import EnvoyPlane

__all__ = ["EnvoyPlane"]
