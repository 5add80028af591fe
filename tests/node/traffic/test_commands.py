"""The operator's word: durable, checked, obeyed from the next tick on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead.node.state import StateDirectory
from fairlead.node.traffic.commands import COMMANDS, CommandFile, change_command, read_commands
from fairlead.ports.faults import PermanentFault


def test_an_order_is_given_and_taken_back(tmp_path: Path) -> None:
    """Once each: the second time changes nothing."""
    directory = StateDirectory(tmp_path / "state")
    book = CommandFile(directory)
    assert book() == {}
    assert change_command(directory, "web", "b1", "drain")
    assert not change_command(directory, "web", "b1", "drain")
    assert book() == {"web": {"b1": "drain"}}
    assert change_command(directory, "web", "b1", "isolate")
    assert book() == {"web": {"b1": "isolate"}}
    assert change_command(directory, "web", "b1", None)
    assert not change_command(directory, "web", "b1", None)
    assert book() == {}


def test_orders_survive_everybody(tmp_path: Path) -> None:
    """A new book reads what an old one read."""
    directory = StateDirectory(tmp_path)
    change_command(directory, "web", "b1", "isolate")
    assert CommandFile(StateDirectory(tmp_path))() == {"web": {"b1": "isolate"}}


def test_two_operators_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each order is in the file, whoever wrote last."""
    directory = StateDirectory(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: change_command(directory, "web", f"b{n}", "drain"), range(40)))
    assert len(read_commands(directory)["web"]) == 40


@pytest.mark.parametrize("text", ["{", "[]", '{"web": {"b1": "perhaps"}}', '{"web": ["b1"]}'])
def test_a_damaged_file_lifts_nothing(tmp_path: Path, text: str) -> None:
    """The last orders stand, and the problem is said."""
    directory = StateDirectory(tmp_path)
    change_command(directory, "web", "b1", "isolate")
    book = CommandFile(directory)
    book()
    (tmp_path / COMMANDS).write_text(text)
    assert book() == {"web": {"b1": "isolate"}}
    assert "damaged" in book.problem
    with pytest.raises(PermanentFault, match="damaged"):
        read_commands(directory)
