"""`python -m bench.ledger [--quick]`: what it costs that a log can show it was not changed.

Beside each other, in the same run: the same bytes in a plain SQLite table with the same promises
of durability (no numbers without gaps, no tree, no signature), the ledger in SQLite, and the ledger
in PostgreSQL where a server is installed, with one and with two replicas. Then, at full length:
verification, inclusion and consistency proofs, and how long an opening takes.

Prints a table, writes bench/results/ledger.json (with --quick: into out/bench).
"""

import argparse
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ledger.postgres_server import missing_postgres, server

from bench.timing import machine, write_results
from fairlead.ledger import KeyDirectory, SqliteLedger
from fairlead.ledger import store as ledger_store
from fairlead.ledger.entries import prepare
from fairlead.ledger.sqlite import create, open_writer
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.ledger import Draft

BATCHES = (1, 100, 1_000, 10_000)
PROOFS = 2_000
# What has to be reached.
APPENDS_PER_S, VERIFY_S, PROOF_MS, RECOVERY_S = 20_000, 30.0, 1.0, 2.0
TIME_MS = 1_764_000_000_000

Line = dict[str, Any]


def charge(number: int) -> Draft:
    """An entry as the control plane writes most of: a charge, 420 bytes of canonical JSON."""
    return Draft(
        kind="charge.post",
        time_ms=TIME_MS + number,
        author="control-plane",
        plan_id=f"lease-{number:012x}",
        effect="post",
        reasons=("Settled",),
        body={
            "lease": f"lease-{number:012x}",
            "budget": "team-a",
            "envelope": "h100-2026",
            "owner": "team-a",
            "flavor": "h100",
            "gpus": 8,
            "gpu_milliseconds": 28_800_000,
            "from_ms": TIME_MS,
            "to_ms": TIME_MS + 3_600_000,
        },
    )


@dataclass
class Meter:
    """Seconds inside calls: on the wall, shared with disk and neighbours, and of our own CPU."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def time(self, call: Callable[[], object]) -> None:
        """Call, and add the time it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu


def append(ledger: StoreWriter, *, first: int, count: int, batch: int) -> Meter:
    meter = Meter()
    for start in range(first, first + count, batch):
        drafts = [charge(number) for number in range(start, start + batch)]
        meter.time(lambda drafts=drafts: ledger.append(drafts))  # type: ignore[misc]
    return meter


def append_plain(connection: sqlite3.Connection, drafts: list[Draft]) -> None:
    """The baseline: the same bytes, rendered and committed the same way, in a plain table."""
    rows = [(prepare(draft).data(1),) for draft in drafts]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO plain (data) VALUES (?)", rows)
    connection.execute("COMMIT")


@contextmanager
def plain_table() -> Iterator[sqlite3.Connection]:
    with tempfile.TemporaryDirectory(prefix="bench-plain-") as place:
        path = Path(place) / "plain.db"
        create(path)
        with closing(open_writer(path)) as connection:
            connection.execute("CREATE TABLE plain (seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
            yield connection


@contextmanager
def sqlite_ledger(name: str) -> Iterator[SqliteLedger]:
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as place:
        directory = Path(place)
        with SqliteLedger.open(directory / "l.db", KeyDirectory(directory / "keys")) as ledger:
            yield ledger


def appends(sizes: dict[int, int]) -> list[Line]:
    """Entries per second by batch size, taking turns with the plain table batch by batch."""
    lines = []
    for batch, count in sizes.items():
        ours, bare = Meter(), Meter()
        with sqlite_ledger("append") as ledger, plain_table() as connection:
            for start in range(0, count, batch):
                drafts = [charge(number) for number in range(start, start + batch)]
                ours.time(lambda drafts=drafts: ledger.append(drafts))  # type: ignore[misc]
                bare.time(lambda drafts=drafts: append_plain(connection, drafts))  # type: ignore[misc]
        lines.append(
            {
                "store": "sqlite",
                "batch": batch,
                "entries": count,
                "entries_per_s": round(count / ours.wall_s),
                "entries_per_cpu_s": round(count / ours.cpu_s),
                "plain_table_entries_per_s": round(count / bare.wall_s),
                "plain_table_entries_per_cpu_s": round(count / bare.cpu_s),
                "times_slower_than_plain": round(ours.wall_s / bare.wall_s, 2),
            }
        )
    return lines


def latencies(call: Callable[[int], object], numbers: list[int]) -> Line:
    taken = []
    for number in numbers:
        began = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - began) * 1_000)
    taken.sort()
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {
        name: round(taken[min(len(taken) - 1, int(len(taken) * q))], 4) for name, q in at.items()
    }


def at_length(ledger: StoreWriter, entries: int) -> Line:
    """A ledger of full length: append, prove, verify."""
    rng = random.Random(1)
    appended = append(ledger, first=0, count=entries, batch=1_000)
    size = ledger.head().head.size
    numbers = [rng.randrange(1, size + 1) for _ in range(PROOFS)]
    inclusion = latencies(lambda seq: ledger.inclusion(seq, size), numbers)
    consistency = latencies(lambda seq: ledger.consistency(seq, size), numbers)
    verified, found = Meter(), []
    verified.time(lambda: found.append(ledger.verify([ledger.head()])))
    assert found[0].ok, found[0].problem
    return {
        "entries": size,
        "append_entries_per_s": round(entries / appended.wall_s),
        "append_entries_per_cpu_s": round(entries / appended.cpu_s),
        "verify_s": round(verified.wall_s, 2),
        "verify_cpu_s": round(verified.cpu_s, 2),
        "inclusion": inclusion,
        "consistency": consistency,
    }


