"""`fairlead demo`: the CPU market live on a terminal, in virtual time; plain text in a pipe."""

import os
import sys
import time

import click

from fairlead.core.cpu import Policy
from fairlead.schema.scenario import ScenarioDocument, read_scenario
from fairlead.sim import World
from fairlead.sim.bundled import read_bundled
from fairlead.sim.entropy import SEED_MAX

STAGE = "bursty-mix"
FRAMES_PER_SECOND = 20
LINES_PER_ACT = 2


@click.command("demo")
@click.option("--seconds", type=click.IntRange(1), help="Stop after so many virtual seconds.")
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 1000),
    default=10.0,
    show_default=True,
    help="Virtual seconds per real second.",
)
@click.option("--seed", type=click.IntRange(0, SEED_MAX - 1_000_000), help="The world's chance.")
@click.option(
    "--policy",
    type=click.Choice([p.value for p in Policy]),
    help="Stay with this policy. Default: as the acts say.",
)
def command(*, seconds: int | None, speed: float, seed: int | None, policy: str | None) -> None:
    """Watch the CPU market of one node: the real decision code, simulated pods.

    On a terminal it runs until Ctrl-C, a new seed each time round; otherwise it prints the story
    once and ends.

    \b
      fairlead demo
      fairlead demo --speed 50 --policy nash
    """
    scenario = read_scenario(read_bundled(STAGE))
    used = scenario.seed if seed is None else seed
    chosen = None if policy is None else Policy(policy)
    # A terminal that cannot move its cursor is no stage.
    if sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        world = _live(scenario, used, chosen, speed=speed, seconds=seconds)
    else:
        world = _plain(scenario, used, chosen, seconds=seconds)
    for line in farewell(world, policy):
        click.echo(line)


def _live(
    scenario: ScenarioDocument,
    seed: int,
    policy: Policy | None,
    *,
    speed: float,
    seconds: int | None,
) -> World:
    """Show the world until it is stopped; returns the last one."""
    from rich.console import Console
    from rich.live import Live

    from fairlead.cli.demo_view import Picture, draw

    console, left = Console(), seconds
    world = World(scenario, seed=seed, policy=policy)
    note = f"Ctrl-C to stop · {speed:g} virtual seconds per second"

    def show() -> None:
        size, colour = console.size, not console.no_color
        live.update(draw(Picture(world, size.width, size.height, colour, note)), refresh=True)

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            due = time.monotonic()
            while left is None or left > 0:
                if world.clock.now_ms >= scenario.duration_s * 1000:
                    world = World(scenario, seed=world.seed + 1, policy=policy)
                # Faster than the eye: several virtual seconds per picture.
                steps = max(1, int(speed / FRAMES_PER_SECOND))
                world.advance(1000 * steps)
                left = None if left is None else left - steps
                show()
                due = max(due + steps / speed, time.monotonic() - 1)
                time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass  # the way to end it
    return world


def _plain(
    scenario: ScenarioDocument, seed: int, policy: Policy | None, *, seconds: int | None
) -> World:
    """The story of one round, a few lines per act."""
    world = World(scenario, seed=seed, policy=policy)
    click.echo(f"fairlead demo: {scenario.about} (seed {seed})")
    told, said = 0, 0
    for _ in range(min(seconds or scenario.duration_s, scenario.duration_s)):
        world.advance(1000)
        for line in world.record.story[told:]:
            act, mode = line.kind == "act", line.kind.startswith("mode")
            said = 0 if act else said + (not mode)
            # Modes are always told; of the rest the first of each act.
            if act or mode or (said <= LINES_PER_ACT and line.kind != "signal"):
                text = f"-- {line.text}" if act else line.text
                click.echo(f"{line.time_ms // 1000:5d} s  {text}")
        told = len(world.record.story)
    return world


def farewell(world: World, policy: str | None) -> list[str]:
    """What to try next: the last decision, by hand. The same seed leads to the same line."""
    decisions = world.record.decisions
    under = f" --policy {policy}" if policy else ""
    play = f"fairlead sim run {STAGE} --seed {world.seed}{under}"
    if not decisions:
        return [f"try next: {play}"]
    number = len(decisions)
    return [
        f"{number} decisions in {world.clock.now_ms // 1000} virtual seconds, every one replayed.",
        "try next, the last decision again by hand:",
        f"  {play} --no-plots",
        f"  sed -n {number}p out/{STAGE}/decisions.jsonl | fairlead decide cpu.allocate",
    ]
