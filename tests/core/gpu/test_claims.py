"""Claims: what an owner's waiting runs keep of its own envelopes from others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.gpu import (
    AggregateCap,
    Book,
    Budget,
    Claimant,
    Envelope,
    Lending,
    Request,
    Usage,
    Window,
    claimed,
    cover,
)
from fairlead.core.gpu.claims import RUNS_MAX
from fairlead.core.units import HOUR_MS
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

GOLDEN = Path(__file__).parents[2] / "golden"

SHARED = Envelope("e", "H100", 8)
OWN = Budget("a", "a", ("lab",), (SHARED,))
GUEST = Budget("b", "b", ("lab",), (Envelope("other", "L4", 1),))


def granted(request: Request, *claimants: Claimant, book: Book | None = None) -> int:
    plan = cover(claimed(book or Book((OWN, GUEST), {}), claimants, 0), request, 0)
    return sum(line.gpus for line in plan.lines)


def test_a_guest_is_left_what_the_owner_does_not_claim() -> None:
    mine = Claimant("mine", Request("a", "H100", 3))
    for gpus, covered in ((5, True), (6, False)):
        assert bool(granted(Request("b", "H100", gpus), mine)) == covered
    assert granted(Request("a", "H100", 8), mine) == 8, "the owner itself is not bound by it"


def test_runs_that_are_alike_claim_as_many_as_are_covered() -> None:
    """Four of 2 fill the envelope, and the fifth claims nothing; a wide one does not fit beside."""
    guest = Request("b", "H100", 1)
    assert granted(guest, Claimant("m", Request("a", "H100", 2), runs=3)) == 1
    assert granted(guest, Claimant("m", Request("a", "H100", 2), runs=5)) == 0
    wide = Claimant("wide", Request("a", "H100", 9))
    assert granted(Request("b", "H100", 8), wide) == 8, "it claims nothing"
    both = (Claimant("m", Request("a", "H100", 6)), Claimant("n", Request("a", "H100", 3)))
    assert granted(Request("b", "H100", 2), *both) == 2


def test_what_others_pay_for_is_no_claim() -> None:
    """A run that its owner's family would have to pay for, in part, claims nothing of its own."""
    rich = Budget("c", "c", ("lab",), (Envelope("e", "H100", 8),))
    book = Book((OWN, GUEST, rich), {})
    both = Claimant("both", Request("a", "H100", 12))
    assert granted(Request("b", "H100", 16), both, book=book) == 16
    unknown = Claimant("unknown", Request("nobody", "H100", 1))
    assert granted(Request("b", "H100", 16), unknown, book=book) == 16


def test_claims_count_against_aggregate_caps_loans_and_hours() -> None:
    lends = Lending(allow=True, to=("s",))
    envelopes = tuple(
        Envelope(name, "H100", 8, max_hours_ms=40 * HOUR_MS, lending=lends) for name in "ef"
    )
    capped = Budget(
        "a", "a", (), envelopes, (AggregateCap("both", "H100", ("e", "f"), max_gpus=10),)
    )
    book = Book((capped,), {("a", "e"): Usage(gpus=1)})
    loan = Request("s", "H100", 3, sponsors=("a",), allow_borrow=True)
    mine = Claimant("mine", Request("a", "H100", 7))
    assert granted(loan, book=book) == 3
    assert granted(Request("s", "H100", 2, sponsors=("a",), allow_borrow=True), mine, book=book)
    assert not granted(loan, mine, book=book)
    hours = Request("s", "H100", 3, sponsors=("a",), allow_borrow=True, duration_ms=10 * HOUR_MS)
    long = Claimant("long", Request("a", "H100", 3, duration_ms=13 * HOUR_MS))
    assert granted(hours, book=book) == 3
    spent = Claimant("long", Request("a", "H100", 6, duration_ms=13 * HOUR_MS))
    assert granted(hours, long, book=book) == 3
    assert not granted(hours, spent, book=book)


def test_a_claim_is_for_as_long_as_the_run_asks() -> None:
    """GPUs in use, and the hours that it would hold; without a duration no hours."""
    book = Book((OWN, GUEST), {})
    for duration_ms in (None, 13 * HOUR_MS):
        mine = Claimant("mine", Request("a", "H100", 3, duration_ms=duration_ms))
        held = Usage(gpus=3, held_ms=3 * (duration_ms or 0))
        assert claimed(book, [mine], 0).claims == {("a", "e"): held}


def test_nothing_is_claimed_of_what_is_in_use_or_not_open() -> None:
    """What runs already is counted, and the time decides which envelopes are open."""
    mine = Claimant("mine", Request("a", "H100", 4))
    busy = Book((OWN, GUEST), {("a", "e"): Usage(gpus=5)})
    assert claimed(busy, [mine], 0).claims == {}
    later = replace(OWN, envelopes=(replace(SHARED, window=Window(100, 200)),))
    for now_ms, claims in ((99, 0), (100, 4), (200, 0)):
        found = claimed(Book((later, GUEST), {}), [mine], now_ms).claims
        assert sum(usage.gpus for usage in found.values()) == claims


def test_so_many_runs_that_are_alike_count() -> None:
    """Each is covered on its own: a record of more would keep who replays it busy for ever."""
    lines = (GOLDEN / "gpu.fund.jsonl").read_text().splitlines()
    document = next(
        row for row in (json.loads(line)["input"] for line in lines) if "claimants" in row
    )
    document["claimants"][0]["runs"] = RUNS_MAX + 1
    with pytest.raises(BadInput, match=r"claimants\[0\]\.runs"):
        KINDS["gpu.fund"].run(json.dumps(document).encode())
