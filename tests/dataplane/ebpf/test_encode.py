"""A decision in the kernel's terms: pure functions, so also properties."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import layout
from fairlead.dataplane.ebpf.layout import (
    BUCKETS,
    NONE,
    TOKEN,
    budget_of,
    decode,
    encode,
    endpoint,
    next_word,
    rendezvous_buckets,
    spread,
    stamp_of,
    word_of,
)
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import Proto
from tests.dataplane.tables import table

SLOTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(0, 64), max_size=12)


@given(SLOTS)
def test_every_slot_is_there_and_evenly_apart(slots: dict[str, int]) -> None:
    """Σ is exact, and between two slots of a backend lie no more others than its share asks."""
    order = spread(slots)
    assert Counter(order) == Counter(slots)
    for id, share in slots.items():
        places = [at for at, other in enumerate(order) if other == id]
        gaps = [after - before for before, after in pairwise(places)]
        # Ties and rounding move a slot by at most one place per backend.
        assert all(gap <= len(order) / share + len(slots) + 1 for gap in gaps)


def test_ties_are_settled_by_id() -> None:
    assert spread({"b": 2, "a": 2}) == ["a", "b", "a", "b"]


@given(st.sets(st.text("abcdefgh", min_size=1, max_size=5), min_size=2, max_size=9))
def test_who_leaves_gives_up_its_own_buckets_only(members: set[str]) -> None:
    """Rendezvous: nobody else's flows move, and a newcomer takes from everybody."""
    before = rendezvous_buckets(tuple(sorted(members)))
    gone = min(members)
    after = rendezvous_buckets(tuple(sorted(members - {gone})))
    assert all(was in (now, gone) for was, now in zip(before, after, strict=True))
    assert before != after


def test_buckets_are_shared_about_evenly() -> None:
    """A quarter each of 1024 for four, within four standard deviations (14)."""
    shares = Counter(rendezvous_buckets(("a", "b", "c", "d")))
    assert all(abs(share - 256) <= 56 for share in shares.values()), shares


@given(SLOTS, st.integers(0, layout.EPOCH_MAX), st.integers(0, 40_000))
def test_a_table_says_what_it_was_told(slots: dict[str, int], epoch: int, turn: int) -> None:
    """Slots read back, stamps of this word only, fallback inside the group."""
    at = {id: 7 * number for number, id in enumerate(sorted(slots))}
    now = Active(
        table("web", epoch, slots, Admission(AdmissionMode.HARD, 3.7, 2.5), 9), turn or None
    )
    word = word_of(epoch, turn, 1)
    encoded = encode(now, word, at)
    back = decode(encoded, "web", at)
    assert (back.table.epoch, back.table.slots, back.decision) == (epoch, slots, now.decision)
    assert back.table.limits.concurrency == now.table.limits.concurrency
    assert back.table.limits.fallback.members == now.table.limits.fallback.members
    assert back.table.limits.admission == now.table.limits.admission
    assert back.table.limits.fallback.admission == now.table.limits.fallback.admission
    assert bytes(encode(back, word, at)) == bytes(encoded)
    assert encoded.total == sum(slots.values())
    assert {slot >> 32 for slot in encoded.slots[: encoded.total]} <= {stamp_of(word)}
    assert set(encoded.rendezvous) <= (set(at.values()) or {NONE})
    assert len(encoded.rendezvous) == BUCKETS


def test_flows_are_hashed_to_the_members_of_fallback_only() -> None:
    at = {"a": 5, "b": 6}
    encoded = encode(Active(table("web", 1, {"a": 3, "b": 0})), 2, at)
    assert set(encoded.rendezvous) == {5}
    encoded = encode(Active(table("web", 1, {"a": 0, "b": 0})), 2, at)
    assert set(encoded.rendezvous) == {5, 6}


@given(st.integers(0, layout.EPOCH_MAX), st.integers(0, 2**15 - 1), st.integers(0, 1))
def test_the_next_word_is_the_other_side_one_turn_later(epoch: int, turn: int, side: int) -> None:
    word = word_of(epoch, turn, side)
    after = next_word(word, epoch)
    assert word < 2**64
    assert after & 1 != side
    assert after >> 16 == epoch
    assert stamp_of(after) != stamp_of(word)


@pytest.mark.parametrize(
    ("rate", "burst", "expected"),
    [
        (100.0, 10.0, (100_000_000, 10 * TOKEN, 100_001)),
        (0.5, 1.0, (500_000, TOKEN, 2_000_001)),
        (0.0, 3.0, (0, 3 * TOKEN, 2**64 - 1)),
        (1e30, 1e30, (4 * 10**12, 4_000_000 * TOKEN, 1_000_001)),
        (None, None, (0, 0, 2**64 - 1)),
    ],
)
def test_budgets_are_exact_in_the_buckets_unit(
    rate: float | None, burst: float | None, expected: tuple[int, int, int]
) -> None:
    """Per second to 1e-12 per microsecond; the time to fill bounds every product below 2^64."""
    budget = budget_of(Admission(AdmissionMode.SOFT, rate, burst))
    assert (budget.rate, budget.cap, budget.full_us) == expected
    assert 2**63 + budget.cap < 2**64


def test_hard_carries_what_it_relaxes_to() -> None:
    hard = Admission(AdmissionMode.HARD, 1.0, 1.0)
    encoded = encode(Active(table("web", 1, {"a": 1}, hard, stored=(50.0, 20.0))), 2, {"a": 0})
    assert (encoded.mode, encoded.budget.cap) == (2, TOKEN)
    assert (encoded.fallback_mode, encoded.fallback.cap) == (1, 20 * TOKEN)
    encoded = encode(Active(table("web", 1, {"a": 1}, hard)), 2, {"a": 0})
    assert (encoded.fallback_mode, encoded.fallback.cap) == (1, TOKEN)


def test_addresses_of_both_families_are_one_kind_of_key() -> None:
    assert bytes(endpoint("10.1.2.3", 80, Proto.TCP)) == (
        bytes(10) + b"\xff\xff\x0a\x01\x02\x03" + b"\x00\x50" + b"\x06\x00"
    )
    assert bytes(endpoint("fd00::1", 443, Proto.UDP))[16:] == b"\x01\xbb\x11\x00"
