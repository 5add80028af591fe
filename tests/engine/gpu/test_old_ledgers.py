"""Ledgers and checkpoints of earlier versions are still read.

`golden/` holds a ledger that was written before entries were typed, with an open outcome, a run
that is being shrunk and a request with a step to go; and the checkpoint that was kept with it.
"""

from pathlib import Path

from fairlead.engine.gpu import Projection
from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.engine.gpu.entries import NewEntry, decode, encode
from fairlead.engine.gpu.state import PLACE, OutcomeStage
from fairlead.ledger.entries import parse

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
