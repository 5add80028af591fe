"""`python -m bench.gpu_accounting [--quick]`: what headroom and cover cost, whatever the history.

Two sets of books over the same 10 000 envelopes and 50 000 open leases: one with 1 000 000 closed
leases behind it, one with ten times as many. Times are CPU time of the calling thread, and calls
to the two take turns, so that a neighbour on the machine disturbs little, and both alike. Then
Kueue's published baseline load (see `bench.kueue_shape`).

Prints a table, writes bench/results/gpu_accounting.json and .png (with --quick: into out/bench).
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.gpu_accounting_plot import draw
from bench.kueue_shape import KUEUE, measure
from bench.timing import machine, write_results
from fairlead.core.gpu import (
    HOUR_MS,
    AggregateCap,
    Book,
    Budget,
    Envelope,
    Lease,
    Lending,
    Recurrence,
    Request,
    cover,
    cover_or_remedy,
)
from fairlead.core.gpu.accounts import Accounts

START_MS = 1_767_225_600_000
ROUNDS = 15
LIMITS_US = {
    "headroom": 50.0,
    "cover": 2_000.0,
    "cover_refused": 2_000.0,
    "refused_with_remedy": 2_000.0,
}


@dataclass(frozen=True)
class Size:
    """How large the books are."""

    budgets: int = 1_000
    envelopes: int = 10
    family: int = 10
    open_leases: int = 50_000
    closed: tuple[int, int] = (1_000_000, 10_000_000)
    calls: int = 2_000


FULL = Size()
QUICK = Size(budgets=100, open_leases=500, closed=(5_000, 50_000), calls=300)


def budgets_of(size: Size) -> list[Budget]:
    """Families of ten owners under one parent; two flavors; caps on everything that has one."""
    found = []
    for b in range(size.budgets):
        envelopes = tuple(
            Envelope(
                f"e{e}",
                ("H100", "A100")[e % 2],
                64,
                {"region": f"r{e % 3}"},
                max_hours_ms=10**6 * HOUR_MS,
                recurrence=(None, Recurrence.MONTHLY, Recurrence.WEEKLY)[e % 3],
                lending=Lending(True, ("*",), 16, 10**5 * HOUR_MS),
            )
            for e in range(size.envelopes)
        )
        caps = tuple(
            AggregateCap(
                flavor,
                flavor,
                tuple(e.name for e in envelopes if e.flavor == flavor),
                300,
                10**7 * HOUR_MS,
            )
            for flavor in ("H100", "A100")
        )
        parent = f"org-{b // size.family}"
        found.append(Budget(f"b{b:04}", f"team-{b:04}", (parent,), envelopes, caps))
    return found


class Books:
    """Accounts with a history, and the questions that are asked of them."""

    def __init__(self, size: Size, budgets: list[Budget], closed: int) -> None:
        self.size, self.budgets, self.now_ms = size, budgets, START_MS
        self.accounts = Accounts()
        for budget in budgets:
            self.accounts.define(budget, START_MS)
        self._fill(closed)
        self.book = Book(budgets, self.accounts.at(self.now_ms))

    def _fill(self, closed: int) -> None:
        """Closed leases spread over 20 days, then the open ones; the same seed for every size."""
        rng, span_ms = random.Random(7), 20 * 24 * HOUR_MS
        for i in range(closed):
            start_ms = START_MS + span_ms * i // closed
            lease = self._lease(f"c{i}", start_ms, rng)
            self.accounts.hold(lease)
            self.accounts.post(lease.id, start_ms + 60_000)
        rng, self.now_ms = random.Random(8), START_MS + span_ms + HOUR_MS
        for i in range(self.size.open_leases):
            start_ms = START_MS + span_ms + HOUR_MS * i // self.size.open_leases
            self.accounts.hold(self._lease(f"o{i}", start_ms, rng))
        self.accounts.advance(self.now_ms)

    def _lease(self, name: str, start_ms: int, rng: random.Random) -> Lease:
        budget = rng.randrange(self.size.budgets)
        envelope = rng.randrange(self.size.envelopes)
        until = start_ms + 4 * HOUR_MS if rng.random() < 0.5 else None
        return Lease(
            name,
            "x",
            f"b{budget:04}",
            f"e{envelope}",
            rng.choice((1, 1, 2, 4)),
            start_ms,
            None,
            until,
            rng.random() < 0.1,
        )

    def headroom(self, rng: random.Random) -> object:
        """GPUs and hours left in one envelope, at a later moment each time."""
        self.now_ms += 1
        key = (f"b{rng.randrange(self.size.budgets):04}", f"e{rng.randrange(self.size.envelopes)}")
        account = self.accounts.get(*key)
        assert account is not None
        used, envelope = account.usage(self.now_ms), account.envelope
        return envelope.gpus - used.gpus, (envelope.max_hours_ms or 0) - used.used_ms - used.held_ms

    def cover(self, rng: random.Random) -> object:
        """Cover one request among about fifty envelopes of its family."""
        self.now_ms += 1
        self.book.usage = self.accounts.at(self.now_ms)
        return cover(self.book, self.request(rng, rng.choice((4, 8, 64, 256))), self.now_ms)

    def request(self, rng: random.Random, gpus: int) -> Request:
        return Request(
            f"team-{rng.randrange(self.size.budgets):04}",
            "H100",
            gpus,
            location={"region": f"r{rng.randrange(3)}"},
            duration_ms=2 * HOUR_MS,
        )

    def cover_refused(self, rng: random.Random) -> object:
        """A request that is too large: the whole family is asked, and why not."""
        self.now_ms += 1
        self.book.usage = self.accounts.at(self.now_ms)
        return cover(self.book, self.request(rng, 5_000), self.now_ms)

    def refused_with_remedy(self, rng: random.Random) -> object:
        """A refusal that names the smallest change that would help."""
        self.now_ms += 1
        self.book.usage = self.accounts.at(self.now_ms)
        request = self.request(rng, 5_000)
        plan, remedy = cover_or_remedy(self.book, request, self.now_ms)
        assert not plan.funded
        return remedy


def percentiles(call: Callable[[random.Random], object], calls: int, seed: str) -> dict[str, float]:
    rng, taken = random.Random(seed), []
    for _ in range(calls):
        began = time.thread_time_ns()
        call(rng)
        taken.append(time.thread_time_ns() - began)
    taken.sort()
    return {"p50": taken[calls // 2] / 1e3, "p99": taken[calls * 99 // 100] / 1e3}


def compare(short: Books, long: Books, question: str, calls: int) -> dict[str, Any]:
    """The same question to both, in turns; medians over the rounds."""
    seen: dict[str, list[dict[str, float]]] = {"short": [], "long": []}
    for turn in range(ROUNDS):
        order = [("short", short), ("long", long)]
        for name, books in order if turn % 2 else order[::-1]:
            # The same questions to both in one round.
            seen[name].append(percentiles(getattr(books, question), calls, f"{question}{turn}"))
    result: dict[str, Any] = {}
    for name, rounds in seen.items():
        result[name] = {
            key: round(statistics.median(each[key] for each in rounds), 2) for key in ("p50", "p99")
        }
    for key in ("p50", "p99"):
        pairs = zip(seen["long"], seen["short"], strict=True)
        result[f"{key}_ratio"] = round(statistics.median(a[key] / b[key] for a, b in pairs), 3)
    return result


def run(size: Size) -> dict[str, Any]:
    kueue = measure()  # first: its peak memory is its own
    budgets = budgets_of(size)
    began = time.process_time()
    books = []
    gc.disable()
    for closed in size.closed:
        books.append(Books(size, budgets, closed))
    building_s = time.process_time() - began
    gc.collect()
    gc.freeze()
    questions = {
        name: compare(books[0], books[1], name, calls)
        for name, calls in (
            ("headroom", size.calls),
            ("cover", size.calls),
            ("cover_refused", size.calls // 5),
            ("refused_with_remedy", max(20, size.calls // 20)),
        )
    }
    return {
        "machine": machine(),
        "size": {
            "envelopes": size.budgets * size.envelopes,
            "open": size.open_leases,
            "closed": list(size.closed),
        },
        "questions_us": questions,
        "settled_per_cpu_s": round(sum(size.closed) / building_s),
        "kueue_shape": {"fairlead": kueue, "kueue_published": KUEUE},
    }


def show(report: dict[str, Any]) -> None:
    short, long = report["size"]["closed"]
    print(f"{report['size']['envelopes']} envelopes, {report['size']['open']} open leases")
    print(f"{'':22}{short:>10} closed{'':12}{long:>10} closed")
    print(f"{'':22}{'p50 µs':>8}{'p99 µs':>9}{'':12}{'p50 µs':>8}{'p99 µs':>9}{'p99 ratio':>12}")
    for name, each in report["questions_us"].items():
        a, b = each["short"], each["long"]
        print(
            f"{name:22}{a['p50']:8.1f}{a['p99']:9.1f}{'':12}{b['p50']:8.1f}{b['p99']:9.1f}"
            f"{each['p99_ratio']:12.3f}"
        )
        if name in LIMITS_US:
            limit, worst = LIMITS_US[name], max(a["p99"], b["p99"])
            kept = worst < limit and 0.8 <= each["p99_ratio"] <= 1.2
            print(f"{'':22}{'kept' if kept else 'NOT kept'}: p99 below {limit:.0f} µs, ±20 %")
    print(f"leases settled per CPU second: {report['settled_per_cpu_s']}")
    ours, theirs = (report["kueue_shape"][key] for key in ("fairlead", "kueue_published"))
    print(f"\nKueue's baseline load{'':9}{'Fairlead (virtual time)':>26}{'Kueue, published':>20}")
    for name in (
        "decisions_per_s",
        "decision_p99_us",
        "quota_use",
        "peak_rss_mb",
        "average_wait_s",
    ):
        print(f"{name:30}{ours[name]!s:>26}{theirs.get(name) or '(not published)'!s:>20}")
    print(f"{'until all have run, s':30}{ours['virtual_end_s']!s:>26}{theirs['wall_s']!s:>20}")
    print(f"Kueue's figures: {theirs['caveat']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small books, into out/bench")
    quick = parser.parse_args().quick
    report = run(QUICK if quick else FULL)
    show(report)
    write_results("gpu_accounting", report, quick=quick, draw=draw)


if __name__ == "__main__":
    main()
