"""Secrets in files that only their owner reads: signing keys (Ed25519) and the master secret.

A key is made when a ledger is, and by each rotation. The file is durable before the entry that
introduces the key, so a crash between the two leaves a key that is never used, not a ledger
without its key.
"""

import secrets
from contextlib import suppress
from hmac import digest as hmac
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.core.audit import Head, SignedHead, key_id
from fairlead.core.lottery.pseudonym import SECRET_BYTES
from fairlead.core.lottery.seed import lp
from fairlead.host import files
from fairlead.ledger.signatures import signature_holds
from fairlead.ports.faults import PermanentFault

MASTER = "chance.key"


class SecretKey:
    """One key that can sign."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self.key, self.sign = key, key.sign
        self.public_key = key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public_key)

    @classmethod
    def generate(cls) -> "SecretKey":
        return cls(Ed25519PrivateKey.generate())


class KeyDirectory:
    """Keys as files `KEY_ID.pem` in a directory of their own."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._loaded: dict[str, SecretKey] = {}

    def create(self) -> SecretKey:
        """A new key, in a file of mode 0600 that is durable when this returns."""
        key = SecretKey.generate()
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        pem = key.key.private_bytes(*form, serialization.NoEncryption())
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._path / f"{key.key_id}.pem", pem, new=True)
        except OSError as error:
            raise PermanentFault(f"cannot keep a key in {self._path}: {error.strerror}") from error
        return key

    def load(self, key_id: str) -> SecretKey:
        """The key of that name. One that others can read is refused: it may not be ours alone."""
        if key_id in self._loaded:
            return self._loaded[key_id]
        path = self._path / f"{key_id}.pem"
        try:
            key = serialization.load_pem_private_key(files.read_private(path), password=None)
        except FileNotFoundError as error:
            problem = f"the ledger is signed with key {key_id}, which is not in {self._path}"
            raise PermanentFault(problem) from error
        except (OSError, ValueError) as error:
            raise PermanentFault(f"cannot read the key {path}: {error}") from error
        if not isinstance(key, Ed25519PrivateKey) or SecretKey(key).key_id != key_id:
            raise PermanentFault(f"{path} does not hold the key of its name")
        self._loaded[key_id] = SecretKey(key)
        return self._loaded[key_id]


def sign_head(head: Head, signer: SecretKey) -> SignedHead:
    return SignedHead(head, signer.sign(head.to_sign()).hex())


class MasterEntropy:
    """The master secret: an `EntropySource` whose answers follow from 32 bytes in one file.

    So nothing has to be kept for each owner and outcome, a crash loses nothing, and replicas that
    share the file agree. Its holder knows every draw beforehand: it is as secret as a signing key.
    """

    def __init__(self, master: bytes) -> None:
        if len(master) != SECRET_BYTES:
            raise PermanentFault(f"a master secret has {SECRET_BYTES} bytes, not {len(master)}")
        self._master = master

    def owner_secret(self, owner: str) -> bytes:
        return hmac(self._master, lp(b"fairlead/owner-secret/v1") + lp(owner.encode()), "sha256")

    def entropy(self, chain: str, k: int) -> bytes:
        parts = (b"fairlead/entropy/v1", bytes.fromhex(chain), k.to_bytes(8, "big"))
        return hmac(self._master, b"".join(map(lp, parts)), "sha256")

    def signature_holds(self, public_key: bytes, data: bytes, signature: str) -> bool:
        return signature_holds(public_key, data, signature)


def open_master(directory: Path) -> MasterEntropy:
    """The master secret of a directory of keys; made, durably and for its owner alone, if new."""
    path = directory / MASTER
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with suppress(FileExistsError):  # another replica was quicker
                files.replace(path, secrets.token_bytes(SECRET_BYTES), new=True)
        return MasterEntropy(files.read_private(path))
    except OSError as error:
        raise PermanentFault(f"cannot read {path}: {error.strerror}") from error
