"""An owner with a key of its own, which signs its nonces, for tests."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.core.lottery.owner import key_message, nonce_message
from fairlead.engine.gpu import Author
from tests.engine.gpu.worlds import World


class OwnerKeys:
    """What the owner's own machine does."""

    def __init__(self, world: World, owner: str, author: Author, *, seed: int = 1) -> None:
        self._world, self.owner, self._author = world, owner, author
        self.key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public = self.key.public_key().public_bytes_raw()

    @property
    def ledger(self) -> str:
        return self._world.ledger.head().head.ledger

    def register(self, approval: str | None = None, author: Author | None = None) -> None:
        self._world.plane.contributions.add_key(
            self.owner,
            self.public.hex(),
            signature=self.sign_key(self.public),
            approval=approval,
            author=author or self._author,
        )

    def sign_key(self, public: bytes) -> str:
        return self.key.sign(key_message(self.ledger, self.owner, public)).hex()

    def sign_nonce(self, nonce: str, size: int) -> str:
        return self.key.sign(
            nonce_message(self.ledger, self.owner, bytes.fromhex(nonce), size)
        ).hex()

    def give(self, nonce: str, *, size: int | None = None, author: Author | None = None) -> None:
        size = self._world.projection.seq if size is None else size
        self._world.plane.contributions.add_nonce(
            self.owner,
            nonce,
            size=size,
            signature=self.sign_nonce(nonce, size),
            author=author or self._author,
        )
