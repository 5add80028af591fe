"""`fairlead demo`: the CPU market live on a terminal, in virtual time; plain text in a pipe."""

import os
import sys
import time

import click

from fairlead.cli.options import Integer, Number, option
from fairlead.cli.terminal import raw
from fairlead.core.cpu import Policy
from fairlead.schema.scenario import read_scenario
from fairlead.sim import Simulation, read_bundled
from fairlead.sim.clock import SEED_MAX

SCENARIO = "bursty-mix"
FRAMES_PER_SECOND = 20
LINES_PER_ACT = 2


@click.command("demo")
@option("--seconds", Integer(1), "Stop after this many virtual seconds.")
@option("--speed", Number(0.1, 1000), "Virtual seconds per real second.", default=10.0)
@option("--seed", Integer(0, SEED_MAX - 1_000_000), "Random seed.")
@option(
    "--policy",
    click.Choice([p.value for p in Policy]),
    "Use one policy [default: as the acts say].",
)
def command(*, seconds: int | None, speed: float, seed: int | None, policy: str | None) -> None:
    """Watch the CPU market of one simulated node.

    The decision code is real, the pods are simulated. On a terminal it runs until Ctrl-C, with a
    new seed each round; in a pipe it prints the events of one round and ends.

    \b
      fairlead demo
      fairlead demo --speed 50 --policy nash
    """
    scenario = read_scenario(read_bundled(SCENARIO))
    used = scenario.seed if seed is None else seed
    chosen = None if policy is None else Policy(policy)
    simulation = Simulation(scenario, seed=used, policy=chosen)
    # A terminal that cannot move its cursor shows no live picture.
    if sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        simulation = _live(simulation, chosen, speed=speed, seconds=seconds)
    else:
        _plain(simulation, seconds)
    for line in farewell(simulation, policy):
        click.echo(line)


def _live(
    simulation: Simulation, policy: Policy | None, *, speed: float, seconds: int | None
) -> Simulation:
    """Show simulations until it is stopped; returns the last one."""
    from rich.console import Console
    from rich.live import Live

    from fairlead.cli.demo_view import Picture, draw

    console, left, scenario = Console(file=raw(sys.stdout)), seconds, simulation.scenario
    note = f"Ctrl-C to stop · {speed:g} virtual seconds per second"

    def show() -> None:
        size, colour = console.size, not console.no_color
        live.update(draw(Picture(simulation, size.width, size.height, colour, note)), refresh=True)

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            due = time.monotonic()
            while left is None or left > 0:
                if simulation.clock.now_ms >= scenario.duration_s * 1000:
                    simulation = Simulation(scenario, seed=simulation.seed + 1, policy=policy)
                # At high speed, several virtual seconds per picture.
                steps = max(1, int(speed / FRAMES_PER_SECOND))
                simulation.advance(1000 * steps)
                left = None if left is None else left - steps
                show()
                due = max(due + steps / speed, time.monotonic() - 1)
                time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass  # the way to end it
    return simulation


def _plain(simulation: Simulation, seconds: int | None) -> None:
    """Print the events of one round, a few lines per act."""
    scenario = simulation.scenario
    click.echo(f"fairlead demo: {scenario.about} (seed {simulation.seed})")
    printed, lines = 0, 0
    for _ in range(min(seconds or scenario.duration_s, scenario.duration_s)):
        simulation.advance(1000)
        for line in simulation.record.events[printed:]:
            act, mode = line.kind == "act", line.kind.startswith("mode")
            lines = 0 if act else lines + (not mode)
            # Modes are always printed; of the rest the first of each act.
            if act or mode or (lines <= LINES_PER_ACT and line.kind != "signal"):
                text = f"-- {line.text}" if act else line.text
                click.echo(f"{line.time_ms // 1000:5d} s  {text}")
        printed = len(simulation.record.events)


def farewell(simulation: Simulation, policy: str | None) -> list[str]:
    """A command to try next: the last decision, by hand. The same seed gives the same line."""
    decisions = simulation.record.decisions
    under = f" --policy {policy}" if policy else ""
    play = f"fairlead sim run {SCENARIO} --seed {simulation.seed}{under}"
    if not decisions:
        return [f"try next: {play}"]
    number, seconds = len(decisions), simulation.clock.now_ms // 1000
    return [
        f"{number} decisions in {seconds} virtual seconds, every one replayed.",
        "try next, the last decision again by hand:",
        f"  {play} --no-plots",
        f"  sed -n {number}p out/{SCENARIO}/decisions.jsonl | fairlead decide cpu.allocate",
    ]
