"""A ledger that records what a control plane does, and a launcher's verifier that follows it."""

from pathlib import Path

from fairlead.compose.up import run_facts
from fairlead.executor.proofs import LedgerEvidence
from fairlead.executor.verifier import LedgerVerifier
from fairlead.ports.ledger import Draft, Ledger
from tests.engine.gpu.worlds import World
from tests.ledger.memory import MemoryLedger

CONTROL = 54_410
"""The user of the control plane."""


def bind(world: World, user: str, *owners: str, admin: bool = False, gone: bool = False) -> None:
    """As `fairlead users bind` records it."""
    record_user(world.ledger, user, *owners, admin=admin, gone=gone)


def record_user(
    ledger: Ledger, user: str, *owners: str, admin: bool = False, gone: bool = False
) -> None:
    body = {"name": user, "owners": list(owners), "admin": admin}
    more = {"gone": True} if gone else {}
    ledger.append([Draft(kind="access.user", time_ms=0, author="root", body={**body, **more})])


def evidence_of(world: World) -> LedgerEvidence:
    return LedgerEvidence(world.ledger, lambda run: run_facts(world.projection.runs.get(run)))


def follow(world: World, folder: Path) -> tuple[LedgerEvidence, LedgerVerifier]:
    """A launcher with this memory, that was shown all there is."""
    evidence, verifier = evidence_of(world), LedgerVerifier(folder, CONTROL)
    verifier.open(**evidence.opening(verifier.followed()))
    show_users(evidence, verifier)
    return evidence, verifier


def show_users(evidence: LedgerEvidence, verifier: LedgerVerifier) -> None:
    for shown in evidence.of_users():
        verifier.users(shown.state, shown.upto, shown.evidence)
        evidence.follow(verifier.size())


def archive(world: World, folder: Path, last: int) -> None:
    ledger = world.ledger
    assert isinstance(ledger, MemoryLedger)
    folder.mkdir()
    ledger.archive(folder, last=last, time_ms=world.now_ms, author="root")
