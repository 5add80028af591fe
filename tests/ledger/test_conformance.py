"""The promises of the port, for every adapter alike."""

import threading
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

import pytest

from fairlead.core.audit import Frontier, check_consistency, check_inclusion, leaf_hash
from fairlead.core.canonical import NotCanonical, canonical
from fairlead.core.invariant import InvariantBroken
from fairlead.ledger.signatures import signature_holds
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.ledger import HeadMoved
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.worlds import World


@pytest.fixture
def ledger(world: World) -> Iterator[StoreWriter]:
    """A ledger that was just begun."""
    with world.open() as opened:
        yield opened


def test_a_ledger_begins_with_its_own_entry(ledger: StoreWriter) -> None:
    """It names itself and its key; the head is signed by that key."""
    (first,) = ledger.entries()
    assert (first.seq, first.kind, first.author) == (1, "ledger.created", "ledger")
    head = ledger.head()
    assert (head.head.size, head.head.epoch) == (1, 0)
    assert head.head.ledger == first.body["ledger"]
    assert head.head.root == Frontier().extend([leaf_hash(first.data)]).frontier.root().hex()
    (key,) = ledger.keys().values()
    assert key.hex() == first.body["public_key"]
    assert signature_holds(key, head.head.to_sign(), head.signature)
    assert not signature_holds(key, head.head.to_sign() + b" ", head.signature)


def test_what_is_appended_is_there_in_order(ledger: StoreWriter) -> None:
    """With every field, as canonical bytes, under consecutive numbers."""
    given = [
        draft(1),
        draft(2, plan_id=None, effect=None, input_digest="ab" * 32, version=3, reasons=()),
        draft(3, kind="lease.open", body={"name": 'é\n"𝄞', "list": [1, None, True, 0.5]}),
    ]
    entries = ledger.append(given)
    assert [entry.seq for entry in entries] == [2, 3, 4]
    for entry, wanted in zip(entries, given, strict=True):
        for name in (
            "kind",
            "time_ms",
            "author",
            "body",
            "plan_id",
            "effect",
            "input_digest",
            "version",
            "reasons",
        ):
            assert getattr(entry, name) == getattr(wanted, name)
        assert entry.data == canonical(
            {
                "author": wanted.author,
                "body": wanted.body,
                "effect": wanted.effect,
                "input_digest": wanted.input_digest,
                "kind": wanted.kind,
                "plan_id": wanted.plan_id,
                "reasons": wanted.reasons,
                "seq": entry.seq,
                "time_ms": wanted.time_ms,
                "version": wanted.version,
            }
        )
        assert ledger.entry(entry.seq) == entry
    assert ledger.entries(1) == entries
    assert ledger.entry(0) is None
    assert ledger.entry(5) is None
    latest = max(each.time_ms for each in ledger.entries(0))
    assert ledger.head().head.time_ms == latest, "the time of heads never goes back"


def test_entries_are_found_by_page_kind_and_plan(ledger: StoreWriter) -> None:
    """Every question a projection or a person asks."""
    ledger.append(drafts(0, 10))
    ledger.append([draft(10, kind="lease.open", plan_id="plan-3", effect="open")])
    ledger.append(
        [draft(11, plan_id="plan-3", effect=None), draft(12, plan_id="plan-3", effect=None)]
    )
    assert [entry.seq for entry in ledger.entries(3, 4)] == [4, 5, 6, 7]
    assert [entry.seq for entry in ledger.entries(0, 2, kind="lease.open")] == [12]
    assert [entry.seq for entry in ledger.entries(plan_id="plan-3")] == [5, 12, 13, 14]
    assert [entry.seq for entry in ledger.entries(5, 2, plan_id="plan-3")] == [12, 13]
    assert [e.seq for e in ledger.entries(plan_id="plan-3", kind="charge.post")] == [5, 13, 14]
    assert ledger.entries(14) == []
    assert ledger.entries(kind="no.such") == []
    last = ledger.last("charge.post")
    assert last is not None
    assert last.seq == 14
    assert ledger.last("no.such") is None
    with pytest.raises(InvariantBroken):
        ledger.entries(0, 0)


