"""The control plane: commands in, entries of the ledger out, objects as the ledger tells them.

One command reads the projection, decides, appends one batch that stands or falls together, folds
it, and only then touches the world. Two replicas race through the ledger's size: the loser catches
up and decides again, so nothing is spent twice. One lock; any thread may call.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.core.lottery import OwnerWeighting
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.conditions import NEAR_LIMIT_PERCENT
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.values import NotFound
from fairlead.ports.chance import Chance
from fairlead.ports.executor import Executor
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Archived, Draft, Entry, HeadMoved, Ledger

READ_AT_ONCE = 1_000
RACES_MAX = 50


@dataclass(frozen=True, slots=True)
class Beacon:
    """A public source of chance with a round every so often, counted from 1."""

    source: str
    genesis_ms: int
    period_ms: int

    def round_after(self, now_ms: int) -> int:
        """The first round that surely begins in the future, clocks a round apart included."""
        return max(0, (now_ms - self.genesis_ms) // self.period_ms) + 3


@dataclass(frozen=True, slots=True)
class Config:
    """What an operator can set."""

    grace_ms: int = 30_000
    near_limit_percent: int = NEAR_LIMIT_PERCENT
    checkpoint_every: int = 20_000
    """Entries between checkpoints: a start folds at most about as many."""
    resolver: Literal["off", "dry-run", "enforce"] = "dry-run"
    """Whether anybody is made to give way: never; only shown who would; really."""
    may_resolve: frozenset[str] = frozenset()
    """Owners whose runs may be started by others giving way, besides by reservation."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    """Between whom chance is fair; an outcome keeps what its commitment says."""
    beacon: Beacon | None = None
    """Where chance comes from that nobody here can know before; None: outcomes do not wait."""
    hold_ms: int = 120_000
    """How long a commitment that waits for its beacon keeps other runs of the flavor waiting."""


class Core:
    """The lock, the ledger and the projection: how every command is carried out."""

    def __init__(
        self,
        ledger: Ledger,
        executor: Executor | None,
        now_ms: Callable[[], int],
        config: Config | None = None,
        chance: Chance | None = None,
    ) -> None:
        self._ledger, self._executor, self._clock = ledger, executor, now_ms
        self._chance = chance
        self.config = config or Config()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._projection = checkpoint.load(ledger)
        self._checkpoint_seq = self._projection.seq
        with self._lock:
            try:
                self._catch_up()
            except Archived as error:
                raise PermanentFault(
                    f"entries after {self._projection.seq} were moved to an archive before the "
                    "control plane kept what they say"
                ) from error

    @property
    def seq(self) -> int:
        """The size of the ledger that was folded."""
        return self._projection.seq

    def _now(self) -> int:
        """Never before the last entry: a clock set back must not end leases before their start."""
        return max(self._clock(), self._projection.time_ms)

    @property
    def clock_behind_ms(self) -> int:
        """By how much the clock is behind the last entry; until it is not, no time passes."""
        return max(0, self._projection.time_ms - self._clock())

    def _catch_up(self) -> None:
        """Fold what other writers appended."""
        while True:
            entries = self._ledger.entries(self._projection.seq, READ_AT_ONCE)
            for entry in entries:
                self._projection.apply(entry)
            if entries:
                self._changed.notify_all()
            if len(entries) < READ_AT_ONCE:
                break
        if self._projection.seq - self._checkpoint_seq >= self.config.checkpoint_every:
            try:
                self.checkpoint()
            except Fault:  # no room for it: a start folds more, and who only looks goes on looking
                self._checkpoint_seq = self._projection.seq

    def checkpoint(self) -> None:
        """Keep the projection, so that the next start begins here."""
        with self._lock:
            checkpoint.save(self._ledger, self._projection)
            self._checkpoint_seq = self._projection.seq

    def _commit(self, decide: Callable[[], list[Draft]]) -> list[Entry]:
        """Decide on what is known, append, fold; on a lost race, know more and decide again."""
        for _ in range(RACES_MAX):
            self._catch_up()
            drafts = decide()
            if not drafts:
                return []
            try:
                entries = self._ledger.append(drafts, expected_size=self._projection.seq)
            except HeadMoved:
                continue
            for entry in entries:
                self._projection.apply(entry)
            self._changed.notify_all()
            return entries
        raise TemporaryFault(
            "the ledger is too busy: every attempt lost the race", retry_after_ms=100
        )

    def _draft(self, kind: str, user: str, body: dict[str, Any]) -> Draft:
        return Draft(kind=kind, time_ms=self._now(), author=user, body=body)

    def _stored(self, kind: str, name: str) -> Stored:
        stored = self._projection.get(kind, name)
        if stored is None:
            raise NotFound(kind, name)
        return stored
