"""`python -m bench.traffic_ebpf [--quick]`: what a connection costs with the eBPF plane in its way.

The kernel times its programs itself (bpf stats: nanoseconds and runs of each), so the figures are
not ours to flatter; its clock reads cost about 20 ns of every run and are left in. The client runs
with SCHED_FIFO: to be put to sleep inside a program is not the program's cost. Each case is one
path through the programs: a table, a bucket, a bound, fallback, a destination that is none of our
business, UDP, IPv6, many groups. Beside it, from outside: connect() with and without the dataplane,
taking turns.

Prints a table, writes bench/results/traffic_ebpf.json (with --quick: into out/bench).
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dataplane.ebpf.places import (
    Place,
    Talker,
    group,
    grow_old,
    limited,
    missing_ebpf,
    own_place,
)
from tests.dataplane.tables import table

from bench.timing import machine, write_results
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.installation import HOOKS
from fairlead.dataplane.ebpf.kernel import facts, libbpf, pinned
from fairlead.ports.dataplane import Proto, RouteGroup

VIP, VIP6 = "127.99.0.1", "fd99::1"
CONNECT_NS_MAX = 1_000  # what has to be reached, mean
STATS_RUN_TIME = 0  # the kernel times every run of every program, for about 20 ns a run
EVEN = {f"b{number}": 64 for number in range(4)}

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """What the kernel says of one program."""

    runs: int
    total_ns: int


class Programs:
    """The installed programs, opened to read their statistics."""

    def __init__(self, live: Path) -> None:
        self._open = {name: pinned(live / f"prog_{name}") for name in HOOKS}

    def read(self) -> dict[str, Ran]:
        """So far."""
        told = {name: facts(descriptor) for name, descriptor in self._open.items()}
        return {
            name: Ran(int(each.get("run_cnt", 0)), int(each.get("run_time_ns", 0)))
            for name, each in told.items()
        }

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


@contextmanager
def counted(place: Place, rounds: dict[str, list[Ran]]) -> Iterator[None]:
    """Adds what every program did inside."""
    programs = Programs(place.pins / "live")
    timing = libbpf().call("bpf_enable_stats", STATS_RUN_TIME)
    try:
        before = programs.read()
        yield
        after = programs.read()
    finally:
        os.close(timing)
        programs.close()
    for name, ran in after.items():
        if ran.runs > before[name].runs:
            did = Ran(ran.runs - before[name].runs, ran.total_ns - before[name].total_ns)
            rounds.setdefault(name, []).append(did)


def summed(rounds: list[Ran]) -> Line:
    """The mean over all runs, and the median round: other work may have had the machine."""
    runs = sum(ran.runs for ran in rounds)
    return {
        "runs": runs,
        "mean_ns": round(sum(ran.total_ns for ran in rounds) / runs, 1),
        "median_round_ns": round(statistics.median(ran.total_ns / ran.runs for ran in rounds), 1),
    }


def four(place: Place, name: str = "web", vip: str = VIP, proto: Proto = Proto.TCP) -> RouteGroup:
    ports = place.ports6 if ":" in vip else place.ports
    return group(name, vip, 80, dict(zip(EVEN, ports, strict=False)), proto)


@dataclass(frozen=True, slots=True)
class Case:
    """One path: how the dataplane is prepared, what the client does, which program is timed."""

    name: str
    program: str
    prepare: Callable[[EbpfDataplane, Place], None]
    order: Line


def _table(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place)])
    plane.apply(table("web", 1, EVEN), decision=None)


def _bucket(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place)])
    plane.apply(table("web", 1, EVEN, limited(AdmissionMode.SOFT, 1e6, 1e6)), decision=None)


def _bound(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place)])
    plane.apply(table("web", 1, EVEN, inside_max=1_000), decision=None)


def _closed(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place)])
    plane.apply(table("web", 1, EVEN, limited(AdmissionMode.HARD, 0, 0)), decision=None)


def _fallback(plane: EbpfDataplane, place: Place) -> None:
    _table(plane, place)
    grow_old(plane, 3_600)


def _six(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place, vip=VIP6)])


def _udp(plane: EbpfDataplane, place: Place) -> None:
    plane.configure([four(place, proto=Proto.UDP)])


def _many(plane: EbpfDataplane, place: Place) -> None:
    """As many groups and backends as the maps hold; the group in use is one of them."""
    to = {f"x{number}": 1_000 + number for number in range(14)}
    others = [group(f"g{at}", f"127.98.{at // 200}.{at % 200}", 80, to) for at in range(255)]
    plane.configure([*others, four(place)])
    plane.apply(table("web", 1, EVEN), decision=None)


def cases(place: Place, count: int) -> list[Case]:
    tcp: Line = {"do": "tcp", "host": VIP, "port": 80, "count": count}
    return [
        Case("a table", "connect4", _table, tcp),
        Case("256 groups, 3574 backends", "connect4", _many, tcp),
        Case("a bucket", "connect4", _bucket, tcp),
        Case("a bound", "connect4", _bound, tcp),
        Case("refused", "connect4", _closed, tcp),
        Case("fallback", "connect4", _fallback, tcp),
        Case("not ours", "connect4", _table, {**tcp, "host": "127.0.0.1", "port": place.ports[4]}),
        Case("IPv6", "connect6", _six, {**tcp, "host": VIP6}),
        Case("a datagram", "sendmsg4", _udp, {**tcp, "do": "udp"}),
    ]


def measure(place: Place, client: Talker, rounds: int, count: int) -> list[Line]:
    """The cases take turns, each on a fresh plane: warm up, then count."""
    order = cases(place, count)
    found: dict[str, dict[str, list[Ran]]] = {case.name: {} for case in order}
    for _ in range(rounds):
        for case in order:
            plane = place.plane()
            case.prepare(plane, place)
            client.do(**{**case.order, "count": 100})
            with counted(place, found[case.name]):
                client.do(**case.order)
            plane.remove()
    lines = []
    for case in order:
        ran = {name: summed(each) for name, each in found[case.name].items()}
        head = {"case": case.name, "program": case.program}
        lines.append({**head, **ran.pop(case.program), "also": ran})
    return lines


def outside(place: Place, client: Talker, rounds: int, count: int) -> Line:
    """connect() as the application sees it: through a group, and straight to the same server."""
    plane = place.plane()
    _table(plane, place)
    taken: dict[str, list[float]] = {"through_the_plane": [], "direct": []}
    targets = {"through_the_plane": (VIP, 80), "direct": ("127.0.0.1", place.ports[0])}
    for _ in range(rounds):
        for name, (host, port) in targets.items():
            taken[name].append(client.do("time_connects", host=host, port=port, count=count))
            plane.heartbeat()
    plane.remove()
    # Without any program: what "direct" costs where no plane is attached.
    taken["no_plane"] = [
        client.do("time_connects", host="127.0.0.1", port=place.ports[0], count=count)
        for _ in range(rounds)
    ]
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return {
        "connect_median_us": {name: round(value / 1_000, 2) for name, value in medians.items()},
        "through_the_plane_times_direct": round(
            medians["through_the_plane"] / medians["direct"], 3
        ),
        "connects": rounds * count,
    }


def agent(place: Place, rounds: int) -> Line:
    """What the agent pays: a flip, a heartbeat, a reading."""
    plane = place.plane()
    _table(plane, place)
    taken: dict[str, list[float]] = {"apply": [], "heartbeat": [], "read": []}
    for epoch in range(2, rounds + 2):
        flip = table("web", epoch, EVEN)
        for name, call in (
            ("apply", lambda flip=flip: plane.apply(flip, decision=None)),
            ("heartbeat", plane.heartbeat),
            ("read", plane.read),
        ):
            began = time.perf_counter_ns()
            call()
            taken[name].append((time.perf_counter_ns() - began) / 1_000)
    plane.remove()
    return {f"{name}_median_us": round(statistics.median(each), 1) for name, each in taken.items()}


def run(*, quick: bool) -> Line:
    scale = 10 if quick else 1
    report: Line = {
        "machine": {**machine(), "clock": "the kernel's bpf stats; wall where it says median"},
        "kernel": os.uname().release.split("-")[0],
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }
    with own_place() as place:
        client = place.client()
        os.sched_setscheduler(client.process.pid, os.SCHED_FIFO, os.sched_param(1))
        report["programs"] = measure(place, client, rounds=20 // scale, count=1_000)
        report["outside"] = outside(place, client, rounds=40 // scale, count=500)
        report["agent"] = agent(place, 2_000 // scale)
    admitted = [line["mean_ns"] for line in report["programs"] if line["case"] != "not ours"]
    worst = max(admitted)
    report["targets"] = {
        "connect_mean_ns": {
            "measured": report["programs"][0]["mean_ns"],
            "worst_case": worst,
            "asked": CONNECT_NS_MAX,
            "met": worst < CONNECT_NS_MAX,
        }
    }
    return report


def show(report: Line) -> None:
    print(f"load average at the start: {report['load_average_at_start']}")
    print(f"{'case':<28} {'program':<10} {'runs':>8} {'mean ns':>8} {'median round':>12}")
    for line in report["programs"]:
        for case, name, ran in (
            (line["case"], line["program"], line),
            *(("", name, ran) for name, ran in line["also"].items()),
        ):
            print(
                f"{case:<28} {name:<10} {ran['runs']:>8} {ran['mean_ns']:>8} "
                f"{ran['median_round_ns']:>12}"
            )
    print("connect() as the application sees it, median µs:", report["outside"])
    print("the agent:", report["agent"])
    for name, found in report["targets"].items():
        verdict = "met" if found["met"] else "NOT MET"
        print(
            f"{name}: {found['measured']}, worst case {found['worst_case']} "
            f"(asked {found['asked']}): {verdict}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth, into out/bench")
    given = parser.parse_args()
    missing = missing_ebpf()
    if missing:
        print(f"not measured: {missing}")
        return 0
    report = run(quick=given.quick)
    show(report)
    write_results("traffic_ebpf", report, quick=given.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
