"""Orders that come with the control plane's reply."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.node.state import StateDirectory
from fairlead.node.traffic.commands import ORDERS, ControlOrders
from fairlead.ports.faults import PermanentFault


def test_orders_outlive_the_agent_and_an_absent_control_plane(tmp_path: Path) -> None:
    """A reply replaces the orders of the groups that it names, and no others."""
    orders = ControlOrders(StateDirectory(tmp_path / "state"))
    assert orders() == {}
    orders.take({"orders": {"web": {"a": "isolate"}, "api": {"x": "drain"}}})
    orders.take({"orders": {"web": {}}})
    orders.take({"orders": {}})
    assert orders() == {"api": {"x": "drain"}}
    assert ControlOrders(StateDirectory(tmp_path / "state"))() == {"api": {"x": "drain"}}


@pytest.mark.parametrize(
    "orders", [None, [], {"web": None}, {"web": {"a": "explode"}}, {"web": {"a": None}}]
)
def test_what_are_no_orders_changes_nothing(tmp_path: Path, orders: Any) -> None:
    kept = ControlOrders(StateDirectory(tmp_path))
    kept.take({"orders": {"web": {"a": "isolate"}}})
    with pytest.raises(ValueError, match="must be isolate or drain"):
        kept.take({"orders": orders})
    assert kept() == {"web": {"a": "isolate"}}


def test_a_damaged_file_brings_no_backend_back(tmp_path: Path) -> None:
    (tmp_path / ORDERS).write_text('{"web": {"a": "explode"}}')
    with pytest.raises(PermanentFault, match="is damaged"):
        ControlOrders(StateDirectory(tmp_path))
