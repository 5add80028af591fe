"""The evidence of decisions, out of the ledger of this process: what `evidence` checks there."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fairlead.executor.remote import UsersShown
from fairlead.executor.users import SNAPSHOT, STATE, USER
from fairlead.ports.executor import Job
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Archived, Entry, LedgerReader, ProjectionSnapshot

_KINDS = ("run.phase", "lease.open")
"""Entries of a start that the launcher looks at."""
_OF_A_PLAN_MAX = 4_000
_USERS_AT_ONCE = 1_000
_FOLD_MAX = 100_000


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run: its submission, its leases, and the entries about its end, its pause
    and its width."""

    submitted_seq: int | None = None
    leases: tuple[str, ...] = ()
    about: tuple[int, ...] = ()


class LedgerEvidence:
    """An `EvidenceSource` over a ledger. `facts` knows the runs; nothing of one that is gone."""

    def __init__(self, ledger: LedgerReader, facts: Callable[[str], RunFacts]) -> None:
        self._ledger, self._facts = ledger, facts
        self._size, self._users_to = 0, 0

    def opening(self, followed: Mapping[str, int]) -> dict[str, Any]:
        signed, size = self._ledger.head(), followed["size"]
        self._size, self._users_to = signed.head.size, followed["users"]
        key = self._ledger.keys()[signed.head.key_id]
        # A ledger that is shorter continues nothing, and the launcher says so.
        proof = self._ledger.consistency(size, self._size) if size <= self._size else ()
        return {
            "head": signed.as_document(),
            "public_key": key.hex(),
            "continues": [node.hex() for node in proof],
        }

    def follow(self, size: int) -> None:
        self._size = size

    def of_users(self) -> Iterator[UsersShown]:
        size = self._ledger.head().head.size
        kept = self._ledger.snapshot_get(STATE)
        # To fold all entries of a long ledger would take a start minutes.
        far = kept is not None and kept.seq - self._users_to > _FOLD_MAX
        try:
            rows = None if far else self._users(size)
        except Archived:
            rows = None
        if rows is None:
            yield from self._show(*self._users_state(kept))
            rows = self._users(size)
        for first in range(0, len(rows), _USERS_AT_ONCE):
            part = rows[first : first + _USERS_AT_ONCE]
            yield from self._show(part[-1].seq, part)
        if size > self._users_to:
            yield from self._show(size, ())

    def _users(self, size: int) -> list[Entry]:
        found = self._ledger.following(self._users_to, (USER,))
        return [entry for entry in found if entry.seq <= size]

    def _show(
        self, upto: int, entries: Iterable[Entry], state: str | None = None
    ) -> Iterator[UsersShown]:
        yield UsersShown(upto, self._evidence(entries), state)
        self._users_to = upto  # only then: what failed is shown again

    def _users_state(self, kept: ProjectionSnapshot | None) -> tuple[int, list[Entry], str]:
        """The state that entries led to, and the entry that has its digest."""
        if kept is not None:
            effect, after = f"{kept.seq}:{sha256(kept.state).hexdigest()}", 0
            while rows := self._ledger.entries(after, plan_id=f"snapshot:{STATE}"):
                for entry in rows:
                    if entry.kind == SNAPSHOT and entry.effect == effect:
                        return kept.seq, [entry], kept.state.decode()
                after = rows[-1].seq
        raise PermanentFault(
            "entries about users were moved to an archive, and no entry confirms what they led to: "
            "run `fairlead audit rebuild --archive DIRECTORY`"
        )

    def of_start(self, job: Job) -> dict[str, Any]:
        """Without what was archived: of a start that was carried out nothing need be shown."""
        facts = self._facts(job.run)
        submission = [] if facts.submitted_seq is None else self._entry(facts.submitted_seq)
        return self._evidence([*submission, *self._of_leases((job.id,), job.leases)])

    def of_resize(self, run: str, decision: str) -> dict[str, Any]:
        leases = self._of_leases((), self._facts(run).leases)
        return self._evidence([*self._cited(run, decision), *leases])

    def of_decision(self, run: str, decision: str) -> dict[str, Any]:
        return self._evidence(self._cited(run, decision))

    def _cited(self, run: str, decision: str) -> list[Entry]:
        about = [entry for seq in self._facts(run).about for entry in self._entry(seq)]
        if not decision.isdecimal():
            return [*about, *self._of_plan(decision)[:1]]
        found = self._entry(int(decision))
        if not found:  # the entry that says where it went
            archives = self._ledger.entries(kind="ledger.archived")
            found = [row for row in archives if row.body["last"] >= int(decision)][:1]
        return [*about, *found]

    def _entry(self, seq: int) -> list[Entry]:
        try:
            found = self._ledger.entry(seq)
        except Archived:
            return []
        return [] if found is None else [found]

    def _of_plan(self, plan: str) -> list[Entry]:
        try:
            return self._ledger.entries(plan_id=plan, limit=_OF_A_PLAN_MAX)
        except Archived:
            return []

    def _of_leases(self, plans: Iterable[str], leases: Iterable[str]) -> list[Entry]:
        """A lease is named for the start that opened it, which may be an earlier one."""
        plans = sorted({*plans, *(lease.rpartition(".")[0] for lease in leases)})
        return [entry for plan in plans for entry in self._of_plan(plan) if entry.kind in _KINDS]

    def _evidence(self, entries: Iterable[Entry]) -> dict[str, Any]:
        signed = self._ledger.head()
        size = signed.head.size
        unique = {entry.seq: entry for entry in entries}
        return {
            "head": signed.as_document(),
            "continues": [node.hex() for node in self._ledger.consistency(self._size, size)],
            "entries": [
                {
                    "data": entry.data.decode(),
                    "proof": [node.hex() for node in self._ledger.inclusion(seq, size)],
                }
                for seq, entry in sorted(unique.items())
            ],
        }
