"""Objects: who may touch them, what may be changed, what stays."""

import msgspec
import pytest

from fairlead.engine.gpu import EditConflict, Forbidden, Refused
from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.engine.gpu.state import RareState, RunState
from fairlead.schema.border import BadInput
from tests.engine.gpu.worlds import ADMIN, ALICE, World, budget, envelope, lines, node, run


def test_a_tenant_acts_only_for_its_own_owners(world: World) -> None:
    """Runs of others, budgets and nodes are not a tenant's to touch."""
    world.apply(budget("a"), node(), run("other", owner="b"))
    world.plane.objects.apply(run("mine"), author=ALICE)
    for attempt in (
        lambda: world.plane.objects.apply(run("r", owner="b"), author=ALICE),
        lambda: world.plane.objects.apply(run("other", owner="a"), author=ALICE),
        lambda: world.plane.objects.apply(budget("a"), author=ALICE),
        lambda: world.plane.objects.apply(node(), author=ALICE),
        lambda: world.plane.objects.plan(run("r", owner="b"), author=ALICE),
        lambda: world.plane.verbs.act("Run", "other", "cancel", author=ALICE),
        lambda: world.plane.verbs.act("Node", "n1", "cordon", author=ALICE),
        lambda: world.plane.objects.delete("Budget", "a", author=ALICE),
        lambda: world.plane.objects.delete("Run", "other", author=ALICE),
    ):
        with pytest.raises(Forbidden):
            attempt()
    world.plane.objects.delete("Run", "mine", author=ALICE)


def test_an_expected_version_must_be_the_current_one(world: World) -> None:
    """Zero means: it must not exist; a resourceVersion in the manifest means the same check."""
    first = world.plane.objects.apply(budget("a"), author=ADMIN, expected_version=0)
    version = first.object["metadata"]["resourceVersion"]
    with pytest.raises(EditConflict):
        world.plane.objects.apply(budget("a"), author=ADMIN, expected_version=0)
    edited = budget("a", "a", envelope(concurrency=3))
    second = world.plane.objects.apply(edited, author=ADMIN, expected_version=version)
    assert (second.change, second.object["metadata"]["generation"]) == ("configured", 2)
    stale = {**edited, "metadata": {**edited["metadata"], "resourceVersion": version}}
    with pytest.raises(EditConflict):
        world.plane.objects.apply(stale, author=ADMIN)
    assert world.plane.objects.apply(edited, author=ADMIN).change == "unchanged"


def test_a_new_object_needs_a_free_name(world: World) -> None:
    """Version 0: the refusal says what has the name, and what its own user can do about it."""
    world.apply(budget("a"), node(), run("mine", "a"), run("theirs", "b"))
    world.turn()
    new = run("mine") | {"metadata": {"name": "mine", "resourceVersion": 0}}
    said = "the name 'mine' is taken by a run that is Running: give another name"
    with pytest.raises(EditConflict, match=f"^{said}$"):
        world.plane.objects.apply(new, author=ALICE)
    world.plane.verbs.act("Run", "mine", "cancel", author=ALICE)
    with pytest.raises(
        EditConflict, match=r"is Failed: .* free it with `fairlead delete run/mine`"
    ):
        world.plane.objects.apply(new, author=ALICE)
    other = run("theirs") | {"metadata": {"name": "theirs", "resourceVersion": 0}}
    with pytest.raises(EditConflict, match="'theirs' is taken by a run that is Pending"):
        world.plane.objects.apply(other, author=ALICE)
    with pytest.raises(EditConflict, match="'a' is taken"):
        world.plane.objects.apply(budget("a"), author=ADMIN, expected_version=0)


def test_what_was_read_can_be_applied(world: World) -> None:
    """get, edit, apply: status and what else the server wrote is ignored."""
    world.apply(budget("a"), node(), run("r"))
    for kind, name in (("Budget", "a"), ("Node", "n1"), ("Run", "r")):
        assert (
            world.plane.objects.apply(world.plane.objects.get(kind, name), author=ADMIN).change
            == "unchanged"
        )


