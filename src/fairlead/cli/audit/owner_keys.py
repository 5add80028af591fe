"""Owners' private keys, which sign nonces: Ed25519, in files that only this user reads."""

from pathlib import Path
from urllib.parse import quote

import click
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.cli.input import reading
from fairlead.host import files
from fairlead.host.paths import user_state_directory

FOLDER = "owner-keys"


def key_path(owner: str) -> Path:
    return user_state_directory() / FOLDER / f"{quote(owner, safe='')}.pem"


def read_key(path: Path) -> Ed25519PrivateKey:
    """The key in a file; one that others can read is refused."""
    with reading(str(path)):
        data = files.read_private(path)
    try:
        found = serialization.load_pem_private_key(data, password=None)
    except ValueError as error:
        raise click.UsageError(f"{path} does not hold a private key: {error}") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise click.UsageError(f"{path} does not hold an Ed25519 key")
    return found


def make_key(path: Path, old: Ed25519PrivateKey | None) -> Ed25519PrivateKey:
    """A new key, durably beside the one that it is to replace, so that no crash loses it."""
    made = Ed25519PrivateKey.generate()
    keep_key(path if old is None else path.with_suffix(".new.pem"), made)
    return made


def keep_key(path: Path, key: Ed25519PrivateKey) -> None:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    with reading(str(path)):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(path, key.private_bytes(*form, serialization.NoEncryption()))


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
