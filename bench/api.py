"""`python -m bench.api [--quick]`: many people at one control plane, on one core.

The server has one core to itself, the load another one. Two hundred clients follow the events
live, five hundred requests a second arrive whatever became of those before (open loop, over kept
connections), and runs are submitted all the while, so that there is something to tell. It begins
once the first thousand runs are decided on, and has three parts of equal length:

| part | besides |
|---|---|
| `steady` | nothing |
| `slow_readers` | clients that ask for all events, and read nothing of the answer |
| `batches` | many runs are submitted at once, again and again |

Then a browser opens the page of ten thousand runs.

Judged: the 99th percentile of the requests of the first two parts under 50 ms, no event lost or
repeated by any client in all three, and the first paint under a second. Whether slow readers hurt
other clients is `slow_readers` beside `steady`, with the memory of the server at the end of both.

Prints a table, writes bench/results/api.json (with --quick: into out/bench).
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import socket
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.control_plane import Started, control_plane
from bench.timing import Spread, machine, write_results

P99_MS, PAINT_MS = 50.0, 1000.0
CONNECTIONS = 50
PARTS = ("steady", "slow_readers", "batches")
BATCHES = 5
SETTLED_S = 3.0
SUBMITS_PER_S = 2.0
# What a page and scripts ask, and how often of a hundred: mostly one object, or a small table.
MIX = {
    "/v1/objects/Run/{name}": 35,
    "/v1/head": 20,
    "/v1/leases": 15,
    "/v1/budgets": 10,
    "/v1/runs?limit=20": 10,
    "/v1/whoami": 5,
    "/v1/events?after={seq}&limit=20": 5,
}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    runs: int = 1_000
    many: int = 10_000
    clients: int = 200
    requests_per_s: int = 500
    seconds: float = 60.0
    paints: int = 5
    slow: int = 20
    batch: int = 100
    """Runs of one submission, five in the last part."""


FULL = Size()
QUICK = Size(200, 1_000, clients=50, requests_per_s=200, seconds=9.0, paints=2, slow=5, batch=20)


def documents(runs: int, first: int = 0) -> list[dict[str, Any]]:
    """Runs that wait: their owner may have one GPU, of a node with one."""
    version = "fairlead.dev/v1alpha1"
    return [
        {
            "apiVersion": version,
            "kind": "Run",
            "metadata": {"name": f"run-{number:05}"},
            "spec": {
                "owner": f"team-{number % 10}",
                "flavor": "H100",
                "totalGPUs": 1,
                "duration": "1h",
                "command": ["sleep", "600"],
            },
        }
        for number in range(first, first + runs)
    ]


def lab() -> list[dict[str, Any]]:
    version = "fairlead.dev/v1alpha1"
    node = {"flavor": "H100", "devices": 8, "virtual": True}
    made: list[dict[str, Any]] = [
        {"apiVersion": version, "kind": "Node", "metadata": {"name": "box"}, "spec": node}
    ]
    for number in range(10):
        envelope = {"name": "main", "flavor": "H100", "concurrency": 1}
        spec = {"owner": f"team-{number}", "envelopes": [envelope]}
        name = {"name": f"team-{number}"}
        made.append({"apiVersion": version, "kind": "Budget", "metadata": name, "spec": spec})
    return made


def flags() -> list[str]:
    """Everything is submitted by one user, who started it."""
    mode = ["--allow-root", "--user", "root"] if os.geteuid() == 0 else ["--trusting"]
    return [*mode, "--max-open-runs", "100000", "--no-discover"]


class Connection:
    """One kept connection; requests one after the other."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        async with self._lock:
            for fresh in (False, True):
                try:
                    return await self._exchange(method, target, body)
                except (ConnectionError, asyncio.IncompleteReadError):
                    self._streams = None  # it was idle for too long
                    if fresh:
                        raise
            raise AssertionError

    async def _exchange(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._socket)
        reader, writer = self._streams
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = next(
            int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")
        )
        return int(lines[0].split()[1]), await reader.readexactly(length)


class Follower(NamedTuple):
    """A client that is connected, and what reads for it."""

    writer: asyncio.StreamWriter
    reading: "asyncio.Task[None]"


