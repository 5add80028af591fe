"""`fairlead demo`: live on a terminal, a finite story in a pipe, a clean end."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from fairlead.cli.demo import farewell
from fairlead.cli.demo_view import Picture, draw, spark
from fairlead.core.canonical import canonical
from fairlead.schema.scenario import read_scenario
from fairlead.sim import Simulation, read_bundled

FAIRLEAD = [sys.executable, "-m", "fairlead"]
STAGE = read_scenario(read_bundled("bursty-mix"))


def test_in_a_pipe_it_tells_the_story_once(tmp_path: Path) -> None:
    """Some twenty lines, every act, exit code 0."""
    done = subprocess.run(
        [*FAIRLEAD, "demo"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert 15 <= len(lines) <= 35
    for act in STAGE.acts:
        assert any(line.endswith(f"-- {act.title}") for line in lines)
    for mode in ("uncongested:", "congested:", "overloaded:"):
        assert mode in done.stdout
    assert "\x1b" not in done.stdout


def test_what_it_says_to_try_next_leads_to_its_last_decision(tmp_path: Path) -> None:
    """The farewell's commands, typed: the same decision, from the same seed."""
    done = subprocess.run(
        [*FAIRLEAD, "demo", "--seconds", "77", "--seed", "3", "--policy", "nash"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    play, pick = (line.strip() for line in done.stdout.splitlines()[-2:])
    script = f"{play} && {pick}".replace("fairlead ", f"{sys.executable} -m fairlead ")
    again = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True, timeout=60
    )
    world = Simulation(STAGE, seed=3, policy="nash")  # type: ignore[arg-type]
    world.advance(77_000)
    result = canonical(json.loads(again.stdout.splitlines()[-1]))
    assert result == world.record.decisions[-1].result


@pytest.mark.parametrize("end", ["ctrl-c", "seconds"])
def test_on_a_terminal_it_is_live_and_ends_cleanly(end: str) -> None:
    """Ctrl-C is the way out: exit code 0, the screen restored, a line on what to try next."""
    bounded = ["--seconds", "20"] if end == "seconds" else []
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [*FAIRLEAD, "demo", "--speed", "50", *bounded],
        stdout=writer,
        stderr=writer,
        stdin=writer,
        env=environment,
    )
    os.close(writer)
    shown = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([reader], [], [], 0.2)[0]:
            try:
                shown += os.read(reader, 65536)
            except OSError:  # the process closed its side
                break
        if end == "ctrl-c" and b"UNCONGESTED" in shown and process.poll() is None:
            process.send_signal(signal.SIGINT)
            end = "sent"
    os.close(reader)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    assert "\x1b[?1049h" in text, "the alternate screen was entered"
    assert text.rindex("\x1b[?1049l") < text.rindex("try next")


@cache
def world_at(seconds: int) -> Simulation:
    world = Simulation(STAGE, seed=7, policy=None)
    world.advance(seconds * 1000)
    return world


def picture_text(seconds: int, width: int, height: int, *, colour: bool = True) -> str:
    world = world_at(seconds)
    console = Console(width=width, height=height, force_terminal=colour, no_color=not colour)
    with console.capture() as capture:
        console.print(draw(Picture(world, width, height, colour)))
    return capture.get()


@pytest.mark.parametrize("seconds", [1, 60, 190])
def test_a_picture_fits_its_terminal(seconds: int) -> None:
    """No line is wider than the terminal, none is wrapped, and it is not taller either."""
    for width in (60, 80, 130):
        text = re.sub(r"\x1b\[[0-9;]*m", "", picture_text(seconds, width, 24))
        lines = text.splitlines()
        assert max(len(line) for line in lines) <= width
        assert len(lines) <= 24


def test_without_colour_the_shapes_tell() -> None:
    """NO_COLOR: segments have brackets, used, granted and short are different marks."""
    text = picture_text(190, 80, 24, colour=False)
    assert "\x1b[3" not in text
    assert "[" in text
    for mark in ("█", "▒", "OVERLOADED", "train-a"):
        assert mark in text


def test_sparks_and_farewell() -> None:
    """Small change: heights from 0, dots for no value; something to try even before a decision."""
    assert spark([0, 1, None, 2]) == "▁▄·█"
    assert spark([]) == ""
    world = Simulation(STAGE, seed=7, policy=None)
    assert farewell(world, None) == ["try next: fairlead sim run bursty-mix --seed 7"]