def opening(tail: int) -> float:
    """Seconds to open a ledger whose last checkpoint is `tail` entries ago."""
    kept, ledger_store.CHECKPOINT_EVERY = ledger_store.CHECKPOINT_EVERY, 10**9
    try:
        with tempfile.TemporaryDirectory() as place:
            path, keys = Path(place) / "l.db", KeyDirectory(Path(place) / "keys")
            with SqliteLedger.open(path, keys) as ledger:
                append(ledger, first=0, count=tail, batch=10_000)
            began = time.perf_counter()
            SqliteLedger.open(path, keys).close()
            return time.perf_counter() - began
    finally:
        ledger_store.CHECKPOINT_EVERY = kept


def reopening(entries: int) -> Line:
    """The same with the checkpoints that are really kept, at two lengths."""
    seconds = {}
    for count in (entries // 10, entries):
        with tempfile.TemporaryDirectory() as place:
            path, keys = Path(place) / "l.db", KeyDirectory(Path(place) / "keys")
            with SqliteLedger.open(path, keys) as ledger:
                append(ledger, first=0, count=count, batch=10_000)
            began = time.perf_counter()
            SqliteLedger.open(path, keys).close()
            seconds[str(count)] = round(time.perf_counter() - began, 3)
    return seconds


def postgres(entries: int) -> Line | None:
    """One replica, then two at once; None where there is no server."""
    if missing_postgres():
        return None
    from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(server())
        replicas = [
            stack.enter_context(PostgresLedger.open(address, KeyDirectory(place / "keys")))
            for _ in range(2)
        ]
        one = at_length(replicas[0], entries)
        single = append(replicas[0], first=entries, count=200, batch=1)
        with ThreadPoolExecutor(2) as pool:
            began = time.perf_counter()
            runs = [
                pool.submit(
                    append, replicas[at], first=(at + 2) * entries, count=entries // 2, batch=1_000
                )
                for at in range(2)
            ]
            for run in runs:
                run.result()
            together = entries / (time.perf_counter() - began)
        assert replicas[1].verify().ok
    return {
        **one,
        "append_one_by_one_entries_per_s": round(200 / single.wall_s),
        "two_replicas_entries_per_s": round(together),
    }


def run(entries: int, *, quick: bool) -> Line:
    scale = 10 if quick else 1
    sizes = {
        1: 2_000 // scale,
        100: 50_000 // scale,
        1_000: 200_000 // scale,
        10_000: 200_000 // scale,
    }
    report: Line = {
        "machine": {**machine(), "clock": "wall, and CPU seconds of the process where it says so"},
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "sqlite_version": sqlite3.sqlite_version,
    }
    report["appends"] = appends(sizes)
    with sqlite_ledger("length") as ledger:
        report["sqlite"] = at_length(ledger, entries)
    tail = 100_000 // scale
    report["opening"] = {
        "tail_entries": tail,
        "tail_s": round(opening(tail), 3),
        "by_length_s": reopening(entries // 4),
    }
    report["postgres"] = postgres(entries // 10)
    report["targets"] = targets(report, entries)
    return report


def targets(report: Line, entries: int) -> Line:
    best = max(line["entries_per_s"] for line in report["appends"])
    per_million = report["sqlite"]["verify_s"] * 1_000_000 / entries
    recovery = report["opening"]["tail_s"] * 100_000 / report["opening"]["tail_entries"]
    asked = {
        "appends_per_s": (best, APPENDS_PER_S, best >= APPENDS_PER_S),
        "verify_1000000_s": (round(per_million, 1), VERIFY_S, per_million < VERIFY_S),
        "inclusion_p99_ms": (
            report["sqlite"]["inclusion"]["p99_ms"],
            PROOF_MS,
            report["sqlite"]["inclusion"]["p99_ms"] < PROOF_MS,
        ),
        "recovery_100000_s": (round(recovery, 2), RECOVERY_S, recovery < RECOVERY_S),
    }
    return {
        name: {"measured": measured, "asked": wanted, "met": met}
        for name, (measured, wanted, met) in asked.items()
    }


def show(report: Line) -> None:
    print(f"load average at the start: {report['load_average_at_start']}")
    print("store    batch  entries/s  /CPU s  plain/s  times slower than a plain table")
    for line in report["appends"]:
        print(
            f"{line['store']:<8} {line['batch']:>5} {line['entries_per_s']:>10} "
            f"{line['entries_per_cpu_s']:>7} {line['plain_table_entries_per_s']:>8} "
            f"{line['times_slower_than_plain']:>6}"
        )
    for store in ("sqlite", "postgres"):
        if report[store] is None:
            print(f"{store}: not installed here")
            continue
        found = report[store]
        print(
            f"{store}: {found['entries']} entries, {found['append_entries_per_s']} appended/s, "
            f"verified in {found['verify_s']} s, inclusion p99 "
            f"{found['inclusion']['p99_ms']} ms"
        )
    for name, found in report["targets"].items():
        verdict = "met" if found["met"] else "NOT MET"
        print(f"{name}: {found['measured']} (asked {found['asked']}): {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="a tenth, into out/bench")
    given = parser.parse_args()
    entries = given.entries or (100_000 if given.quick else 1_000_000)
    report = run(entries, quick=given.quick)
    show(report)
    write_results("ledger", report, quick=given.quick)


if __name__ == "__main__":
    main()