async def follow(socket: str, after: int, seen: list[int]) -> Follower:
    """One client that follows the events live, connected when this returns: a socket that does not
    wait its turn in the server's queue would be refused by the kernel."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(
        f"GET /v1/watch?after={after} HTTP/1.1\r\nHost: localhost\r\n"
        "Accept: text/event-stream\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    return Follower(writer, asyncio.create_task(_numbers(reader, seen)))


async def _numbers(reader: asyncio.StreamReader, seen: list[int]) -> None:
    while line := await reader.readline():
        if line.startswith(b"id: "):
            seen.append(int(line[4:]))


def ask_and_read_nothing(path: str) -> socket.socket:
    """A client that asks for every event there ever was, and leaves the answer where it is."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(b"GET /v1/watch?after=0 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
    return client


async def size_of(admin: Connection) -> int:
    _, found = await admin.ask("GET", "/v1/head")
    return int(json.loads(found)["size"])


async def settled(admin: Connection) -> int:
    """How many entries there are once nothing is added any more."""
    before, now = -1, await size_of(admin)
    while before != now:
        await asyncio.sleep(SETTLED_S)
        before, now = now, await size_of(admin)
    return now


class Submissions:
    """Runs that are submitted beside the requests, and what each part has beside the others."""

    def __init__(self, admin: Connection, size: Size) -> None:
        self._admin, self._size = admin, size
        self._numbers = itertools.count(size.many)

    async def one_by_one(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._submit(1)
            await asyncio.sleep(1 / SUBMITS_PER_S)

    async def parts(self, path: str, part_s: float, pid: int) -> list[float]:
        """The memory of the server at the end of each."""
        await asyncio.sleep(part_s)
        memory = [_memory_mib(pid)]
        slow = [ask_and_read_nothing(path) for _ in range(self._size.slow)]
        await asyncio.sleep(part_s)
        memory.append(_memory_mib(pid))
        for client in slow:
            client.close()
        for _ in range(BATCHES):
            await self._submit(self._size.batch)
            await asyncio.sleep(part_s / BATCHES)
        return [*memory, _memory_mib(pid)]

    async def _submit(self, runs: int) -> None:
        made = [documents(1, next(self._numbers))[0] for _ in range(runs)]
        body = json.dumps({"manifests": made, "dry_run": False}).encode()
        status, reply = await self._admin.ask("POST", "/v1/apply", body)
        if status != 200:
            raise RuntimeError(reply.decode())


async def press(path: str, size: Size, pid: int) -> dict[str, Any]:
    """All of it at once; times in milliseconds, from when a request was due."""
    chance = random.Random("bench.api")
    connections = [Connection(path) for _ in range(CONNECTIONS)]
    admin = Connection(path)
    seq = await settled(admin)
    over, seen = asyncio.Event(), [list[int]() for _ in range(size.clients)]
    followers = [await follow(path, seq, each) for each in seen]
    took: dict[str, list[float]] = {target: [] for target in MIX}
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    statuses: Counter[int] = Counter()
    part_s, submissions = size.seconds / len(PARTS), Submissions(admin, size)
    begun = time.perf_counter()

    async def request(number: int, due: float) -> None:
        (path,) = chance.choices(list(MIX), list(MIX.values()))
        target = path.format(name=f"run-{chance.randrange(size.runs):05}", seq=seq)
        status, _ = await connections[number % CONNECTIONS].ask("GET", target)
        statuses[status] += 1
        milliseconds = (time.perf_counter() - due) * 1000
        took[path].append(milliseconds)
        parts[PARTS[min(len(PARTS) - 1, int((due - begun) / part_s))]].append(milliseconds)

    submitting = asyncio.create_task(submissions.one_by_one(over))
    going = asyncio.create_task(submissions.parts(path, part_s, pid))
    waiting = []
    for number in range(int(size.requests_per_s * size.seconds)):
        due = begun + number / size.requests_per_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        waiting.append(asyncio.create_task(request(number, due)))
    await asyncio.gather(*waiting)
    taken_s = time.perf_counter() - begun
    memory = await going
    over.set()
    await submitting
    newest = await size_of(admin)
    await _until_all_saw(seen, newest)
    for follower in followers:
        follower.reading.cancel()
        follower.writer.close()
    every = [value for values in took.values() for value in values]
    return {
        "requests": len(every),
        "per_s": round(len(every) / taken_s, 1),
        "statuses": {str(status): count for status, count in statuses.items()},
        "milliseconds": _spread(parts["steady"] + parts["slow_readers"]),
        "parts": {
            part: {**_spread(values), "memory_mib": mib}
            for (part, values), mib in zip(parts.items(), memory, strict=True)
        },
        "slow_readers": size.slow,
        "batch": size.batch,
        "p99_by_path": {
            target: _spread(values)["p99"] for target, values in took.items() if values
        },
        "events": newest - seq,
        "clients": size.clients,
        "lost_or_repeated": sum(_gaps(each, seq, newest) for each in seen),
    }


async def _until_all_saw(seen: list[list[int]], newest: int) -> None:
    deadline = time.monotonic() + 30
    while any(not each or each[-1] < newest for each in seen) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)


