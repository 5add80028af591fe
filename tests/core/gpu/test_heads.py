"""Which runs are heads: one for each location and for each set of envelopes, so many of a kind."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Backfiller,
    BackfillPolicy,
    BackfillRequest,
    Gang,
    Pool,
    QueueHead,
    Release,
    backfill,
    due_first,
)
from fairlead.core.gpu.heads import choose
from fairlead.core.gpu.queue import HeldRun
from fairlead.core.reasons import QueueHold
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS

NOW_MS = 10**12
heads = st.lists(
    st.builds(
        QueueHead,
        st.text("abc", min_size=1, max_size=2),
        st.builds(
            Gang, st.just("H100"), st.integers(1, 9), location=st.sampled_from([{}, {"zone": "a"}])
        ),
        envelopes=st.lists(st.sampled_from("xyz"), max_size=2, unique=True).map(tuple),
        due_ms=st.none() | st.integers(NOW_MS - 3, NOW_MS),
    ),
    unique_by=lambda head: head.run,
    max_size=8,
).map(tuple)


def promise(head: QueueHead) -> int | None:
    """Wide gangs never fit."""
    return None if head.gang.gpus > 7 else NOW_MS + head.gang.gpus


def chosen(rows: tuple[QueueHead, ...], heads_max: int | None = 2) -> list[QueueHead]:
    return [head for head, _ in choose(rows, heads_max, promise)]


@given(heads)
def test_of_each_scope_the_first_is_a_head(rows: tuple[QueueHead, ...]) -> None:
    """Reservations that are due before all others; one without a start keeps no other from it."""
    order = [row for row in rows if row.due_ms is not None]
    order.sort(key=lambda row: (row.due_ms, row.run))
    order += [row for row in rows if row.due_ms is None]
    expected: list[QueueHead] = []
    for row in order:
        before = [head for head in expected if promise(head) is not None]
        alike = [head for head in before if bool(head.envelopes) is bool(row.envelopes)]
        if row.envelopes:
            free = not any(set(row.envelopes) & set(head.envelopes) for head in alike)
        else:
            free = row.gang.location not in [head.gang.location for head in alike]
        if free and len(alike) < 2:
            expected.append(row)
    assert chosen(rows) == expected


@given(heads, st.data())
def test_runs_that_are_no_heads_may_be_left_out_and_so_may_heads(
    rows: tuple[QueueHead, ...], data: st.DataObject
) -> None:
    """What is recorded are heads, but for the run that asks: all of them are heads again."""
    found = chosen(rows)
    assert chosen(tuple(found)) == found
    kept = [head for head in found if data.draw(st.booleans())]
    assert chosen(tuple(kept)) == kept


@given(heads)
def test_every_run_is_a_head_in_documents_of_former_versions(rows: tuple[QueueHead, ...]) -> None:
    assert chosen(rows, None) == list(rows)


def asked(*rows: QueueHead, heads_max: int | None) -> BackfillRequest:
    pool = Pool("p", {}, 2, (Release(8, NOW_MS - 9, NOW_MS + 100),))
    policy = BackfillPolicy(heads_max=heads_max)
    return BackfillRequest(NOW_MS, Backfiller("r", {"p": 2}, NOW_MS + 50), rows, (pool,), policy)


def test_a_backfill_names_the_heads_that_it_chose() -> None:
    """Of two runs in one location the first is promised its start, and the other nothing."""
    rows = (QueueHead("a", Gang("H100", 4)), QueueHead("b", Gang("H100", 10)))
    for heads_max, named in ((8, ["a"]), (None, ["a", "b"])):
        request = asked(*rows, heads_max=heads_max)
        found = backfill(request)
        assert [row.run for row in found.promises] == named
        document: dict[str, Any] = STYLE.from_core(request)
        result = KINDS["gpu.backfill"].run(json.dumps(document).encode()).result
        assert [row["run"] for row in result["promises"]] == named


def test_reservations_that_are_due_come_by_time() -> None:
    held = [
        HeldRun("b", QueueHold.RESERVATION_DUE, NOW_MS - 1),
        HeldRun("a", QueueHold.RESERVATION_DUE, NOW_MS - 1),
        HeldRun("c", QueueHold.RESERVATION_DUE, NOW_MS - 2),
        HeldRun("d", QueueHold.RESERVATION_NOT_DUE, NOW_MS + 1),
    ]
    assert due_first(held) == ["c", "a", "b"]
