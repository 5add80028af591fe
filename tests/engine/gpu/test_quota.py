"""What an owner keeps is known after every change and every restart."""

import pytest

from fairlead.core.gpu import QuotaPolicy
from fairlead.engine.gpu import Author, Config, Refused
from fairlead.engine.gpu.state import manifest_bytes
from tests.engine.gpu.worlds import ADMIN, ALICE, World, budget, node, run

BOB = Author("bob", frozenset({"b"}))


def kept(world: World) -> dict[str, int]:
    """Counted anew."""
    found: dict[str, int] = {}
    for stored in world.projection.of_kind("Run"):
        owner = str(stored.document["owner"])
        found[owner] = found.get(owner, 0) + manifest_bytes(stored)
    return found


def test_bytes_follow_every_change_and_a_restart() -> None:
    world = World()
    world.apply(node(), budget("a"), budget("b"), run("one", gpus=99), run("two", "b", gpus=99))
    world.apply({**run("one", gpus=99), "metadata": {"name": "one", "labels": {"k": "v" * 50}}})
    world.apply(run("one", gpus=99, funding={"allowBorrow": True}))
    assert world.projection.manifest_bytes == kept(world)
    world.plane.verbs.act("Run", "two", "cancel", author=ADMIN)
    world.plane.objects.delete("Run", "two", author=ADMIN)
    assert set(world.projection.manifest_bytes) == {"a"}
    for checkpointed in (False, True):
        if checkpointed:
            world.plane.committer.checkpoint()
        before = dict(world.projection.manifest_bytes)
        world.plane = world.open()
        assert world.projection.manifest_bytes == before == kept(world)


def test_a_batch_counts_as_a_whole_and_a_dry_run_too() -> None:
    """Each owner for itself; runs that have ended do not count; the operator is exempt."""
    world = World(config=Config(quota=QuotaPolicy(max_open_runs=2)))
    world.apply(node(), budget("a"), budget("b"))
    apply_all = world.plane.objects.apply_all
    for dry_run in (True, False):
        with pytest.raises(Refused) as refused:
            apply_all([run(f"r{i}") for i in range(3)], author=ALICE, dry_run=dry_run)
        assert (refused.value.reason, refused.value.path) == ("OpenRunsQuota", "manifests[2]")
    apply_all([run("r0"), run("r1")], author=ALICE)
    apply_all([run("b0", "b")], author=BOB)
    with pytest.raises(Refused):
        apply_all([run("r2")], author=ALICE)
    world.plane.verbs.act("Run", "r0", "cancel", author=ALICE)
    apply_all([run("r2")], author=ALICE)
    apply_all([run("r3")], author=ADMIN)


def test_one_owner_where_runs_have_the_rights_of_the_control_plane() -> None:
    """A second one is refused, as a budget's owner or a run's, in a batch and in a dry run."""
    world = World(config=Config(single_owner=True))
    apply_all = world.plane.objects.apply_all
    apply_all([node(), budget("a"), run("one")], author=ADMIN)
    for manifests in ([budget("b")], [run("two", "b")], [run("three"), run("four", "b")]):
        for dry_run in (True, False):
            with pytest.raises(Refused, match="with --trusting") as refused:
                apply_all(manifests, author=ADMIN, dry_run=dry_run)
            assert refused.value.reason == "SeveralOwners"
    apply_all([run("three")], author=ALICE)
