"""What must hold of outcomes: one commitment and one answer each, and no draw a second time."""

from fairlead.core.lottery import Commitment, Reveal
from fairlead.sim.vopr.network import value_of
from fairlead.sim.vopr.violation import Violation


class Lottery:
    """Follows commitments and their answers."""

    def __init__(self) -> None:
        self._promised: dict[int, Commitment] = {}
        self._committed: set[tuple[str, int]] = set()
        self._answered: set[int] = set()
        self._last: dict[str, Reveal] = {}
        """The last answer of each chain."""

    def commit(self, seq: int, made: Commitment) -> None:
        """After a void the next outcome has the entropy, nonces and round of that one; after a
        draw it has others."""
        key = (made.chain, made.k)
        if key in self._committed:
            raise Violation("one-commit", f"chain {key[0]} was committed twice for {key[1]}")
        self._committed.add(key)
        self._promised[seq] = made
        last = self._last.get(made.chain)
        continues = last is not None and last.void is not None
        same = last is not None and (made.turn, made.luck(made.beacon)) == (last.turn, last.carry)
        again = last is not None and made.turn == last.turn
        if made.continued != continues or (continues and not same) or (again and not continues):
            raise Violation("one-draw", f"outcome {seq} draws turn {made.turn} once more")

    def answer(self, shown: Reveal) -> None:
        if shown.commit_seq in self._answered:
            raise Violation("one-draw", f"outcome {shown.commit_seq} has two answers")
        self._answered.add(shown.commit_seq)
        self._last[shown.chain] = shown
        promised = self._promised[shown.commit_seq].beacon
        if promised is None or (shown.void is not None and shown.beacon_value is None):
            return
        if shown.beacon_value != bytes.fromhex(value_of(promised.round)):
            raise Violation("beacon", f"outcome {shown.commit_seq} has not its round's value")
