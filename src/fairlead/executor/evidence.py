"""Evidence that a decision is recorded: entries, their place in the tree, a signed checkpoint.

The launcher follows one ledger: the first checkpoint that it is shown pins the ledger and its key,
before the control plane has read a single request. From then on every checkpoint must continue the
last one and be signed, after a restart too: the last one is kept in a file of root's. Every start
must show the entries that it follows from:

    run.phase        the start itself: its job, its run
    object.applied   the run as it was submitted: command, variables, secrets, directory, and the
                     author, as whom it runs
    access.user      that the author acts for the run's owner (`users`)
    lease.open       the devices

So a control plane that was taken over can start nothing that is not in its signed history, and
nothing as another user than the one that the history names.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fairlead.core.audit import Head, check_consistency, check_inclusion, key_id, leaf_hash
from fairlead.executor import wire
from fairlead.host import files
from fairlead.ports.executor import Job

HEAD: dict[str, Any] = {
    "ledger": str,
    "epoch": int,
    "size": int,
    "root": str,
    "time_ms": int,
    "key_id": str,
    "signature": str,
}
EVIDENCE: dict[str, Any] = {
    "head": HEAD,
    "continues": [str],
    "entries": [{"data": str, "proof": [str]}],
}
ENTRIES_MAX = 4_096
KEEP_EVERY = 256
"""Entries after which the checkpoint is kept again."""
_ENTRY: dict[str, Any] = {"seq": int, "kind": str, "author": str, "body": dict}
_SUBMITTED: dict[str, Any] = {"spec": dict, "uid": str}


class NotRecorded(Exception):
    """The evidence does not show what is asked for; the message says what is missing."""


def expect(value: Any, shape: Any, where: str) -> None:
    """As `wire.check`, for what an entry says: that refuses the act, and not the control plane."""
    try:
        wire.check(value, shape, where)
    except wire.BadFrame as error:
        raise NotRecorded(str(error)) from error


class LedgerFollower:
    """The checkpoints of one ledger, each a continuation of the one before. `place` keeps the last
    one for the next launcher."""

    def __init__(self, place: Path) -> None:
        self._place, self._key = place, b""
        self.head: Head | None = None
        kept = files.read_json(place)
        self.kept = None if kept is None else Head(**kept)
        """The last one that is kept: at first, where the launcher before this one ended."""

    def pin(self, head: Mapping[str, Any], public_key: str, continues: Iterable[str]) -> None:
        """Take the first checkpoint and its key; a second time is refused, and so is a ledger that
        does not continue the one that was followed here before."""
        if self.head is not None:
            raise NotRecorded("a ledger is followed already")
        wire.check(head, HEAD, "head")
        key = _bytes(public_key)
        if len(key) != 32 or key_id(key) != head["key_id"]:
            raise NotRecorded("the key is not the one that signs the checkpoint")
        self._key = key
        signed = self._signed(head)
        if self.kept is not None and not _continues(self.kept, signed, continues):
            raise NotRecorded(
                f"the ledger, of {signed.size} entries, does not continue the {self.kept.size} "
                "that were followed here: it was put back or replaced. If that is intended "
                f"(fairlead audit restore), remove {self._place} as root"
            )
        self.head = signed
        self.keep()

    def keep(self) -> None:
        """For the next launcher, durably."""
        head = self.head
        if head is not None and head != self.kept:
            document = {name: getattr(head, name) for name in HEAD if name != "signature"}
            files.replace_json(self._place, document)
            self.kept = head

    def entries(self, evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The entries that the evidence proves, as they were recorded."""
        wire.check(evidence, EVIDENCE, "evidence")
        if len(evidence["entries"]) > ENTRIES_MAX:
            raise NotRecorded(f"more than {ENTRIES_MAX} entries are no evidence")
        last = self.head
        if last is None:
            raise NotRecorded("no ledger is followed yet")
        head = self._signed(evidence["head"])
        same = (head.ledger, head.epoch, head.key_id) == (last.ledger, last.epoch, last.key_id)
        if not same or not _continues(last, head, evidence["continues"]):
            raise NotRecorded(
                f"the checkpoint of {head.size} entries does not continue {last.size}"
            )
        found = [_proved(row, head) for row in evidence["entries"]]
        self.head = head
        if self.kept is None or head.size - self.kept.size >= KEEP_EVERY:
            self.keep()
        return found

    def _signed(self, row: Mapping[str, Any]) -> Head:
        head = Head(**{name: row[name] for name in HEAD if name != "signature"})
        try:
            key = Ed25519PublicKey.from_public_bytes(self._key)
            key.verify(_bytes(row["signature"]), head.to_sign())
        except (InvalidSignature, ValueError) as error:
            raise NotRecorded("the checkpoint is not signed by the ledger's key") from error
        return head


def _continues(old: Head, new: Head, proof: Iterable[str]) -> bool:
    return old.ledger == new.ledger and check_consistency(
        old_size=old.size,
        old_root=_bytes(old.root),
        new_size=new.size,
        new_root=_bytes(new.root),
        proof=[_bytes(node) for node in proof],
    )


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise NotRecorded("a hash or signature is written in hex") from error


