"""Rounds of a network: which one is promised, and when it is due."""

from fairlead.core.lottery import BeaconNetwork, BeaconRound

NETWORK = BeaconNetwork("drand", 1_000, 300, "ab" * 96)


def test_a_round_says_all_that_a_verifier_needs() -> None:
    promised = NETWORK.at(7)
    assert promised == BeaconRound("drand", 7, "ab" * 96, 1_000, 300)
    assert promised.due_ms == 1_000 + 6 * 300
    assert BeaconRound.of(promised.document()) == promised


def test_the_promised_round_is_surely_in_the_future() -> None:
    """Two rounds from the one that is under way, so that clocks may be a round apart."""
    assert NETWORK.round_after(1_000).round == 3
    assert NETWORK.round_after(1_299).round == 3
    assert NETWORK.round_after(1_300).round == 4
    assert NETWORK.round_after(0).round == 3, "before the first one"
