"""Kills appending processes at random moments and checks the promises; the soak does many more."""

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlead.core.audit import SignedHead
from fairlead.ledger.reading import Reading
from fairlead.schema.audit import HeadDocument
from tests.ledger.victim import open_ledger

# More than one writer ever gets to: their numbers never meet.
LIFE = 1_000_000


def kill_writers(
    place: str, keys: Path, schema: str, *, count: int, seed: int, at_once: int = 1
) -> dict[str, int]:
    """`count` times: start `at_once` writers, kill them at random moments, check; then go on."""
    rng, first, said = random.Random(seed), 0, list[Any]()
    for _ in range(count):
        with ThreadPoolExecutor(at_once) as pool:
            lives = []
            for _ in range(at_once):
                arguments = (place, str(keys), schema, str(first))
                lives.append(pool.submit(_live, arguments, rng.uniform(0, 0.12)))
                first += LIFE
            for life in lives:
                said += life.result()
        with open_ledger(place, str(keys), schema) as ledger:
            _check(ledger, said, seed)
            size = ledger.head().head.size
    return {"kills": count * at_once, "acknowledged": len(said), "entries": size}


def _live(arguments: tuple[str, ...], seconds: float) -> list[Any]:
    """One writer: wait for its first word, let it live on for a random while, kill it, listen."""
    command = [sys.executable, "-m", "tests.ledger.victim", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stderr is not None
        heard = victim.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            victim.wait(timeout=seconds)
        victim.kill()
        heard += victim.stdout.read()
        assert victim.wait() == -9, f"the writer ended by itself: {victim.stderr.read()!r}"
    # A line that was cut off was promised too, but says nothing that could be checked.
    return [json.loads(line) for line in heard.splitlines(keepends=True) if line.endswith(b"\n")]


def _check(ledger: Reading, said: list[Any], seed: int) -> None:
    """All that was acknowledged is there, once, where it was said to be; the tree verifies."""
    found: dict[int, int] = {}
    times: Counter[int] = Counter()
    after = 1
    while page := ledger.entries(after, 10_000):
        for entry in page:
            found[entry.seq] = entry.body["number"]
            times[entry.body["number"]] += 1
        after = page[-1].seq
    twice = [number for number, count in times.items() if count > 1]
    assert not twice, f"seed {seed}: recorded twice: {twice[:5]}"
    for number, seqs, _ in said:
        numbers = [found.get(seq) for seq in seqs]
        assert numbers == list(range(number, number + len(seqs))), f"seed {seed}: lost {seqs[:5]}"
    verified = ledger.verify([_head(head) for _, _, head in said[-200:]])
    assert verified.ok, f"seed {seed}: {verified.problem}"


def _head(document: dict[str, Any]) -> SignedHead:
    return HeadDocument(**document).to_head()


def soak_sqlite(count: int = 500) -> dict[str, object]:
    """For `make soak`: the embedded ledger."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        return dict(kill_writers(str(path / "l.db"), path / "keys", "", count=count, seed=7))


def soak_postgres(count: int = 100) -> dict[str, object]:
    """For `make soak`: replicas in pairs."""
    from tests.ledger.postgres_server import server  # noqa: PLC0415 - only where asked

    with tempfile.TemporaryDirectory() as place, server() as address:
        keys = Path(place) / "keys"
        return dict(kill_writers(address, keys, "soak", count=count, seed=8, at_once=2))
