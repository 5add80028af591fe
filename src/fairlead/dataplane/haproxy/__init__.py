"""The HAProxy dataplanes: one with its own configuration and process, driven through the runtime
socket, and one for a HAProxy that its operator runs.

In the first everything is judged inside HAProxy 2.6, the heartbeat too:
see `docs/operate/dataplane-haproxy.md`. For the second see `docs/operate/running-proxy.md`.
"""

from fairlead.dataplane.haproxy.dataplane import HaproxyDataplane
from fairlead.dataplane.haproxy.running import RunningHaproxyDataplane, discover

__all__ = ["HaproxyDataplane", "RunningHaproxyDataplane", "discover"]
