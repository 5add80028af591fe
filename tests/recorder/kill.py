"""Kills writers at random moments and checks their promises; the test runs a few, the soak many."""

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from fairlead.ports.recorder import Mark, RecordEntry
from fairlead.recorder import FileRecorder, read, verify
from fairlead.recorder.chain import RecordChain
from fairlead.recorder.reader import links, segments
from tests.recorder.victim import RING


def kill_writers(directory: Path, *, count: int, seed: int) -> dict[str, int]:
    """`count` writers in a row on one record, each killed with SIGKILL; returns what was counted.

    Every acknowledged entry is there with its documents after each death, every acknowledged mark
    holds, and the next writer goes on.
    """
    rng = random.Random(seed)
    entries: dict[int, int] = {}
    marked: set[int] = set()
    torn = 0
    for _ in range(count):
        # Numbers that were not acknowledged may be there too; those of the next writer differ.
        first = max(entries.values(), default=0) + 1_000
        lines = rng.randrange(8)
        _let_live(directory, first, entries, marked, lines=lines, seconds=rng.uniform(0, 0.06))
        found = {entry.seq: entry.input["number"] for entry in read(directory)}
        lost = entries.items() - found.items()
        assert not lost, f"seed {seed}: acknowledged and lost: {sorted(lost)[:5]}"
        newest = max(directory.glob("segment-*.jsonl"), default=None)
        torn += newest is not None and not newest.read_bytes().endswith(b"\n")
    with FileRecorder(directory, **RING) as recorder:
        unapplied = {entry.seq for entry in recorder.unapplied()}
        assert not unapplied & marked, f"seed {seed}: acknowledged marks were lost"
        assert unapplied == _without_mark(directory), f"seed {seed}: not all is there to be healed"
        head = recorder.head()
    seen = verify(directory, anchors=[head])
    return {"kills": count, "acknowledged": len(entries), "found": seen.entries, "torn": torn}


def _without_mark(directory: Path) -> set[int]:
    """The unmarked entries by reading everything; the recorder knows them without."""
    found = list(links(segments(directory), RecordChain()))
    marked = {link.entry_seq for link in found if isinstance(link, Mark)}
    return {link.seq for link in found if isinstance(link, RecordEntry)} - marked


def _let_live(
    directory: Path,
    first: int,
    entries: dict[int, int],
    marked: set[int],
    *,
    lines: int,
    seconds: float,
) -> None:
    """One writer: wait until it is ready and has acknowledged so much, however slow the machine;
    let it live on for a random while, kill it, listen."""
    command = [sys.executable, "-m", "tests.recorder.victim", str(directory), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        said = b"".join(victim.stdout.readline() for _ in range(lines))
        with suppress(subprocess.TimeoutExpired):
            victim.wait(timeout=seconds)
        victim.kill()
        said += victim.stdout.read()
        assert victim.stderr is not None
        assert victim.wait() == -9, victim.stderr.read().decode()
    for line in said.decode().splitlines():
        word, seq, *number = line.split()
        if word == "entry":
            entries[int(seq)] = int(number[0])
        else:
            marked.add(int(seq))
