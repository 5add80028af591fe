"""Archives and outcomes: what a later export proves stays, and what is not over is not moved."""

from pathlib import Path

import pytest

from fairlead.compose.archive import archivable
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ledger.place import open_file
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import PermanentFault
from tests.core.lottery.network import signed
from tests.engine.gpu.resolving import outcomes, reserve, run
from tests.engine.gpu.test_protocol import ADMIN, BEACON, BOB, crowded
from tests.engine.gpu.worlds import START
from tests.ledger.memory import MemoryKeys, MemoryLedger
from verify import fairlead_verify


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_outcomes_after_an_archive_are_exported_and_verified(kind: str, tmp_path: Path) -> None:
    """The scope, the owners' secrets and the outcome before are proved by entries of long ago."""
    ledger: MemoryLedger | SqliteLedger = MemoryLedger(time_ms=START)
    if kind == "sqlite":
        ledger = SqliteLedger.open(tmp_path / "ledger.db", MemoryKeys())
    try:
        world = crowded(ledger=ledger)
        for name in ("winner", "again"):
            if name == "again":
                world.plane.verbs.act("Run", "winner", "cancel", author=ADMIN)
                world.turn(0.01)
                reserve(world, run("again", gpus=4), hours=1)
            world.plane.committer.checkpoint()
            ledger.archive(tmp_path, last=world.plane.seq, time_ms=world.now_ms, author="root")
            world.plane = world.open()
            world.turn(0.5)
            last = outcomes(world)[-1]
            assert last.stage is OutcomeStage.APPLIED
            for more in ({"author": BOB}, {"author": ADMIN, "public": True}):
                data = world.plane.outcome_reports.export(last.seq, **more)
                assert fairlead_verify.verify(data).code == 0, name
        assert [each.k for each in outcomes(world)] == [0, 1]
        assert ledger.verify().ok
        assert ledger.verify_archive(tmp_path).ok
    finally:
        ledger.close()


def test_an_open_outcome_is_not_archived(tmp_path: Path) -> None:
    """Or it could be neither drawn nor given up; what was before it may go."""
    with open_file(tmp_path / "ledger.db") as ledger:
        world = crowded(ledger=ledger, beacon=BEACON)
        world.turn(0.5)
        (outcome,) = outcomes(world)
    refused = pytest.raises(PermanentFault, match=f"up to {outcome.seq - 1}$")
    with refused, archivable(tmp_path / "ledger.db", outcome.seq):
        pytest.fail("it is open")
    with archivable(tmp_path / "ledger.db", outcome.seq - 1) as ledger:
        ledger.archive(tmp_path, last=outcome.seq - 1, time_ms=world.now_ms, author="root")
    with open_file(tmp_path / "ledger.db") as world.ledger:
        world.plane = world.open()
        world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
        assert outcomes(world)[0].stage is OutcomeStage.APPLIED
