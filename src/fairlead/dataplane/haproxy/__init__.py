"""The HAProxy plane: its own configuration, its own process, driven through the runtime socket.

    plane = HaproxyPlane(Path("/run/fairlead/haproxy"))

Everything is judged inside HAProxy 2.6, the heartbeat too: `docs/operate/dataplane-haproxy.md` says
how. `words` is the one value per group that a flip replaces, `config` the rules that read it.
"""

from fairlead.dataplane.haproxy.plane import HaproxyPlane

__all__ = ["HaproxyPlane"]
