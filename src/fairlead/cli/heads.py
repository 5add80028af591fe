"""The last head that this user saw of each server, and the check that the past is still the same.

A server that rewrites its ledger has to do so for everybody who ever asked it anything: every reply
carries the signed head, and the next one must be a continuation of the one kept here, signed with
a key that was known before or that such a key introduced.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fairlead.cli.head_check import follow_keys, is_signed_by
from fairlead.core.audit import SignedHead, check_consistency
from fairlead.ports.faults import PermanentFault

FILE = "heads.json"


class LedgerChanged(PermanentFault):
    """The server's ledger is not, or cannot show that it is, the one that was seen before."""


class Prover(Protocol):
    """The server's side: proofs, or None where it has none."""

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        """That the log of the old size begins the one of the new size."""

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        """The entries about the ledger itself, each proved to be in the log of that size."""


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of one server: its newest head, as evidence, and the keys it is believed by."""

    ledger: str
    epoch: int
    size: int
    root: str
    time_ms: int
    key_id: str
    signature: str
    keys: dict[str, str]


def heads_file() -> Path:
    """$FAIRLEAD_HEADS; else in the XDG state directory of the user."""
    given = os.environ.get("FAIRLEAD_HEADS")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "fairlead" / FILE


def all_seen() -> dict[str, Seen]:
    """Heads by server."""
    path = heads_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Seen])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise PermanentFault(
            f"cannot read the heads that were seen before, {path}: {error} (remove the file to "
            "begin anew, or name another in FAIRLEAD_HEADS)"
        ) from error


def forget(server: str) -> bool:
    """Begin anew with a server; whether there was anything to forget."""
    seen = all_seen()
    if seen.pop(server, None) is None:
        return False
    _write(seen)
    return True


class Heads:
    """The heads of one server."""

    def __init__(self, server: str) -> None:
        self._server = server

    def see(self, signed: SignedHead | None, prover: Prover) -> None:
        """Check a reply's head against the one kept, keep the newer; raises `LedgerChanged`."""
        seen = all_seen()
        kept = seen.get(self._server)
        if signed is None and kept is None:
            raise PermanentFault(f"{self._server} does not answer like a Fairlead control plane")
        if signed is None:
            raise self._alarm("its reply carries no signed head", kept, None)
        head = signed.head
        if kept is None:
            keys = follow_keys(signed, prover.own_entries(head.size))
        else:
            self._same_ledger(kept, signed)
            if (kept.size, kept.root, kept.signature) == (head.size, head.root, signed.signature):
                return
            keys = self._known_keys(kept, signed, prover)
        if isinstance(keys, str):
            raise self._alarm(keys, kept, signed)
        if kept is not None:
            self._continues(kept, signed, prover)
            if head.size < kept.size:
                return  # another command was faster and saw more
        document = {**signed.as_document(), "keys": keys}
        _write({**seen, self._server: msgspec.convert(document, Seen)})

    def _same_ledger(self, kept: Seen, signed: SignedHead) -> None:
        head = signed.head
        if kept.ledger != head.ledger:
            raise self._alarm("this is another ledger than the one seen before", kept, signed)
        if kept.epoch != head.epoch:
            raise self._alarm("the ledger was restored from a backup", kept, signed)

    def _known_keys(self, kept: Seen, signed: SignedHead, prover: Prover) -> dict[str, str] | str:
        """The keys to believe from now on; or what is wrong."""
        head = signed.head
        key = kept.keys.get(head.key_id)
        if key is not None:
            if head.size >= kept.size and head.key_id != kept.key_id:
                return f"its head is signed with key {head.key_id}, which was replaced"
            holds = is_signed_by(signed, key)
            return kept.keys if holds else "the signature of its head does not hold"
        keys = follow_keys(signed, prover.own_entries(signed.head.size))
        if isinstance(keys, dict) and not kept.keys.items() <= keys.items():
            return "its head is signed with a key that none of the known ones introduced"
        return keys

    def _continues(self, kept: Seen, signed: SignedHead, prover: Prover) -> None:
        head = signed.head
        old, new = sorted([(kept.size, kept.root), (head.size, head.root)])
        holds = old == new
        if old[0] < new[0]:
            proof = prover.consistency(old[0], new[0])
            holds = proof is not None and check_consistency(
                old_size=old[0],
                old_root=bytes.fromhex(old[1]),
                new_size=new[0],
                new_root=bytes.fromhex(new[1]),
                proof=proof,
            )
        if not holds:
            what = f"the log of {head.size} entries does not continue the one of {kept.size}"
            raise self._alarm(what, kept, signed)

    def _alarm(self, what: str, kept: Seen | None, now: SignedHead | None) -> LedgerChanged:
        """Say it so that nobody overlooks it, and keep both heads: together they are evidence."""
        lines = [f"THE LEDGER OF {self._server} CANNOT BE BELIEVED: {what}"]
        if kept is not None:
            lines.append(f"  seen before: {kept.size} entries, root {kept.root}, key {kept.key_id}")
        if now is not None:
            head = now.head
            lines.append(f"  now:         {head.size} entries, root {head.root}, key {head.key_id}")
        evidence = _keep_evidence(self._server, what, kept, now)
        if evidence is not None:
            lines.append(f"  both heads are kept in {evidence}; ask the operator what happened")
        lines.append(
            "  when you know that it is meant (a new installation, a restored backup):\n"
            f"    fairlead heads forget {self._server}"
        )
        return LedgerChanged("\n".join(lines))


def _keep_evidence(
    server: str, what: str, kept: Seen | None, now: SignedHead | None
) -> Path | None:
    if kept is None or now is None:
        return None
    path = heads_file().with_name(f"evidence-{kept.size}-{now.head.size}.json")
    document = {
        "server": server,
        "problem": what,
        "before": msgspec.to_builtins(kept),
        "now": now.as_document(),
    }
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path
    return None


def _write(seen: dict[str, Seen]) -> None:
    """Best effort: who has no place to keep heads can still work."""
    path = heads_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(seen), indent=2) + b"\n")
        draft.replace(path)
