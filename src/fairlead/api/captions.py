"""Captions of the GPU acts, read from the events of the ledger as they are recorded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from fairlead.api.story_acts import Act, Caption
from fairlead.core.units import counted
from fairlead.engine.gpu import ControlPlane
from fairlead.engine.gpu.projection import reservation_spec, starts_ms
from fairlead.schema.times import parse_time

Event = dict[str, Any]


class GpuCaptions:
    """Turns events into captions. `progress` says how far a run's work is, if that is known."""

    def __init__(self, plane: ControlPlane, progress: Callable[[str], int | None]) -> None:
        self._plane, self._progress = plane, progress
        self._reserved: dict[str, int] = {}
        """The decision that allowed each reservation."""
        self._preempted: dict[str, int] = {}
        """Runs that a lottery selected and that do not run again yet, and when."""

    def read(self, events: Sequence[Event]) -> Iterator[Caption]:
        """Captions of events that follow each other; one commit must not be split."""
        for event in events:
            kind, body = event["kind"], event["body"]
            if kind == "run.phase" and body["phase"] == "Running" and "job" in body:
                yield from self._started(event)
            elif kind == "gpu.reserve":
                self._reserved[body["reservation"]] = event["seq"]
            elif kind == "run.cut" and body["draw"] is not None and body["preempts"]:
                self._preempted[body["run"]] = _ms(event)
                yield self._selected(event)
        slots: dict[str, list[Event]] = {}
        for event in events:
            if event["kind"] == "run.warned" and 0 < event["body"]["chance"] < 1:
                slots.setdefault(event["body"]["slot"], []).append(event)
        for warned in slots.values():
            yield from self._announced(warned)

    def _started(self, event: Event) -> Iterator[Caption]:
        name, time_ms = event["body"]["run"], _ms(event)
        with self._plane.committer.current() as projection:
            run = projection.runs.get(name)
            if run is None:
                return
            leases, fund_seq = list(run.leases.values()), run.cover_seq
        links = _links(
            (f"/decision/ledger/{fund_seq}", "the funding decision") if fund_seq else None, name
        )
        if name in self._preempted:
            waited_s = (time_ms - self._preempted.pop(name)) // 1000
            step = self._progress(name)
            work = "" if step is None else f" Its command goes on from its checkpoint, step {step}."
            text = f"{name} has devices again after {waited_s} s (attempt {run.attempt}).{work}"
            yield Caption(Act.RESUME, text, links, time_ms)
            return
        own = sum(lease.gpus for lease in leases if lease.payer == lease.owner)
        for act, borrowed in ((Act.SHARE, False), (Act.LEND, True)):
            others = [x for x in leases if x.payer != x.owner and x.borrowed is borrowed]
            if not others:
                continue
            more, payer = sum(lease.gpus for lease in others), others[0].payer
            how = "lent by" if borrowed else "shared by its sibling"
            text = (
                f"{event['owner']} runs {name} on {counted(own + more, 'GPU')}: {own} of its own, "
                f"{more} {how} {payer}."
            )
            yield Caption(act, text, links, time_ms)

    def _announced(self, warned: list[Event]) -> Iterator[Caption]:
        start_ms = warned[0]["body"]["start_ms"]
        with self._plane.committer.current() as projection:
            named = [
                (stored.name, reservation_spec(stored).run, projection.owner_of(stored))
                for stored in projection.of_kind("Reservation")
                if starts_ms(stored) == start_ms
            ]
            if not named:
                return
            reservation, run, owner = named[0]
            stored = projection.get("Run", run)
            gpus = 0 if stored is None else projection.run_spec(run).gpus
        odds = ", ".join(
            f"{event['body']['run']} {event['body']['chance'] * 100:.0f} %" for event in warned
        )
        time_ms = max(map(_ms, warned))
        ahead_s = max(0, start_ms - time_ms + 500) // 1000
        text = (
            f"{owner} reserves {counted(gpus, 'GPU')} in {ahead_s} s, and all devices are taken. "
            f"The runs at risk are told their odds now: {odds}."
        )
        seq = self._reserved.get(reservation)
        decision = (
            None if seq is None else (f"/decision/ledger/{seq}", "the reservation's decision")
        )
        told = (f"/ledger/{warned[0]['seq']}", "a warning with odds")
        yield Caption(Act.ANNOUNCE, text, _links(decision, None, told), time_ms)

    def _selected(self, event: Event) -> Caption:
        body = event["body"]
        outcome = self._plane.committer.projection.resolver.outcomes.get(body["outcome"])
        why = "" if outcome is None or outcome.run is None else f" for {outcome.run}"
        text = (
            f"The reservation is due and devices are missing. The lottery, committed to before it "
            f"was drawn, selects {body['run']}: its process has "
            f"{body['grace_ms'] // 1000} s to save its work, then its devices are free{why}."
        )
        outcome_link = (f"/preemption/{body['outcome']}", "the outcome, to verify")
        return Caption(Act.LOTTERY, text, _links(outcome_link, body["run"]), _ms(event))


def _ms(event: Event) -> int:
    return parse_time(event["time"], "time")


def _decision(seq: int | None, words: str) -> tuple[str, str] | None:
    return None if seq is None else (f"/decision/ledger/{seq}", words)


def _links(
    decision: tuple[str, str] | None, run: str | None, *more: tuple[str, str]
) -> tuple[tuple[str, str], ...]:
    links = [] if decision is None else [decision]
    if run is not None:
        links.append((f"/runs/{quote(run, safe='')}", run))
    return (*links, *more)