def _proved(row: Mapping[str, Any], head: Head) -> dict[str, Any]:
    data = row["data"].encode()
    try:
        entry = json.loads(data)
        said = {name: entry[name] for name in _ENTRY}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotRecorded("an entry is a JSON object with its number") from error
    expect(said, _ENTRY, "entry")
    seq, proof = entry["seq"], tuple(_bytes(node) for node in row["proof"])
    if not check_inclusion(
        leaf=leaf_hash(data), index=seq - 1, size=head.size, proof=proof, root=_bytes(head.root)
    ):
        raise NotRecorded(f"entry {seq} is not in the ledger of {head.size} entries")
    return dict(entry)


Entries = Iterable[Mapping[str, Any]]


def check_start(job: Job, entries: Entries) -> int:
    """Raises `NotRecorded` unless the entries say this start, of this command, as this user; the
    number of the submission."""
    rows, submitted = list(entries), None
    started = any(
        row["kind"] == "run.phase"
        and (row["body"].get("job"), row["body"].get("run")) == (job.id, job.run)
        and row["body"].get("phase") == "Running"
        for row in rows
    )
    if not started:
        raise NotRecorded(f"no entry starts {job.id}")
    for row in rows:
        body = row["body"]
        named = (body.get("kind"), body.get("name"), body.get("generation")) == ("Run", job.run, 1)
        if row["kind"] == "object.applied" and named:
            submitted = row
    if submitted is None:
        raise NotRecorded(f"no entry submits {job.run}")
    _check_submission(job, submitted)
    check_devices(job.run, job.devices, rows)
    return int(submitted["seq"])


def check_devices(
    run: str, devices: Collection[str], entries: Entries, held: Collection[str] = ()
) -> None:
    """Raises `NotRecorded` unless the run holds these devices, or leases of it have them."""
    leased = set(held)
    for row in entries:
        if row["kind"] == "lease.open" and row["body"].get("run") == run:
            slots = row["body"].get("slots")
            expect(slots, [str], f"slots of entry {row['seq']}")
            leased.update(slots)
    if not set(devices) <= leased:
        raise NotRecorded(f"no lease of {run} has {min(set(devices) - leased)}")


def check_about(run: str, decision: str, entries: Entries, jobs: Collection[str]) -> None:
    """Raises `NotRecorded` unless the decision is recorded, and about this run.

    `jobs` are the starts of the run that were shown when they were carried out. Where the content
    of the entry was moved to an archive, the entry that says so stands for it: a run must be
    stoppable. On a ledger without an archive there is no such entry.
    """
    rows = list(entries)
    if decision in jobs:
        return
    cited = [row for row in rows if decision in (str(row["seq"]), row.get("plan_id"))]
    for row in rows:
        body = row["body"]
        if body.get("run") == run and (row in cited or str(body.get("outcome")) == decision):
            return
    if cited:
        raise NotRecorded(f"decision {decision!r} is not about {run}")
    if not any(_archives(row, decision) for row in rows):
        raise NotRecorded(f"no entry is decision {decision!r}")


def _archives(row: Mapping[str, Any], decision: str) -> bool:
    first, last = row["body"].get("first"), row["body"].get("last")
    return (
        row["kind"] == "ledger.archived"
        and decision.isascii()
        and decision.isdecimal()
        and type(first) is type(last) is int
        and first <= int(decision) <= last
    )


_SPEC: dict[str, Any] = {
    "owner": str,
    "command": ([str], None),
    "env": ({str: str}, None),
    "secretEnv": ({str: {"file": str}}, None),
    "workingDirectory": (str, None),
    "umask": (str, None),
    "terminal": (bool, None),
}


def _check_submission(job: Job, submitted: Mapping[str, Any]) -> None:
    """What is run is what was submitted, by the author of the entry, with the umask and the
    terminal, or none, that it asked for: who types into a command decides what it does, and who may
    write its files, what its user's later commands do. The rest of a run's spec gives no rights."""
    body = submitted["body"]
    expect({"spec": body.get("spec"), "uid": body.get("uid")}, _SUBMITTED, "submission")
    spec = {name: body["spec"].get(name) for name in _SPEC}
    expect(spec, _SPEC, "spec")
    secrets = spec["secretEnv"] or {}
    said = {
        "id": f"{job.run}.{body['uid'][:8]}.{job.id.rpartition('.')[2]}",
        "owner": spec["owner"],
        "command": tuple(spec["command"] or ()),
        "env": spec["env"] or {},
        "secret_env": {name: row["file"] for name, row in secrets.items()},
        "user": submitted["author"],
        "working_directory": spec["workingDirectory"],
        "umask": _octal(spec["umask"]),
        "terminal": spec["terminal"] is True,
    }
    for name, value in said.items():
        if getattr(job, name) != value:
            raise NotRecorded(f"{name} of {job.run} is not what was submitted")


def _octal(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 8)
    except ValueError as error:
        raise NotRecorded("the umask of the submission is no number") from error
