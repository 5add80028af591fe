"""The last head that this user saw of each server, and the check that the past is still the same.

A server that rewrites its ledger has to do so for everybody who ever asked it anything: every reply
carries the head, and the next one must be a continuation of the one kept here.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.core.audit import check_consistency
from fairlead.ports.faults import PermanentFault

Proof = tuple[bytes, ...] | None
FILE = "heads.json"


class LedgerChanged(PermanentFault):
    """The server's ledger does not continue the one that was seen before."""


def heads_file() -> Path:
    """$FAIRLEAD_HEADS; else in the XDG state directory of the user."""
    given = os.environ.get("FAIRLEAD_HEADS")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "fairlead" / FILE


class Heads:
    """Heads by server."""

    def __init__(self, server: str) -> None:
        self._server, self._path = server, heads_file()

    def see(self, ledger: str, head: str, prove: Callable[[int, int], Proof]) -> None:
        """Compare a reply's head with the one kept, keep the newer; raises `LedgerChanged`."""
        size, root = int(head.partition(":")[0]), head.partition(":")[2]
        kept = self._read().get(self._server)
        if kept is not None and kept["ledger"] == ledger:
            old, new = sorted([(kept["size"], kept["root"]), (size, root)])
            if old == new:
                return
            if not _continues(old, new, prove):
                raise LedgerChanged(
                    f"{self._server}: the ledger of size {size} does not continue the one of size "
                    f"{kept['size']} that was seen before; keep {self._path} and ask the operator"
                )
            if size < kept["size"]:
                return  # another command was faster and saw more
        elif kept is not None and _same_ledger(kept["ledger"], ledger):
            raise LedgerChanged(
                f"{self._server}: the ledger was restored from a backup; see `fairlead audit "
                f"verify`, then remove its head from {self._path}"
            )
        elif kept is not None:
            raise LedgerChanged(
                f"{self._server}: this is another ledger than the one seen before; if that is "
                f"meant, remove its head from {self._path}"
            )
        self._write({"ledger": ledger, "size": size, "root": root})

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_text()))
        except (OSError, ValueError):
            return {}

    def _write(self, head: dict[str, Any]) -> None:
        """Best effort: who has no place to keep heads can still work."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            draft.write_text(json.dumps({**self._read(), self._server: head}, indent=2) + "\n")
            draft.replace(self._path)


def _continues(
    old: tuple[int, str], new: tuple[int, str], prove: Callable[[int, int], Proof]
) -> bool:
    if old[0] == new[0]:
        return old[1] == new[1]
    proof = prove(old[0], new[0])
    return proof is not None and check_consistency(
        old_size=old[0], old_root=bytes.fromhex(old[1]), new_size=new[0],
        new_root=bytes.fromhex(new[1]), proof=proof,
    )  # fmt: skip


def _same_ledger(kept: str, seen: str) -> bool:
    """The id without the epoch."""
    return kept.rpartition(":")[0] == seen.rpartition(":")[0]
