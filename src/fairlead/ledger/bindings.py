"""What binds the rows beside the log to entries: snapshots, positions, the end of the archive.

A row beside the log is not covered by the tree, so a reader believes it only as far as an entry
says the same. A snapshot's SHA-256 and number are in a `ledger.snapshot`; the end of the archive is
the `last` of a `ledger.archived`. What no entry confirms is not used: a projection is then made
again from the entries.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from fairlead.core.audit import (
    Head,
    TreeNode,
    check_inclusion,
    inclusion_proof,
    leaf_hash,
    statement_to_sign,
)
from fairlead.core.units import INTEGER_MAX
from fairlead.ledger.entries import entry_of
from fairlead.ledger.keys import SecretKey
from fairlead.ledger.signatures import signature_holds
from fairlead.ledger.statements import ARCHIVED, SNAPSHOT
from fairlead.ledger.store import Execute, Found, read_nodes
from fairlead.ports.ledger import Damaged, Draft, Entry, ProjectionSnapshot

NODES_AT_ONCE = 500
POSITION_EVERY = 1_000
"""Events after which an entry records a receiver's position again."""


class SnapshotBinding(NamedTuple):
    """What an entry says of a snapshot."""

    name: str
    seq: int
    digest: str

    @classmethod
    def of(cls, name: str, seq: int, state: bytes) -> "SnapshotBinding":
        return cls(name, seq, sha256(state).hexdigest())

    @classmethod
    def said_by(cls, entry: Entry) -> "SnapshotBinding":
        try:
            body = entry.body
            return cls(str(body["name"]), int(body["after"]), str(body["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"entry {entry.seq}: {entry.kind} is malformed", entry.seq) from error

    @property
    def plan_id(self) -> str:
        return f"snapshot:{self.name}"

    @property
    def effect(self) -> str:
        return f"{self.seq}:{self.digest}"

    def draft(self, time_ms: int) -> Draft:
        return Draft(
            kind=SNAPSHOT,
            time_ms=time_ms,
            author="ledger",
            plan_id=self.plan_id,
            effect=self.effect,
            body={"name": self.name, "after": self.seq, "digest": self.digest},
        )


def find_binding(query: Execute, binding: SnapshotBinding, head: Head) -> Entry | None:
    """The entry that says this, proved to be in the log of the head; None if there is none."""
    text = "SELECT seq, data FROM entries WHERE plan_id = ? AND effect = ?"
    for row in query(text, binding.plan_id, binding.effect):
        entry = entry_of(Found(*row))
        check_included(query, [entry], head)
        if entry.kind == SNAPSHOT and SnapshotBinding.said_by(entry) == binding:
            return entry
    return None


def newest_binding(query: Execute, name: str, head: Head) -> int | None:
    """The number that the newest entry about a name says; None if there is none."""
    text = "SELECT seq, data FROM entries WHERE plan_id = ? ORDER BY seq DESC LIMIT 1"
    for row in query(text, f"snapshot:{name}"):
        entry = entry_of(Found(*row))
        check_included(query, [entry], head)
        if entry.kind == SNAPSHOT and (binding := SnapshotBinding.said_by(entry)).name == name:
            return binding.seq
    return None


def _position(ledger: str, name: str, seq: int) -> bytes:
    return statement_to_sign(ledger, {"kind": "position", "name": name, "seq": seq})


def seal_position(ledger: str, name: str, seq: int, key: SecretKey) -> bytes:
    """A position changes too often for an entry each time; the key confirms it."""
    return key.sign(_position(ledger, name, seq))


def position_sealed(
    ledger: str, name: str, seq: int, seal: bytes, keys: Mapping[str, bytes]
) -> bool:
    if not 0 <= seq <= INTEGER_MAX:
        return False  # JSON has no such number, so no key has signed it
    data = _position(ledger, name, seq)
    return any(signature_holds(key, data, seal.hex()) for key in keys.values())


def problem_of(query: Execute, kept: ProjectionSnapshot, head: Head) -> str:
    """Why a kept snapshot is not believed; empty if it is."""
    if find_binding(query, SnapshotBinding.of(kept.name, kept.seq, kept.state), head):
        return ""
    for _ in query("SELECT 1 FROM entries WHERE plan_id = ? LIMIT 1", f"snapshot:{kept.name}"):
        return "is not one that an entry confirms"
    return "has no entry that confirms it"


def check_archived(query: Execute, archived_to: int, head: Head) -> None:
    """The end of the archive is what entries say: the newest of them, or, where a crash came
    between saying and doing, the one before. Raises `Damaged`."""
    text = "SELECT seq, data FROM entries WHERE kind = ? ORDER BY seq"
    said = [entry_of(Found(*row)) for row in query(text, ARCHIVED)]
    check_included(query, said, head)
    if problem := archive_problem(said, archived_to):
        raise Damaged(problem)


def archive_problem(said: Iterable[Entry], archived_to: int) -> str:
    ends = [0]
    for entry in said:
        first, last = entry.body.get("first"), entry.body.get("last")
        if first == ends[-1] + 1 and isinstance(last, int):
            ends.append(last)
        elif len(ends) > 1 and first == ends[-2] + 1 and isinstance(last, int):
            ends[-1] = last  # said again, after a crash before it was done
        else:
            return f"entry {entry.seq}: archives {first} to {last} after {ends[-1]}"
    if archived_to in ends[-2:]:
        return ""
    return f"entries up to {archived_to} are marked as archived, but the log says {ends[-1]}"


def check_included(query: Execute, entries: Sequence[Entry], head: Head) -> None:
    """Whether the log of a head has these entries, each at its place; raises `Damaged`."""
    needed = dict[TreeNode, bytes]()

    def collect(nodes: Sequence[TreeNode]) -> list[bytes]:
        needed.update(dict.fromkeys(nodes, b""))
        return [b""] * len(nodes)

    for entry in entries:
        if not 1 <= entry.seq <= head.size:
            raise Damaged(f"entry {entry.seq} is not covered by the head, {head.size}", entry.seq)
        inclusion_proof(entry.seq - 1, head.size, collect)
    nodes = sorted(needed)
    for first in range(0, len(nodes), NODES_AT_ONCE):
        part = nodes[first : first + NODES_AT_ONCE]
        needed.update(zip(part, read_nodes(query, part), strict=True))

    def stored(nodes: Sequence[TreeNode]) -> list[bytes]:
        return [needed[node] for node in nodes]

    for entry in entries:
        if not check_inclusion(
            leaf=leaf_hash(entry.data),
            index=entry.seq - 1,
            size=head.size,
            proof=inclusion_proof(entry.seq - 1, head.size, stored),
            root=bytes.fromhex(head.root),
        ):
            raise Damaged(f"entry {entry.seq} is not the one that the head covers", entry.seq)
