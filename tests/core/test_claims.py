"""Claims of a water-fill: where each one starts and stops to rise."""

from fairlead.core.claims import Claim, events_of, reach, rising_at_start


def test_a_claim_rises_between_its_bounds() -> None:
    """Held up by its low bound it starts later; the events say at which level times its rate."""
    claims = [Claim(0, 2, 0, 10), Claim(3, 1, 5, 9), Claim(0, 0, 0, 4)]
    starts = [0, 5, 0]
    events = events_of(claims, starts)
    assert events == [1, 3, 2]
    assert [reach(claims, event) for event in events] == [10, 6, 2]
    assert rising_at_start(claims, starts, events) == 2, "the second is held up, the third is still"


def test_a_claim_that_is_at_its_high_bound_has_no_events() -> None:
    assert events_of([Claim(0, 1, 5, 5), Claim(0, 1, 4, 5)], [5, 4]) == [3, 2]


def test_a_claim_has_no_weight_unless_it_is_given_one() -> None:
    """The doubles are for rough work only, which sets its own bounds."""
    claim = Claim(0, 3, 0, 5)
    assert (claim.weight, claim.pace, claim.least, claim.most) == (0.0, 0.0, 0.0, 0.0)
    assert claim.rises is False
    assert Claim(0, 3, 0, 5, weight=2.0, demand=0.5).pace == 1.0
