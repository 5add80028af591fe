"""The HAProxy dataplane: its own configuration and process, driven through the runtime socket.

    dataplane = HaproxyDataplane(Path("/run/fairlead/haproxy"))

Everything is judged inside HAProxy 2.6, the heartbeat too: see `docs/operate/dataplane-haproxy.md`.
`config` holds the rules and the one value per group that a flip replaces.
"""

from fairlead.dataplane.haproxy.dataplane import HaproxyDataplane

__all__ = ["HaproxyDataplane"]
