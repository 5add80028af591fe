"""What a real agent left behind: its ticks from the flight record, its transitions from its log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fairlead.ports.recorder import Entry, Mark
from fairlead.recorder.chain import Chain
from fairlead.recorder.reader import links, segments
from fairlead.schema.traffic import from_snapshot
from fairlead.schema.traffic_govern import Governed, Life
from fairlead.sim.traffic.story import Tick


@dataclass(frozen=True, slots=True)
class Event:
    """One transition that the agent logged."""

    wall_ms: float
    sequence: int | None
    reasons: tuple[str, ...]
    text: str


def read_events(log: Path) -> list[Event]:
    """The transitions, in order."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in _SAID:
            wall_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
            reasons = tuple(event.get("reasons", ()))
            found.append(Event(wall_ms, event.get("sequence"), reasons, _text(event)))
    return found


_SAID = ("door", "isolation", "failsafe", "agent started")


def _text(event: dict[str, Any]) -> str:
    before, after = event.get("before"), event.get("after")
    if event["event"] == "isolation":
        name = event["backend"]
        return f"{name} is isolated: {after}" if after else f"{name} is back in service"
    if event["event"] == "agent started":
        return "the agent has started"
    what = "the door goes from" if event["event"] == "door" else "the plane went from"
    return f"{what} {before} to {after}"


def read_ticks(
    record: Path, began_ms: float, duration_ms: float, events: Sequence[Event]
) -> list[Tick]:
    """The ticks of the play, with the reasons that the agent gave beyond the decision's own."""
    said = {event.sequence: event.reasons for event in events if event.sequence is not None}
    entries: list[tuple[Entry, Governed]] = []
    voided: set[int] = set()
    life = Life()
    for link in links(segments(record), Chain()):
        if isinstance(link, Entry):
            entries.append((link, life.follow(link.input)))
        elif isinstance(link, Mark) and link.status == "voided":
            voided.add(link.entry_seq)
    return [
        Tick(
            entry.time_ms - began_ms,
            from_snapshot(made.snapshot),
            entry.output,
            said.get(entry.seq) or tuple(entry.output["reasons"]),
            applied=entry.seq not in voided,
        )
        for entry, made in entries
        if 0 <= entry.time_ms - began_ms < duration_ms
    ]
