"""The master secret: one file, like a signing key; everything that is asked of it is derived.

So nothing has to be kept for each owner and outcome, a crash loses nothing, and replicas that
share the file agree. Who has it knows every draw beforehand: it is as secret as the signing key.
"""

import contextlib
import os
import secrets
import stat
from hmac import digest as hmac
from pathlib import Path

from fairlead.core.lottery.pseudonym import SECRET_BYTES
from fairlead.core.lottery.seed import lp
from fairlead.ledger.disk import sync_directory
from fairlead.ports.faults import PermanentFault

FILE = "chance.key"


class MasterChance:
    """A `Chance` whose answers follow from 32 bytes."""

    def __init__(self, master: bytes) -> None:
        if len(master) != SECRET_BYTES:
            raise PermanentFault(f"a master secret has {SECRET_BYTES} bytes, not {len(master)}")
        self._master = master

    def owner_secret(self, owner: str) -> bytes:
        """What an owner's pseudonyms are made with."""
        return hmac(self._master, lp(b"fairlead/owner-secret/v1") + lp(owner.encode()), "sha256")

    def entropy(self, chain: str, k: int) -> bytes:
        """The operator's part of outcome k of a scope."""
        parts = (b"fairlead/entropy/v1", bytes.fromhex(chain), k.to_bytes(8, "big"))
        return hmac(self._master, b"".join(map(lp, parts)), "sha256")


def open_master(directory: Path) -> MasterChance:
    """The master secret of a directory of keys; made, durably and for its owner alone, if new."""
    path = directory / FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another replica was quicker
                _create(path)
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise PermanentFault(f"{path} must be readable by its owner alone (chmod 600)")
            return MasterChance(file.read())
    except OSError as error:
        raise PermanentFault(f"cannot read {path}: {error.strerror}") from error


def _create(path: Path) -> None:
    """Whole under its name, or not there: a second replica must never read half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(draft, path)  # unlike a rename, never in place of another's
        sync_directory(path.parent)
    finally:
        draft.unlink()
