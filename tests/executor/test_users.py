"""A control plane that was taken over gets no command started as a user who did not ask for it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.api.access import Access
from fairlead.engine.gpu import Author
from fairlead.executor.evidence import NotRecorded
from fairlead.executor.local import LocalExecutor
from fairlead.executor.verifier import FOLLOWED, LedgerVerifier
from fairlead.ports.executor import Job
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Draft
from tests.engine.gpu.worlds import World, budget, node, run
from tests.executor.recorded import CONTROL, archive, bind, evidence_of, follow, show_users

ADA, BOB, MALLORY = "54411", "54412", "54413"
"""Users without an entry on this machine: their numbers are their names."""
COMMAND = {"command": ["sh", "-c", "id"]}


@pytest.fixture
def world() -> World:
    made = World()
    for user, owner in ((ADA, "a"), (BOB, "b")):
        bind(made, user, owner)
    made.plane = made.open()
    made.apply(node(), budget("a"), budget("b"))
    return made


def started(world: World, user: str, owner: str, name: str = "train") -> Job:
    """The start that a control plane records for whom it wants: it has the keys."""
    manifest = run(name, owner=owner, **COMMAND)
    world.plane.objects.apply(manifest, author=Author(user, frozenset({owner})))
    world.turn()
    return next(job for job in world.executor.jobs.values() if job.run == name)


ATTACKS = {
    "root, whose runs were not asked for": ("root", "a"),
    "root by its number": ("0", "a"),
    "a user of another owner": (BOB, "a"),
    "a user of none": (MALLORY, "a"),
    "the holder of the keys": (str(CONTROL), "a"),
}


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_a_recorded_start_as_another_user_is_refused(
    world: World, tmp_path: Path, attack: str
) -> None:
    """Each is in the signed history; none follows from a binding that is."""
    user, owner = ATTACKS[attack]
    job = started(world, user, owner)
    evidence, verifier = follow(world, tmp_path)
    try:
        verifier.start(job, evidence.of_start(job))
    except NotRecorded as refused:
        words = "holds the ledger's keys" if user == str(CONTROL) else f"{user!r} act for 'a'"
        assert words in str(refused)  # noqa: PT017 - root is refused by the executor
        return
    assert user in ("root", "0")
    executor = LocalExecutor(tmp_path / "x", kinds=("tree",))
    executor.start(job)
    (end,) = executor.poll()
    assert end.code == 126
    assert "running as root is not allowed" in (end.reason or "")


def test_a_binding_that_the_control_plane_makes_up_has_its_bounds(
    world: World, tmp_path: Path
) -> None:
    """It can record one for any user: not for a system account, and with --run-users only for
    members of that group. Both are the operator's word, and no entry changes them."""
    bind(world, "1", "a")
    bind(world, MALLORY, "a")
    world.plane = world.open()
    jobs = {user: started(world, user, "a", f"as-{user}") for user in ("1", MALLORY, ADA)}
    groups = {None: {MALLORY, ADA}, int(ADA): {ADA}, 1: {"1"}}
    for number, (group, allowed) in enumerate(groups.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        evidence, verifier = evidence_of(world), LedgerVerifier(folder, CONTROL, group)
        verifier.open(**evidence.opening(verifier.followed()))
        show_users(evidence, verifier)
        for user, job in jobs.items():
            if user in allowed:
                verifier.start(job, evidence.of_start(job))
            else:
                with pytest.raises(NotRecorded, match="--run-users"):
                    verifier.start(job, evidence.of_start(job))
            evidence.follow(verifier.size())


def test_who_is_bound_is_started_and_who_was_is_not(world: World, tmp_path: Path) -> None:
    """By the bindings at the time of the submission; an admin acts for all."""
    evidence, verifier = follow(world, tmp_path)

    def start(job: Job) -> None:
        show_users(evidence, verifier)
        verifier.start(job, evidence.of_start(job))
        evidence.follow(verifier.size())

    early = started(world, ADA, "a", "early")
    bind(world, ADA, gone=True)
    world.plane = world.open()
    late = started(world, ADA, "a", "late")
    start(early)
    with pytest.raises(NotRecorded, match="fairlead users bind"):
        start(late)
    bind(world, ADA, "b", admin=True)
    world.plane = world.open()
    start(started(world, ADA, "a", "again"))


def test_a_right_that_was_taken_away_stays_away(world: World, tmp_path: Path) -> None:
    """A control plane that is taken over later shows the binding and not its end: the launcher
    has both, over restarts."""
    bind(world, ADA, gone=True)
    world.plane = world.open()
    follow(world, tmp_path)
    job = started(world, ADA, "a")
    evidence, verifier = evidence_of(world), LedgerVerifier(tmp_path, CONTROL)
    verifier.open(**evidence.opening(verifier.followed()))
    (bound,) = [
        entry for entry in world.ledger.entries(kind="access.user") if entry.body["owners"] == ["a"]
    ]
    size = world.ledger.head().head.size
    shown = evidence._evidence([bound])
    for upto in (bound.seq, size):
        verifier.users(None, upto, shown)
        evidence.follow(verifier.size())
    with pytest.raises(NotRecorded, match="act for 'a'"):
        verifier.start(job, evidence.of_start(job))
    with pytest.raises(NotRecorded, match="there is no entry"):
        verifier.users(None, size + 1, shown)


def test_users_whose_entries_were_archived_are_taken_from_the_confirmed_state(
    world: World, tmp_path: Path
) -> None:
    """By the digest in an entry that is never archived; any other state is refused."""
    Access(world.ledger, lambda: world.now_ms).keep(every=1)
    last = world.ledger.head().head.size
    archive(world, tmp_path / "archive", last)
    job = started(world, ADA, "a")
    foreign = started(world, BOB, "a", "foreign")
    evidence, verifier = evidence_of(world), LedgerVerifier(tmp_path, CONTROL)
    verifier.open(**evidence.opening(verifier.followed()))
    (state, *_) = evidence.of_users()
    assert state.state is not None
    forged = json.loads(state.state)
    forged["users"][MALLORY] = {"name": MALLORY, "owners": ["a"], "admin": True}
    for other in (json.dumps(forged), "{", "[]"):
        with pytest.raises(NotRecorded, match="no entry has the digest"):
            verifier.users(other, state.upto, state.evidence)
    evidence, verifier = follow(world, tmp_path)
    verifier.start(job, evidence.of_start(job))
    evidence.follow(verifier.size())
    with pytest.raises(NotRecorded, match="act for 'a'"):
        verifier.start(foreign, evidence.of_start(foreign))
    early = replace(job, id="x")  # who was bound before the archive is not known: as it is now
    with pytest.raises(NotRecorded):
        verifier.start(early, evidence.of_start(early))


def test_the_users_of_a_long_ledger_are_taken_from_the_confirmed_state(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, with those that were recorded since."""
    monkeypatch.setattr("fairlead.executor.proofs._FOLD_MAX", 0)
    Access(world.ledger, lambda: world.now_ms).keep(every=1)
    bind(world, MALLORY, "a")
    world.plane = world.open()
    evidence = evidence_of(world)
    evidence.opening({"size": 0, "users": 0})
    assert [shown.state is None for shown in evidence.of_users()] == [False, True]
    evidence, verifier = follow(world, tmp_path)
    for user in (ADA, MALLORY):
        job = started(world, user, "a", f"of-{user}")
        show_users(evidence, verifier)
        verifier.start(job, evidence.of_start(job))
        evidence.follow(verifier.size())


def test_users_that_nothing_confirms_are_said_to_be_missing(world: World, tmp_path: Path) -> None:
    archive(world, tmp_path / "archive", 3)
    evidence = evidence_of(world)
    evidence.opening({"size": 0, "users": 0})
    with pytest.raises(PermanentFault, match="audit rebuild --archive"):
        list(evidence.of_users())


BODIES = {
    "owners as text": {"name": ADA, "owners": "a", "admin": False},
    "a number for admin": {"name": ADA, "owners": ["a"], "admin": 1},
    "no name": {"owners": ["a"], "admin": True},
}


@pytest.mark.parametrize("what", sorted(BODIES))
def test_a_malformed_binding_binds_nobody(tmp_path: Path, what: str) -> None:
    """It refuses what is shown, and does not end the launcher."""
    made = World()
    made.ledger.append([Draft(kind="access.user", time_ms=0, author="root", body=BODIES[what])])
    evidence, verifier = evidence_of(made), LedgerVerifier(tmp_path, CONTROL)
    verifier.open(**evidence.opening(verifier.followed()))
    with pytest.raises(NotRecorded):
        show_users(evidence, verifier)


def test_another_ledger_needs_the_operator_and_starts_without_users(
    world: World, tmp_path: Path
) -> None:
    """After `followed.json` was removed, nobody is bound by the ledger before."""
    follow(world, tmp_path)
    other = World()
    other.apply(node(), budget("a"))
    with pytest.raises(NotRecorded, match=f"remove {tmp_path / FOLLOWED} as root"):
        follow(other, tmp_path)
    os.unlink(tmp_path / FOLLOWED)
    job = started(other, ADA, "a")
    evidence, verifier = follow(other, tmp_path)
    with pytest.raises(NotRecorded, match="act for 'a'"):
        verifier.start(job, evidence.of_start(job))
