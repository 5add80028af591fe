"""Delivers events to receivers: in order, each at least once, with the signed head.

The position of a receiver is kept beside the ledger, signed, and the ledger is the queue: a
receiver that was unavailable for a week gets a week's events, in order, and nothing is stored twice
for it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from fairlead.engine.gpu.entries import Document
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Ledger
from fairlead.ports.notifier import Notification, Notifier

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
"""For every receiver: commitments and reveals, under pseudonyms; and that events were archived."""
SILENT = "ledger.snapshot"
"""For no receiver: the ledger records it for a position, too, which would be a notice again."""
Events = Callable[[int, int], list[Document]]
"""Events after a number, at most so many; as `EventFeed.read`."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The events that one receiver gets: of some owners, of some kinds; empty: of all.

    A kind may be a prefix: `gpu.resolve.` is every step of every outcome. The operator's
    commitments are for every owner.
    """

    name: str
    owners: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = ()

    def wants(self, event: Document) -> bool:
        if event["kind"] == SILENT:
            return False
        mine = not self.owners or event["owner"] in self.owners
        if not mine and event["kind"] not in PUBLIC:
            return False
        return not self.kinds or event["kind"].startswith(self.kinds)


@dataclass(slots=True)
class _Position:
    """The last event that a receiver has, and when it is tried next."""

    seq: int
    due_ms: int = 0
    failures: int = 0
    tried: int = 0
    """Events of the notice that failed last: it is tried again as it was, not with newer ones."""


class Notifications:
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
        self._positions = {
            subscription.name: self._find(subscription.name, newest)
            for subscription in self._subscriptions
        }
        self.faults: dict[str, str] = {}
        """What each receiver last failed at."""

    def turn(self, now_ms: int) -> int:
        """Deliver to every receiver that is due; how many notices were delivered."""
        return sum(self._notify(subscription, now_ms) for subscription in self._subscriptions)

    def _find(self, name: str, newest: int) -> _Position:
        """A new receiver begins with what happens from now on."""
        kept = self._ledger.position_get(_named(name))
        return _Position(newest if kept is None else kept)

    def _notify(self, subscription: Subscription, now_ms: int) -> int:
        position, delivered = self._positions[subscription.name], 0
        while now_ms >= position.due_ms and delivered < NOTICES_AT_ONCE:
            events = self._events(position.seq, position.tried or BATCH)
            if not events:
                break
            chosen = [event for event in events if subscription.wants(event)]
            if chosen and not self._deliver(subscription.name, position, chosen, now_ms):
                position.tried = len(events)
                break
            delivered += bool(chosen)
            position.seq, position.tried = events[-1]["seq"], 0
            self._ledger.position_put(_named(subscription.name), position.seq)
        return delivered

    def _deliver(self, name: str, position: _Position, events: list[Document], now_ms: int) -> bool:
        head = self._ledger.head().as_document()
        body = msgspec.json.encode({"receiver": name, "events": events, "head": head})
        # The same events are the same notice, however often they are tried.
        span = f"{head['ledger']}/{name}/{events[0]['seq']}-{events[-1]['seq']}"
        notice = Notification(sha256(span.encode()).hexdigest()[:32], name, body)
        try:
            self._notifier.deliver(notice, now_ms)
        except Fault as fault:
            self.faults[name] = str(fault)
            position.due_ms = now_ms + min(WAIT_MS_MAX, WAIT_MS_MIN * 2**position.failures)
            position.failures = min(position.failures + 1, 20)
            return False
        self.faults.pop(name, None)
        position.failures = position.due_ms = 0
        return True


def _named(name: str) -> str:
    return f"notify.{name}"
