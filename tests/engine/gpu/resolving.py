"""A world in which somebody has to give way: a box of GPUs, teams, and a resolver that means it."""

from typing import Any

from fairlead.engine.gpu import Config
from fairlead.ledger.keys import MasterEntropy
from fairlead.ports.ledger import Ledger
from tests.engine.gpu.worlds import LENIENT, START, World, budget, envelope, manifest, node, run

CHANCE = MasterEntropy(bytes(range(32)))
HOUR = 3_600_000


def world_of(
    *,
    ledger: Ledger | None = None,
    devices: int = 8,
    teams: str = "abc",
    gpus: int = 8,
    **config: Any,
) -> World:
    """One node, and a budget of its own for each team."""
    made = Config(**{"resolver": "enforce", "grace_ms": 10_000, "preemption": LENIENT, **config})
    world = World(ledger, config=made, chance=CHANCE)
    place = {"region": "west", "cluster": "a", "domain": "d1"}
    world.apply(node("n1", devices, location=place))
    for team in teams:
        world.apply(budget(team, team, envelope(concurrency=gpus)))
    return world


def reservation(name: str, of: str, hours: float = 0) -> dict[str, Any]:
    from fairlead.schema.times import format_time  # noqa: PLC0415 - only here

    start = format_time(START + int(hours * HOUR))
    return manifest("Reservation", name, {"run": of, "earliestStart": start})


def reserve(world: World, mine: dict[str, Any], hours: float = 0) -> None:
    """A run and its reservation, in one step."""
    from tests.engine.gpu.worlds import ADMIN  # noqa: PLC0415 - only here

    name = mine["metadata"]["name"]
    hours = max(hours, (world.now_ms - START) / HOUR)  # none in the past
    world.plane.objects.apply_all([mine, reservation(f"{name}-slot", name, hours)], author=ADMIN)


def outcomes(world: World) -> list[Any]:
    return list(world.projection.resolver.outcomes.values())


def phases(world: World) -> dict[str, str]:
    return {
        each["metadata"]["name"]: each["status"]["phase"]
        for each in world.plane.objects.list("Run")
    }


def closed(world: World) -> dict[str, tuple[str, Any]]:
    """Reason and outcome of every closed lease, by run and group."""
    return {
        entry.body["lease"]: (entry.body["reason"], entry.body.get("outcome"))
        for entry in world.log
        if entry.kind == "lease.close"
    }


__all__ = [
    "CHANCE",
    "HOUR",
    "closed",
    "outcomes",
    "phases",
    "reservation",
    "reserve",
    "run",
    "world_of",
]
