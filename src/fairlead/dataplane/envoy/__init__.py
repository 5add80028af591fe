"""The Envoy dataplanes: an Envoy that reads its tables from files, with a dead-man process that
judges the heartbeat for it (`docs/operate/dataplane-envoy.md`), and one for an Envoy that its
operator runs (`docs/operate/running-proxy.md`).
"""

from fairlead.dataplane.envoy.dataplane import EnvoyDataplane
from fairlead.dataplane.envoy.running import RunningEnvoyDataplane

__all__ = ["EnvoyDataplane", "RunningEnvoyDataplane"]
