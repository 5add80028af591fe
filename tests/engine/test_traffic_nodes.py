"""Which machines count for a group: all that are seen, or those of its backends only."""

import pytest

from fairlead.core.traffic.sighting import NodeReading
from fairlead.engine.traffic import Group, GroupGovernor, GroupRules
from fairlead.engine.traffic.loop import _counting
from fairlead.ports.dataplane import Backend, Proto, RouteGroup

ROUTE = RouteGroup("web", "10.0.0.1", 80, Proto.TCP, (Backend("a", "10.0.0.2", 80),))
SEEN = (NodeReading("n1"), NodeReading("n2"))


@pytest.mark.parametrize(
    ("own", "counted"), [(False, ["n1", "n2"]), (True, ["n2"])], ids=["all", "own"]
)
def test_a_machine_without_a_backend_of_the_group_may_be_left_out(
    own: bool, counted: list[str]
) -> None:
    """On a cluster the agent's machine has the clients; the backends may be elsewhere."""
    group = Group(ROUTE, GroupGovernor("web", GroupRules()), {"a": "n2"}, own)
    assert [node.id for node in _counting(SEEN, group) or ()] == counted
    assert _counting(None, group) is None