def _gaps(seen: list[int], after: int, newest: int) -> int:
    """Events that a client did not see, or saw twice, or out of order."""
    numbers = [after, *seen, newest + 1] if not seen or seen[-1] <= newest else [after, *seen]
    return sum(abs(b - a - 1) for a, b in pairwise(numbers))


def _spread(values: list[float]) -> dict[str, float]:
    ordered, shares = sorted(values), {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(_at(ordered, share), 2) for name, share in shares.items()}


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def paint(port: int, times: int) -> Spread:
    """Milliseconds until the first contentful paint of the runs' page, in a fresh browser."""
    from tests.web.browser import chromium  # noqa: PLC0415 - needs Playwright, which --no-paint does without

    found = []
    with chromium() as browser:
        for _ in range(times):
            page = browser.new_context().new_page()
            page.goto(f"http://127.0.0.1:{port}/gpu")
            page.wait_for_selector("#run-rows tr th")
            rows = page.evaluate("performance.now()")
            first = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            found.append((float(first), float(rows)))
            page.context.close()
    for first, rows in found:
        print(f"first paint after {first:.0f} ms, runs after {rows:.0f} ms")
    return Spread.of([first for first, _ in found])


def fill(socket: str, runs: int) -> None:
    batches = [lab()] + [documents(min(500, runs - at), at) for at in range(0, runs, 500)]

    async def apply() -> None:
        admin = Connection(socket)
        for batch in batches:
            body = json.dumps({"manifests": batch, "dry_run": False}).encode()
            status, reply = await admin.ask("POST", "/v1/apply", body)
            if status != 200:
                raise RuntimeError(reply.decode())

    asyncio.run(apply())


def _pressing(plane: Started, size: Size, core: int, answer: Any) -> None:
    os.sched_setaffinity(0, {core})
    answer.send(asyncio.run(press(plane.socket, size, plane.pid)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.api", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few of everything, into out/bench")
    parser.add_argument("--no-paint", action="store_true", help="without the browser")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    ours, theirs = sorted(os.sched_getaffinity(0))[:2]
    report: dict[str, Any] = {"machine": {**machine(), "clock": "milliseconds on the wall"}}
    with tempfile.TemporaryDirectory(prefix="fairlead-api-") as made:
        with control_plane(Path(made) / "load", *flags(), core=theirs) as plane:
            fill(plane.socket, size.runs)
            here, there = multiprocessing.Pipe()
            load = multiprocessing.Process(target=_pressing, args=(plane, size, ours, there))
            before_s = _cpu_s(plane.pid)
            load.start()
            report["load"] = here.recv()
            load.join()
            report["load"]["server_cpu_s"] = round(_cpu_s(plane.pid) - before_s, 2)
        print(json.dumps(report["load"], indent=1))
        if not options.no_paint:
            with control_plane(Path(made) / "many", *flags(), core=theirs) as plane:
                fill(plane.socket, size.many)
                spread = paint(plane.port, size.paints)
                report["first_paint_ms"] = {"runs": size.many, **spread.as_json()}
    report["goals"] = {"p99_ms": P99_MS, "first_paint_ms": PAINT_MS, "lost_or_repeated": 0}
    write_results("api", report, quick=options.quick)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
