"""Kills appending processes at random moments and checks the promises; the soak does many more."""

import json
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlead.core.audit import SignedHead
from fairlead.ledger.reading import StoreReader
from fairlead.schema.audit import HeadDocument
from tests.ledger.victim import open_ledger

# More than one writer ever gets to: their numbers never meet.
LIFE = 1_000_000


def kill_writers(
    place: str, keys: Path, schema: str, *, count: int, seed: int, at_once: int = 1
) -> dict[str, int]:
    """`count` times: start `at_once` writers, kill them at random moments, check; then go on."""
    rng, first, books = random.Random(seed), 0, Books(seed)
    for turn in range(1, count + 1):
        with ThreadPoolExecutor(at_once) as pool:
            lives = []
            for _ in range(at_once):
                arguments = (place, str(keys), schema, str(first))
                words, seconds = rng.randrange(1, 4), rng.uniform(0, 0.12)
                lives.append(pool.submit(_live, arguments, words, seconds))
                first += LIFE
            said = [each for life in lives for each in life.result()]
        with open_ledger(place, str(keys), schema) as ledger:
            books.check(ledger, said)
            if turn == count or turn % 20 == 0:
                books.verify(ledger)
    return {"kills": count * at_once, "acknowledged": books.said, "entries": len(books.found)}


class Books:
    """What the writers were promised, compared with what is there; page by page, as it grows."""

    def __init__(self, seed: int) -> None:
        self.seed, self.said = seed, 0
        self.found: dict[int, int] = {1: -1}
        self.numbers: set[int] = set()
        self.heads: list[SignedHead] = []

    def check(self, ledger: StoreReader, said: list[Any]) -> None:
        """All that was acknowledged is there, once, where it was said to be."""
        while page := ledger.entries(len(self.found), 10_000):
            for entry in page:
                number = entry.body["number"]
                assert entry.seq == len(self.found) + 1
                assert number not in self.numbers, f"seed {self.seed}: {number} recorded twice"
                self.numbers.add(number)
                self.found[entry.seq] = number
        for number, seqs, head in said:
            numbers = [self.found.get(seq) for seq in seqs]
            expected = list(range(number, number + len(seqs)))
            assert numbers == expected, f"seed {self.seed}: lost {seqs[:5]}"
            self.heads.append(HeadDocument(**head).to_head())
        self.said += len(said)

    def verify(self, ledger: StoreReader) -> None:
        """The tree verifies, and every head that a writer was shown is one of its heads."""
        verified = ledger.verify(self.heads)
        assert verified.ok, f"seed {self.seed}: {verified.problem}"
        self.heads = []


def _live(arguments: tuple[str, ...], words: int, seconds: float) -> list[Any]:
    """One writer: wait for its first words, however slow the machine, let it live on for a random
    while, kill it, listen."""
    command = [sys.executable, "-m", "tests.ledger.victim", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stderr is not None
        heard = b"".join(victim.stdout.readline() for _ in range(words))
        with suppress(subprocess.TimeoutExpired):
            victim.wait(timeout=seconds)
        victim.kill()
        heard += victim.stdout.read()
        assert victim.wait() == -9, f"the writer ended by itself: {victim.stderr.read()!r}"
    # A line that was cut off was promised too, but says nothing that could be checked.
    return [json.loads(line) for line in heard.splitlines(keepends=True) if line.endswith(b"\n")]


def soak_sqlite(count: int) -> dict[str, object]:
    """For `make soak`: the embedded ledger."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        return dict(kill_writers(str(path / "l.db"), path / "keys", "", count=count, seed=7))


def soak_postgres(count: int) -> dict[str, object]:
    """For `make soak`: replicas in pairs."""
    from tests.ledger.postgres_server import server  # noqa: PLC0415 - only where asked

    with tempfile.TemporaryDirectory() as place, server() as address:
        keys = Path(place) / "keys"
        return dict(kill_writers(address, keys, "soak", count=count, seed=8, at_once=2))
