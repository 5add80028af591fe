"""Mistakes that were accepted in silence: warned of in the answer, or refused."""

from functools import partial
from typing import Any

import pytest

from fairlead.engine.gpu import Config, Refused
from fairlead.schema.border import BadInput
from fairlead.schema.objects import read_manifest
from tests.engine.gpu.resolving import reserve
from tests.engine.gpu.worlds import ADMIN, LENIENT, World, budget, envelope, node, run


def warned(world: World, manifest: dict[str, Any]) -> list[str]:
    """The same as a preview and for good; not again for what is so already."""
    preview = world.plane.objects.apply(manifest, author=ADMIN, dry_run=True).warnings
    applied = world.plane.objects.apply(manifest, author=ADMIN).warnings
    assert preview == applied
    assert world.plane.objects.apply(manifest, author=ADMIN).warnings == ()
    return list(applied)


def test_a_run_that_would_wait_for_ever() -> None:
    """An unknown flavor or owner, and more GPUs than there are; a borrower needs no budget."""
    world = World()
    world.apply(node(devices=4), budget("a", "a", envelope()))
    assert warned(world, run("good", gpus=4)) == []
    (flavor,) = warned(world, run("typo", flavor="h10O"))
    assert flavor == "spec.flavor: no node has 'h10O'; did you mean 'H100'?"
    (width,) = warned(world, run("wide", gpus=5))
    assert width == "spec.totalGPUs: all nodes of H100 together have 4, not 5"
    (owner,) = warned(world, run("whose", owner="aa"))
    assert owner.startswith("spec.owner: 'aa' has no budget")
    plan = world.plane.objects.plan(run("planned", owner="aa"), author=ADMIN)
    assert plan["warnings"] == [owner], "a plan says it, too"
    assert warned(world, run("lent", owner="guest", funding={"allowBorrow": True})) == []
    (lender,) = warned(world, run("lend", funding={"allowBorrow": True, "sponsors": ["a", "b"]}))
    assert lender.startswith("spec.funding.sponsors[1]: 'b' has no budget")


def test_an_estimate_that_the_limit_does_not_allow() -> None:
    """A run that needs longer than its maxRuntime is ended before it is done."""
    world = World()
    world.apply(node(devices=4), budget("a", "a", envelope()))
    assert warned(world, run("fits", duration="1h", maxRuntime="60m")) == []
    (long,) = warned(world, run("long", duration="90m", maxRuntime="3600s"))
    assert long == "spec.duration: 90m is above maxRuntime, which ends the run after 1h"


def test_a_batch_is_judged_as_it_leaves_the_objects() -> None:
    """A run before its node and its budget, in one step."""
    made = World().plane.objects.apply_all(
        [run("first"), node(), budget("a", "a", envelope())], author=ADMIN
    )
    assert [change.warnings for change in made] == [(), (), ()]


def test_a_budget_that_pays_for_nothing() -> None:
    """A window that has ended, lending to no owner, a list without permission, another flavor."""
    world = World()
    world.apply(node())
    past = {"start": "2025-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}
    said = warned(
        world,
        budget(
            *("a", "a"),
            envelope(name="w1", window=past),
            envelope(name="w2", lending={"allow": True}),
            envelope(name="w3", lending={"allow": False, "to": ["b"]}),
            envelope(name="w4", flavor="H200"),
        ),
    )
    assert [line.partition(":")[0] for line in said] == [
        "spec.envelopes[0].window",
        "spec.envelopes[1].lending.to",
        "spec.envelopes[2].lending.allow",
        "spec.envelopes[3].flavor",
    ]


def test_the_budget_of_a_run_that_waits_stays() -> None:
    """Unless its owner has another one; the refusal names the run."""
    world = World()
    world.apply(budget("a", "a", envelope()), node(devices=1), run("waits", gpus=2))
    world.turn()
    with pytest.raises(Refused, match="run 'waits' waits for it") as refused:
        world.plane.objects.delete("Budget", "a", author=ADMIN)
    assert refused.value.reason == "BudgetNeeded"
    world.apply(budget("a2", "a", envelope()))
    world.plane.objects.delete("Budget", "a", author=ADMIN)


@pytest.mark.parametrize("how", ["deleted", "edited", "given away"])
def test_a_budget_of_another_flavor_does_not_replace_it(how: str) -> None:
    """Nor does it for a run that a reservation will start."""
    world = World(config=Config(preemption=LENIENT))
    other = budget("other", "a", envelope(flavor="L4"))
    world.apply(budget("a", "a", envelope()), other, node(devices=1))
    reserve(world, run("waits", gpus=2), 1)
    world.turn()
    changed = budget("a", "b") if how == "given away" else budget("a", "a", envelope(flavor="L4"))
    act = partial(world.apply, changed)
    if how == "deleted":
        act = partial(world.plane.objects.delete, "Budget", "a", author=ADMIN)
    with pytest.raises(Refused, match="no other of flavor 'H100'") as refused:
        act()
    assert refused.value.reason == "BudgetNeeded"
    world.apply(budget("a", "a", envelope(concurrency=1), envelope("more", flavor="L4")))
    world.plane.objects.delete("Budget", "other", author=ADMIN)


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("totalGpus", "totalGPUs"),
        ("gpus", "totalGPUs"),
        ("GPUs", "totalGPUs"),
        ("Duration", "duration"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(field: str, meant: str) -> None:
    manifest = run("r")
    manifest["spec"][field] = 1
    with pytest.raises(BadInput, match=f"did you mean {meant}"):
        read_manifest(manifest)


def test_an_unknown_field_like_no_other_is_just_unknown() -> None:
    manifest = run("r")
    manifest["spec"]["zzz"] = 1
    with pytest.raises(BadInput, match=r"is not a known field$"):
        read_manifest(manifest)
