"""Two stages, odds and weighting."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.lottery import OwnerWeighting, Pot, Stage, first_odds, unfold, uniform_below
from tests.core.lottery import definition

SEED = bytes(range(32))
pots = st.dictionaries(
    st.text(max_size=3),
    st.lists(st.text(max_size=3), min_size=1, max_size=6, unique=True),
    max_size=6,
)


@given(pots, st.binary(min_size=32, max_size=32))
def test_everything_is_drawn_once_as_the_definition_draws_it(
    tokens: dict[str, list[str]], seed: bytes
) -> None:
    """Until the pot is empty; what each draw drew from is told with it."""
    pot, draws = Pot(tokens), []
    while pot:
        draws.append(pot.draw(seed, len(draws)))
    told = [
        {
            "index": draw.index,
            "owners": owners,
            "owner": draw.owner,
            "tokens": names,
            "token": draw.token,
        }
        for draw, owners, names in unfold(tokens, draws)
    ]
    assert told == definition.play(seed.hex(), tokens, sum(map(len, tokens.values())))


@given(pots, st.binary(min_size=32, max_size=32))
def test_under_tokens_the_owner_holds_the_drawn_token(
    tokens: dict[str, list[str]], seed: bytes
) -> None:
    """The owner stage draws among all tokens left; owners in order, each with all of its own."""
    pot, index = Pot(tokens, OwnerWeighting.TOKENS), 0
    left = {owner: sorted(names) for owner, names in tokens.items()}
    while pot:
        held = [owner for owner in sorted(left) for _ in left[owner]]
        owner = held[uniform_below(len(held), seed=seed, stage=Stage.OWNER, index=index)]
        names = left[owner]
        token = names[uniform_below(len(names), seed=seed, stage=Stage.TOKEN, index=index)]
        draw = pot.draw(seed, index)
        assert (draw.owner, draw.token) == (owner, token)
        names.remove(token)
        index += 1
    assert not any(left.values())


@given(pots)
def test_odds_add_up_and_are_fair(tokens: dict[str, list[str]]) -> None:
    """Among owners: 1/owners × 1/tokens; among tokens: the same for all."""
    every = sum(map(len, tokens.values()))
    odds = first_odds(tokens)
    assert len(odds) == every
    assert all(x.chance == Fraction(1, len(tokens) * len(tokens[x.owner])) for x in odds)
    assert [(x.owner, x.token) for x in odds] == sorted((x.owner, x.token) for x in odds)
    equal = first_odds(tokens, OwnerWeighting.TOKENS)
    assert {x.chance for x in equal} == ({Fraction(1, every)} if every else set())
    assert not every or sum(x.chance for x in odds) == sum(x.chance for x in equal) == 1


def test_odds_are_exact_fractions() -> None:
    """1/owners × 1/tokens of its owner."""
    odds = first_odds({"a": ["x", "y", "z"], "b": ["w"]})
    assert [(each.owner, each.token, each.chance) for each in odds][2:] == [
        ("a", "z", Fraction(1, 6)),
        ("b", "w", Fraction(1, 2)),
    ]
