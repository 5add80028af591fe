"""Ledgers and checkpoints of earlier versions are still read.

`golden/` holds a ledger that was written before entries were typed, with an open outcome, a run
that is being shrunk and a request with a step to go; and the checkpoint that was kept with it.
"""

from pathlib import Path

from fairlead.engine.gpu import Projection
from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.engine.gpu.entries import NewEntry, ObjectApplied, decode, encode
from fairlead.engine.gpu.state import PLACE, OutcomeStage
from fairlead.ledger.entries import parse
from tests.engine.gpu import worlds
from tests.engine.gpu.worlds import World, budget, envelope, node

GOLDEN = Path(__file__).with_name("golden")
LINES = (GOLDEN / "ledger-before-entries.jsonl").read_bytes().splitlines()
CHECKPOINT = (GOLDEN / "checkpoint-2.json").read_bytes()


def test_an_old_ledger_folds_to_its_old_checkpoint() -> None:
    """Byte for byte; so a start after an upgrade goes on where the last one was. Only which entry
    asked for an act was not kept: such an act cites the plan of its run's start."""
    projection = Projection()
    for line in LINES:
        projection.apply(parse(line, 0))
    kept = restore(CHECKPOINT)
    assert any(run.width_seq for run in projection.runs.values())
    for run in projection.runs.values():
        run.stop_seq = run.width_seq = None
    assert export(projection) == export(kept)
    assert kept.runs["elastic2"].reclaim is not None
    (request,) = kept.resolver.requests.values()
    assert (request.steps, request.outcome) == ([PLACE], max(kept.resolver.outcomes))
    assert [each.stage for each in kept.resolver.outcomes.values()] == [
        OutcomeStage.APPLIED,
        OutcomeStage.COMMITTED,
    ]


def test_a_budget_whose_window_leaves_the_calendar_is_still_read() -> None:
    """Its zone takes it there; no new budget is accepted so. A control plane that refused to read
    it did not start, and its operator could not apply another window."""
    world = World()
    world.apply(node(), budget("a"))
    window = {"start": "0001-01-01T00:00:00+01:00", "end": "9999-12-31T23:59:59-01:00"}
    spec = budget("a", "a", envelope(window=window))["spec"]
    stored = world.plane.committer.stored("Budget", "a")
    former = ObjectApplied("Budget", "a", stored.uid, 2, {}, spec)
    world.plane.committer.commit(lambda: [world.plane.committer.new(former)])
    world.plane = world.open()
    world.apply(worlds.run("r", gpus=1))
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    world.apply(budget("a"))
    assert world.headroom("a")["concurrencyUsed"] == 1


def test_an_old_entry_is_written_as_it_was() -> None:
    """Decoded and encoded again, every body has the same fields: exports depend on it."""
    seen = set()
    for line in LINES:
        entry = parse(line, 0)
        body = decode(entry)
        if body is None:
            continue
        seen.add(entry.kind)
        again = encode(NewEntry(body, entry.time_ms)).body
        left_out = {"input", "blobs"}
        assert again.keys() == entry.body.keys() - left_out, entry.kind
    assert len(seen) >= 15