def test_a_number_beyond_any_ledger_is_no_entry(ledger: StoreWriter) -> None:
    """Whatever somebody types."""
    assert ledger.entry(10**30) is None
    assert ledger.entries(10**30) == []


def test_the_same_effect_is_never_recorded_twice(ledger: StoreWriter) -> None:
    """The second is answered with the first one's entry; in one batch too; the rest is recorded."""
    (first,) = ledger.append([draft(1)])
    again, other = ledger.append([draft(1, body={"number": 99}), draft(2)])
    assert again == first
    assert (other.seq, ledger.head().head.size) == (3, 3)
    size = ledger.head().head.size
    assert ledger.append([draft(1), draft(2)]) == [first, other]
    assert ledger.head().head.size == size
    one, two = ledger.append([draft(5), draft(5, body={"number": 6})])
    assert one == two
    assert one.body["number"] == 5
    # The same plan has other effects, and entries that are no effects at all.
    more = ledger.append([draft(1, effect="void"), draft(1, effect=None), draft(1, effect=None)])
    assert [entry.seq for entry in more] == [5, 6, 7]
    assert ledger.verify().ok


def test_an_expected_size_is_a_condition(ledger: StoreWriter) -> None:
    """Who decided on an old state is told so, and nothing is recorded."""
    ledger.append([draft(1)], expected_size=1)
    with pytest.raises(HeadMoved) as raised:
        ledger.append([draft(2)], expected_size=1)
    assert (raised.value.expected, raised.value.size) == (1, 2)
    assert ledger.head().head.size == 2
    ledger.append([draft(2)], expected_size=2)
    assert ledger.verify().ok


def test_every_head_proves_every_entry_and_every_earlier_head(ledger: StoreWriter) -> None:
    """Whatever the sizes of the batches."""
    heads = [ledger.head()]
    for number, count in enumerate((1, 2, 1, 5, 8, 3)):
        ledger.append(drafts(number * 10, count))
        heads.append(ledger.head())
    for signed in heads:
        head = signed.head
        for entry in ledger.entries(0, head.size):
            assert check_inclusion(
                leaf=leaf_hash(entry.data),
                index=entry.seq - 1,
                size=head.size,
                proof=ledger.inclusion(entry.seq, head.size),
                root=bytes.fromhex(head.root),
            )
    for old, new in pairwise(heads):
        assert check_consistency(
            old_size=old.head.size,
            old_root=bytes.fromhex(old.head.root),
            new_size=new.head.size,
            new_root=bytes.fromhex(new.head.root),
            proof=ledger.consistency(old.head.size, new.head.size),
        )
    assert ledger.verify(heads).ok
    for wrong in ((0, 1), (2, 1), (1, 99), (99, 99)):
        with pytest.raises(InvariantBroken):
            ledger.inclusion(*wrong)
    with pytest.raises(InvariantBroken):
        ledger.consistency(3, 99)


def test_a_bad_draft_records_nothing_of_its_batch(ledger: StoreWriter) -> None:
    """Our own mistakes stop before anything is written."""
    for bad, error in [
        (draft(2, body={"nan": float("nan")}), NotCanonical),
        (draft(2, body={"big": 2**53}), NotCanonical),
        (draft(2, author="\ud800"), NotCanonical),
        (draft(2, kind="Charge"), InvariantBroken),
        (draft(2, kind="ledger.created"), InvariantBroken),
        (draft(2, kind="key.rotated"), InvariantBroken),
        (draft(2, time_ms=-1), InvariantBroken),
        (draft(2, version=0), InvariantBroken),
        (draft(2, plan_id=None), InvariantBroken),
        (draft(2, plan_id="a\0b"), InvariantBroken),
        (draft(2, input_digest="AB" * 32), InvariantBroken),
    ]:
        with pytest.raises(error):
            ledger.append([draft(1), bad])
    with pytest.raises(InvariantBroken):
        ledger.append([])
    assert ledger.head().head.size == 1


