"""The committer: one lock, the ledger and its projection; how every command is carried out.

    read the projection -> decide -> append one batch, all or nothing -> fold it
         ^                                 |
         +---- HeadMoved: catch up, decide again

Replicas race through the ledger's expected size: the loser catches up and decides again on what the
winner did, so nothing is spent twice. A leader needs no more than this: a replica that does not
lead calls no `commit`, and a leader that was replaced without knowing loses the race.
Any thread may call.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fairlead.core.gpu import RunProtection
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.clock import LedgerClock, first_of_boot
from fairlead.engine.gpu.entries import SYSTEM, Body, ClockAnchored, ClockHeld, NewEntry, encode
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.values import Config, NotFound
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Archived, Entry, HeadMoved, Ledger

READ_AT_ONCE = 1_000
RACES_MAX = 50
Decide = Callable[[], Sequence[NewEntry]]


@dataclass(frozen=True, slots=True)
class Context:
    """What is known, and when and by whom entries are made of it."""

    projection: Projection
    now_ms: int
    author: str = SYSTEM

    def entry(
        self, body: Body, plan_id: str | None = None, effect: str | None = None, **more: Any
    ) -> NewEntry:
        """`more`: other fields of the entry, such as the input of a decision."""
        by = self.author
        return NewEntry(body, self.now_ms, author=by, plan_id=plan_id, effect=effect, **more)


class Committer:
    """Given to every service of the control plane; `projection` is the same object for good."""

    def __init__(self, ledger: Ledger, clock: LedgerClock, config: Config) -> None:
        self.ledger, self.clock, self.config = ledger, clock, config
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        """How many `current` blocks the thread that has the lock is in."""
        self._listeners: list[Callable[[Entry], None]] = []
        self.after_checkpoint: Callable[[], object] = lambda: None
        """Called when one was taken: others that keep a state do so now, too."""
        self.projection: Projection = checkpoint.load(ledger)
        self._checkpoint_seq = self.projection.seq
        try:
            with self.current():
                pass
        except Archived as error:
            raise PermanentFault(
                f"entries after {self.projection.seq} were moved to an archive, and no entry "
                "confirms a state of the control plane after them: run `fairlead audit rebuild "
                "--archive DIRECTORY`"
            ) from error
        clock.follow(self.projection)

    def now(self) -> int:
        """Never before the last entry: a clock set back must not end leases before their start."""
        return max(self.clock(), self.projection.time_ms)

    @contextmanager
    def current(self) -> Iterator[Projection]:
        """The projection of everything recorded so far, under the lock.

        What is asked and committed inside does not read the ledger again: if another replica wrote
        meanwhile, the append is refused, and only then there is more to know.
        """
        with self._lock:
            if not self._inside:
                self._catch_up()
            self._inside += 1
            try:
                yield self.projection
            finally:
                self._inside -= 1

    def commit(self, decide: Decide) -> list[Entry]:
        """Decide on what is known, append, fold; on a lost race, know more and decide again."""
        with self._lock:
            for attempt in range(RACES_MAX):
                if attempt or not self._inside:
                    self._catch_up()
                made = decide()
                if not made:
                    return []
                of_clock = isinstance(made[0].body, ClockAnchored | ClockHeld)
                first = [] if of_clock else first_of_boot(self.clock, self.projection)
                drafts = [encode(self._in_order(entry)) for entry in first or made]
                try:
                    entries = self.ledger.append(drafts, expected_size=self.projection.seq)
                except HeadMoved:
                    continue
                self._fold(entries)
                if first:
                    continue  # it is decided again, behind the clock
                self._checkpoint_if_due()
                return entries
        raise TemporaryFault(
            "the ledger is too busy: every attempt lost the race", retry_after_ms=100
        )

    def record_boot(self) -> None:
        """What happens from now on is of this boot, and the ledger knows of it."""
        self.commit(lambda: first_of_boot(self.clock, self.projection))

    def _in_order(self, entry: NewEntry) -> NewEntry:
        """Times of entries never go back. A turn has one time; meanwhile another replica may have
        appended at a later one."""
        latest_ms = self.projection.time_ms
        return entry if entry.time_ms >= latest_ms else replace(entry, time_ms=latest_ms)

    def at(self, author: str = SYSTEM) -> Context:
        """The present, for entries of an author."""
        return Context(self.projection, self.now(), author)

    def protection(self) -> RunProtection:
        """Which funded runs are no candidates now, for a gang that lacks devices."""
        rules = self.config.preemption
        return RunProtection(self.now(), rules.min_runtime_ms, rules.cooldown_ms)

    def new(self, body: Body, author: str = SYSTEM) -> NewEntry:
        return self.at(author).entry(body)

    def stored(self, kind: str, name: str) -> Stored:
        stored = self.projection.get(kind, name)
        if stored is None:
            raise NotFound(kind, name)
        return stored

    def listen(self, listener: Callable[[Entry], None]) -> int:
        """Be told of every entry from now on, under the lock; returns the last one before."""
        with self.current() as projection:
            self._listeners.append(listener)
            return projection.seq

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until there is an entry above `after`, or the time is over; returns the last one."""
        with self._lock:
            self._changed.wait_for(lambda: self.projection.seq > after, timeout_s)
            return self.projection.seq

    def checkpoint(self) -> None:
        with self._lock:
            seq, data = self.projection.seq, checkpoint.packed(self.projection)
            self.ledger.snapshot_put(checkpoint.NAME, seq, data)
            self._checkpoint_seq = self.projection.seq
            self.after_checkpoint()
            if not self._inside:
                self._catch_up()  # the ledger recorded what it keeps

    def _catch_up(self) -> None:
        while True:
            entries = self.ledger.entries(self.projection.seq, READ_AT_ONCE)
            self._fold(entries)
            if len(entries) < READ_AT_ONCE:
                break
        self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        if self.projection.seq - self._checkpoint_seq >= self.config.checkpoint_every:
            try:
                self.checkpoint()
            except Fault:  # no room for it: a start folds more, and readers go on reading
                self._checkpoint_seq = self.projection.seq

    def _fold(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.projection.apply(entry)
            for listener in self._listeners:
                listener(entry)
        if entries:
            self._changed.notify_all()
