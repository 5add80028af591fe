"""Whether the virtual addresses of groups can be taken, said before a proxy fails to."""

import socket
from collections.abc import Collection, Sequence

from fairlead.ports.dataplane import RouteGroup
from fairlead.ports.faults import PermanentFault

Door = tuple[str, int]
"""A virtual address and its port."""


def check_free(groups: Sequence[RouteGroup], ours: Collection[Door]) -> None:
    """Refuse groups whose address somebody else has, or nobody here; `ours` we hold already."""
    for index, group in enumerate(groups):
        if (group.vip, group.port) in ours:
            continue
        family = socket.AF_INET6 if ":" in group.vip else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((group.vip, group.port))
                probe.listen()  # a listener elsewhere is found only now
            except OSError as error:
                raise PermanentFault(
                    f"groups[{index}].vip: {group.vip} port {group.port}: {error.strerror}"
                ) from error
