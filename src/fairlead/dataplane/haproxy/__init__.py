"""The HAProxy dataplane: its own configuration and process, driven through the runtime socket.

Everything is judged inside HAProxy 2.6, the heartbeat too: see `docs/operate/dataplane-haproxy.md`.
"""

from fairlead.dataplane.haproxy.dataplane import HaproxyDataplane

__all__ = ["HaproxyDataplane"]