def test_what_is_in_use_stays(world: World) -> None:
    """Payers of open leases, leased devices, running runs."""
    world.apply(budget("a", "a", envelope("x"), envelope("y")), node(), run("r", gpus=2))
    world.turn()
    for reason, attempt in (
        ("EnvelopeInUse", lambda: world.apply(budget("a", "a", envelope("y")))),
        ("EnvelopeInUse", lambda: world.plane.objects.delete("Budget", "a", author=ADMIN)),
        ("DeviceInUse", lambda: world.apply(node(devices=1))),
        ("DeviceInUse", lambda: world.apply(node(flavor="A100"))),
        ("DeviceInUse", lambda: world.plane.objects.delete("Node", "n1", author=ADMIN)),
        ("RunActive", lambda: world.plane.objects.delete("Run", "r", author=ADMIN)),
    ):
        with pytest.raises(Refused) as refused:
            attempt()
        assert refused.value.reason == reason
    world.apply(budget("a", "a", envelope("x")), node(devices=2))
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    for kind, name in (("Run", "r"), ("Budget", "a"), ("Node", "n1")):
        world.plane.objects.delete(kind, name, author=ADMIN, dry_run=True)
        assert world.plane.objects.delete(kind, name, author=ADMIN)["metadata"]["name"] == name
        assert world.plane.objects.get(kind, name) is None


def test_only_funding_of_a_run_can_be_changed(world: World) -> None:
    """The rest is what was submitted."""
    world.apply(run("r"))
    with pytest.raises(BadInput, match=r"spec\.totalGPUs: cannot be changed"):
        world.apply(run("r", gpus=2))
    changed = world.plane.objects.apply(run("r", funding={"allowBorrow": True}), author=ALICE)
    assert changed.change == "configured"


def test_equal_labels_are_kept_once(world: World) -> None:
    """Of thousands of runs with the same labels, in memory and after a restart."""
    for name in ("x", "y"):
        labelled = run(name)
        labelled["metadata"]["labels"] = {"team": "t", "sweep": "7"}
        world.apply(labelled)
    for projection in (world.projection, restore(export(world.projection))):
        first, second = (projection.objects["Run"][name] for name in ("x", "y"))
        assert first.label_names is second.label_names
        assert first.label_values is second.label_values
        assert first.labels == {"team": "t", "sweep": "7"}


def test_what_few_runs_have_is_kept_apart_and_recorded_with_the_rest(world: World) -> None:
    """A checkpoint has every field of a run at one place, as earlier releases write and read it."""
    world.apply(run("x"), run("y"), run("z"))
    world.projection.runs["x"].restarts = 3
    world.projection.runs["y"].restarts = 0
    written = export(world.projection)
    row = msgspec.json.decode(written)["runs"]["x"]
    fields = {*RunState.__struct_encode_fields__, *RareState.__struct_fields__} - {"rare"}
    assert row.keys() == fields
    assert (row["restarts"], row["cut"]) == (3, None)
    for projection in (world.projection, restore(written)):
        x, y, z = (projection.runs[name] for name in "xyz")
        assert [each.restarts for each in (x, y, z)] == [3, 0, 0]
        assert y.rare is z.rare
        assert x.rare is not y.rare
        assert export(projection) == written
    row |= {"rare": {"restarts": 9}, "restarts": 0}
    assert RunState.of_row(msgspec.json.encode(row)).restarts == 0, "no release writes it apart"


def test_parents_may_not_form_a_circle(world: World) -> None:
    """Across all budgets."""
    world.apply(budget("a", "a", parents=["b"]))
    with pytest.raises(BadInput, match=r"spec\.parents: form a circle: a > b > a"):
        world.apply(budget("b", "b", parents=["a"]))


def test_dry_runs_write_nothing(world: World) -> None:
    """They answer with the object as it would be, and what it would lead to."""
    world.apply(budget("a"), node())
    size = len(world.log)
    shown = world.plane.objects.apply(run("r", gpus=3), author=ALICE, dry_run=True)
    assert (shown.change, shown.object["spec"]["totalGPUs"]) == ("created", 3)
    assert lines(shown.preview) == [("a", 3, False)]
    assert shown.preview["placement"]["groups"][0]["active"] == ["n1#0", "n1#1", "n1#2"]
    assert world.plane.objects.apply(node(), author=ADMIN, dry_run=True).preview == {"leases": []}
    with pytest.raises(BadInput, match="only runs are planned"):
        world.plane.objects.plan(budget("a"), author=ADMIN)
    assert len(world.log) == size
