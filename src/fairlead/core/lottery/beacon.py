"""Public networks that sign a round of randomness every few seconds, and the rounds of them.

A network is known by its public key. Fairlead knows that of drand's `quicknet`; an operator may
name another, which a verifier then has to be told too: the holder of a network's secret knows its
rounds in advance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.lottery.bls import signature_holds


@dataclass(frozen=True, slots=True)
class BeaconRound:
    """A round of a network that has not happened yet when it is committed to."""

    source: str
    round: int
    public_key: str = ""
    """Of the network, in hex; empty in the first protocol, where nothing was checked."""
    genesis_ms: int = 0
    period_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.source}/{self.round}"

    @property
    def due_ms(self) -> int:
        """When the network signs it, and not before."""
        return self.genesis_ms + (self.round - 1) * self.period_ms

    def holds(self, value: bytes) -> bool:
        """Whether the network signed this value for the round."""
        return signature_holds(bytes.fromhex(self.public_key), self.round, value)

    def document(self) -> dict[str, Any]:
        body: dict[str, Any] = {"source": self.source, "round": self.round}
        if self.public_key:
            more = {"genesis_ms": self.genesis_ms, "period_ms": self.period_ms}
            body |= {"public_key": self.public_key, **more}
        return body

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "BeaconRound":
        return cls(**body)


@dataclass(frozen=True, slots=True)
class BeaconNetwork:
    """A network with a round every so often, counted from 1."""

    source: str
    genesis_ms: int
    period_ms: int
    public_key: str

    def at(self, number: int) -> BeaconRound:
        return BeaconRound(self.source, number, self.public_key, self.genesis_ms, self.period_ms)

    def round_after(self, now_ms: int) -> BeaconRound:
        """The first round that surely begins in the future, clocks a round apart included."""
        return self.at(max(0, (now_ms - self.genesis_ms) // self.period_ms) + 3)


QUICKNET = BeaconNetwork(
    "drand-quicknet",
    1_692_803_367_000,
    3_000,
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c"
    "8c4b450b6a0a6c3ac6a5776a2d1064510d1fec758c921cc22b0e17e63aaf4bcb"
    "5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
)
NETWORKS = {QUICKNET.source: QUICKNET}
