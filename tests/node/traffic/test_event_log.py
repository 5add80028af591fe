"""Transitions and anchors in the ledger: in order, once, and never waited for."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.ledger.place import open_file
from fairlead.node.traffic.event_log import LedgerEventLog
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.ledger import Draft
from fairlead.ports.recorder import RecordHead
from fairlead.ports.traffic import Transition
from tests.node.traffic.servers import until


def change(number: int, record: RecordHead | None = None) -> Transition:
    return Transition(
        time_ms=number,
        group="web",
        what="mode",
        before="normal",
        after="soft",
        reasons=("conductance",),
        record=record or RecordHead(number, f"{number:064x}"),
    )


def test_transitions_and_anchors_are_entries(tmp_path: Path) -> None:
    """With the tick that led to them; the same one twice is one entry."""
    path = tmp_path / "ledger.db"
    chronicle = LedgerEventLog(open_file(path), agent="n1")
    chronicle.transition(change(1))
    chronicle.transition(change(1))
    chronicle.transition(change(2))
    chronicle.anchor(3, {"web": RecordHead(7, "ab" * 32)})
    chronicle.close()
    with open_file(path) as ledger:
        moves = ledger.entries(kind="traffic.transition")
        anchors = ledger.entries(kind="traffic.anchor")
        assert ledger.verify().ok
    assert [entry.body["record"]["seq"] for entry in moves] == [1, 2]
    assert moves[0].body["after"] == "soft"
    assert moves[0].reasons == ("conductance",)
    assert anchors[0].body["heads"] == {"web": {"seq": 7, "hash": "ab" * 32}}


class Reluctant:
    """A ledger that fails as it is told."""

    def __init__(self, *faults: Exception) -> None:
        self.faults, self.kept, self.gate = list(faults), [], threading.Event()
        self.gate.set()

    kept: list[str]

    def append(self, drafts: Sequence[Draft], **_: Any) -> list[Any]:
        self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.kept += [draft.kind for draft in drafts]
        return []

    def close(self) -> None:
        """Nothing is open."""


def test_a_ledger_that_is_away_is_waited_for() -> None:
    """And nothing is lost meanwhile."""
    said: list[str] = []
    ledger = Reluctant(TemporaryFault("away", retry_after_ms=1))
    chronicle = LedgerEventLog(ledger, agent="n1", fault=said.append)  # type: ignore[arg-type]
    chronicle.transition(change(1))
    until(lambda: ledger.kept, "kept")
    assert said == ["traffic.transition waits: away"]
    chronicle.close()


def test_what_can_never_be_written_is_said_and_counted() -> None:
    """The next one still goes in."""
    said: list[str] = []
    ledger = Reluctant(PermanentFault("no room"))
    chronicle = LedgerEventLog(ledger, agent="n1", fault=said.append)  # type: ignore[arg-type]
    chronicle.transition(change(1))
    chronicle.anchor(2, {})
    until(lambda: ledger.kept, "kept")
    chronicle.close()
    assert ledger.kept == ["traffic.anchor"]
    assert chronicle.dropped == 1
    assert said == ["traffic.transition is lost: no room"]


def test_a_tick_never_waits_for_the_ledger() -> None:
    """With ten thousand waiting the next one is dropped, aloud, at once."""
    said: list[str] = []
    ledger = Reluctant()
    ledger.gate.clear()
    chronicle = LedgerEventLog(ledger, agent="n1", fault=said.append)  # type: ignore[arg-type]
    for number in range(10_002):
        chronicle.anchor(number, {})
    assert chronicle.dropped >= 1
    assert "unavailable for too long" in said[0]
    ledger.gate.set()
    chronicle.close()
