"""Tells receivers outside what happens: events in order, each at least once, with the signed head.

Where a receiver has got to is kept beside the ledger, and the ledger is the queue: a receiver that
was away for a week is told a week's events, in order, and nothing is kept twice for it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Ledger
from fairlead.ports.notifier import Notice, Notifier

BATCH = 100
# To one receiver in one turn: others have theirs, and no timestamp is older than a receiver takes,
# even if each delivery takes its ten seconds.
NOTICES_AT_ONCE = 10
WAIT_MS_MIN, WAIT_MS_MAX = 1_000, 300_000
PUBLIC = (
    "gpu.resolve.scope",
    "gpu.resolve.commit",
    "gpu.resolve.draw",
    "gpu.resolve.void",
    "events.archived",
)
"""Commitments and what they were opened to, under pseudonyms; and that something is not told."""
Events = Callable[[int, int], list[dict[str, Any]]]
"""Events after a number, at most so many; as `ControlPlane.events`."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one receiver wants to hear: events of some owners, of some kinds; empty: of all.

    A kind may be a beginning: `gpu.resolve.` is every step of every outcome. What holds the
    operator to its word is for every owner.
    """

    name: str
    owners: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = ()

    def wants(self, event: dict[str, Any]) -> bool:
        """Whether an event is for it."""
        mine = not self.owners or event["owner"] in self.owners
        if not mine and event["kind"] not in PUBLIC:
            return False
        return not self.kinds or event["kind"].startswith(self.kinds)


@dataclass(slots=True)
class _Place:
    """Where a receiver has got to, and when it is tried next."""

    seq: int
    due_ms: int = 0
    failures: int = 0
    tried: int = 0
    """Events of the notice that failed last: it is tried again as it was, not with newer ones."""


class Herald:
    """One turn after the other; any thread, one at a time."""

    def __init__(
        self,
        ledger: Ledger,
        events: Events,
        notifier: Notifier,
        subscriptions: Iterable[Subscription],
        *,
        newest: int,
    ) -> None:
        self._ledger, self._events, self._notifier = ledger, events, notifier
        self._subscriptions = list(subscriptions)
        self._places = {each.name: self._find(each.name, newest) for each in self._subscriptions}
        self.faults: dict[str, str] = {}
        """What each receiver last failed at."""

    def turn(self, now_ms: int) -> int:
        """Tell every receiver whose time has come; how many notices were delivered."""
        return sum(self._tell(each, now_ms) for each in self._subscriptions)

    def _find(self, name: str, newest: int) -> _Place:
        """A receiver that was never heard of begins with what happens from now on."""
        kept = self._ledger.snapshot_get(_snapshot(name))
        return _Place(newest if kept is None else kept.seq)

    def _tell(self, wanted: Subscription, now_ms: int) -> int:
        place, delivered = self._places[wanted.name], 0
        while now_ms >= place.due_ms and delivered < NOTICES_AT_ONCE:
            found = self._events(place.seq, place.tried or BATCH)
            if not found:
                break
            chosen = [event for event in found if wanted.wants(event)]
            if chosen and not self._deliver(wanted.name, place, chosen, now_ms):
                place.tried = len(found)
                break
            delivered += bool(chosen)
            place.seq, place.tried = found[-1]["seq"], 0
            self._ledger.snapshot_put(_snapshot(wanted.name), place.seq, b"{}")
        return delivered

    def _deliver(self, name: str, place: _Place, events: list[dict[str, Any]], now_ms: int) -> bool:
        head = self._ledger.head().as_document()
        body = msgspec.json.encode({"receiver": name, "events": events, "head": head})
        # The same events are the same notice, however often they are tried.
        span = f"{head['ledger']}/{name}/{events[0]['seq']}-{events[-1]['seq']}"
        notice = Notice(sha256(span.encode()).hexdigest()[:32], name, body)
        try:
            self._notifier.deliver(notice, now_ms)
        except Fault as fault:
            self.faults[name] = str(fault)
            place.due_ms = now_ms + min(WAIT_MS_MAX, WAIT_MS_MIN * 2**place.failures)
            place.failures = min(place.failures + 1, 20)
            return False
        self.faults.pop(name, None)
        place.failures = place.due_ms = 0
        return True


def _snapshot(name: str) -> str:
    return f"notify.{name}"