def test_what_was_appended_is_there_after_opening_again(world: World) -> None:
    """The same entries, head and effects; and the log goes on."""
    with world.open() as ledger:
        entries = ledger.append(drafts(0, 7))
        head, first = ledger.head(), ledger.entry(1)
    with world.open() as ledger:
        assert ledger.head() == head
        assert ledger.entry(1) == first
        assert ledger.entries(1) == entries
        assert ledger.append([draft(3)]) == [entries[3]]
        assert [entry.seq for entry in ledger.append([draft(8)])] == [9]
        assert ledger.verify([head]).ok
    world.open().close()


def test_blobs_are_kept_by_their_content(world: World) -> None:
    """Once each, whatever they hold in their one line."""
    with world.open() as ledger:
        data = bytes(set(range(256)) - set(b"\n")) * 5_000
        digest = ledger.blob_put(data)
        assert digest == sha256(data).hexdigest()
        assert ledger.blob_put(data) == digest
        assert ledger.blob_get(ledger.blob_put(b"")) == b""
        assert ledger.blob_get("00" * 32) is None
        assert ledger.verify().ok
    with world.open() as ledger:
        assert ledger.blob_get(digest) == data


def test_a_snapshot_lets_a_projection_go_on(world: World) -> None:
    """The newest one of a name is kept beside the log; an entry records the digest of each."""
    with world.open() as ledger:
        assert ledger.snapshot_get("accounts") is None
        ledger.append(drafts(0, 3))
        ledger.snapshot_put("accounts", 2, b"old")
        ledger.snapshot_put("accounts", 4, b"new")
        ledger.snapshot_put("other", 1, b"")
        ledger.snapshot_put("other", 1, b"")
        assert [entry.kind for entry in ledger.entries(4)] == ["ledger.snapshot"] * 3
        assert ledger.verify().ok
    with world.open() as ledger:
        found = ledger.snapshot_get("accounts")
        assert found is not None
        assert (found.seq, found.state) == (4, b"new")


def test_a_key_is_rotated_by_an_entry_of_the_old_one(world: World) -> None:
    """Heads before and after verify, each with the key of its time."""
    with world.open() as ledger:
        ledger.append(drafts(0, 3))
        before = ledger.head()
        entry = ledger.rotate_key(time_ms=TIME_MS + 50, author="root")
        after = ledger.head()
        assert (entry.kind, entry.seq, entry.author) == ("key.rotated", 5, "root")
        assert entry.body["key_id"] == before.head.key_id
        assert entry.body["new_key_id"] == after.head.key_id != before.head.key_id
        assert set(ledger.keys()) == {before.head.key_id, after.head.key_id}
        ledger.append(drafts(3, 3))
    with world.open() as ledger:
        ledger.rotate_key(time_ms=TIME_MS + 60, author="root")
        assert len(ledger.keys()) == 3
        assert ledger.verify([before, after, ledger.head()]).ok


def test_a_restored_ledger_says_so(ledger: StoreWriter) -> None:
    """A signed entry begins an epoch; heads carry it; an older head is explained or refused."""
    ledger.append(drafts(0, 3))
    before = ledger.head()
    entry = ledger.begin_epoch(time_ms=TIME_MS + 9, author="root", reason="disk died", lost=before)
    assert (entry.kind, entry.body["epoch"], entry.body["size"]) == ("ledger.epoch", 1, 4)
    assert ledger.head().head.epoch == 1
    ledger.append(drafts(5, 3))
    assert ledger.verify([before, ledger.head()]).ok


def test_threads_append_without_losing_or_mixing(ledger: StoreWriter) -> None:
    """Four threads, batches of different sizes: whole batches, every draft once."""
    mine: dict[int, list[list[int]]] = {worker: [] for worker in range(4)}

    def work(worker: int) -> None:
        for turn in range(12):
            entries = ledger.append(drafts(worker * 10_000 + turn * 10, 1 + (worker + turn) % 5))
            mine[worker].append([entry.seq for entry in entries])

    threads = [threading.Thread(target=work, args=(worker,)) for worker in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batches in mine.values():
        for batch in batches:
            assert batch == list(range(batch[0], batch[0] + len(batch)))
        assert batches == sorted(batches)
    numbers = [seq for batches in mine.values() for batch in batches for seq in batch]
    assert sorted(numbers) == list(range(2, ledger.head().head.size + 1))
    assert ledger.verify().ok
