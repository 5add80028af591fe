"""`python -m bench.page [--quick]`: the page with ten thousand runs.

A control plane with 10 000 submitted runs, a real server and a real Chromium:

| measure | definition |
|---|---|
| request | one `GET` over a kept connection, from request to the last byte: CPU seconds |
| first paint | `first-contentful-paint` of `/gpu`, as the browser says it; nothing cached |
| list painted | from the start of the navigation until the first page of runs is in the document |
| story | from the start of `fairlead up --demo` until the seventh act of its story is told |

Client, server and turns of the control plane are one process, so a request's CPU seconds include
the client's, and in the worst case a turn; neighbours on the machine do not count. Paints are on
the wall: the report has the load of the machine.

Prints a table and writes bench/results/page.json (with --quick: 1 000 runs, into out/bench).
"""

import argparse
import http.client
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.e2e.demos import Demo
from tests.web.browser import chromium

from bench.timing import Spread, machine, write_results
from fairlead.api.story_acts import Act

RUNS, QUICK_RUNS, BATCH = 10_000, 1_000, 1_000
REQUESTS, VISITS = 40, 5
PAGE_S_MAX, PAINT_S_MAX, STORY_S_MAX = 0.020, 1.0, 60.0
PATHS = {
    "runs": "/v1/runs?ended=fold",
    "runs, filtered": "/v1/runs?text=99&owner=team-a",
    "runs, last page": "/v1/runs?cursor=200",
    "queue": "/v1/queue",
    "overview": "/v1/overview",
    "devices": "/v1/devices",
    "timeline": "/v1/timeline",
    "burndown": "/v1/burndown",
    "history of a run": "/v1/runs/run-00000/history",
}


def fill(running: Running, runs: int) -> None:
    running.apply(*(node(f"n{number:02}") for number in range(32)))
    running.apply(*(budget(f"team-{name}", 64, maxGPUHours=50_000) for name in "abcd"))
    for first in range(0, runs, BATCH):
        many = range(first, min(runs, first + BATCH))
        running.apply(*(run(f"run-{i:05}", f"team-{'abcd'[i % 4]}", 4) for i in many))
    waits = runs - 32 * 2
    running.until("queued", lambda: running.ok("GET", "/v1/queue?limit=1")["total"] >= waits, 600)


def requests(running: Running) -> dict[str, list[float]]:
    """Seconds of each request, one after the other; the paths take turns."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    taken: dict[str, list[float]] = {name: [] for name in PATHS}
    for turn in range(REQUESTS + 1):
        for name, path in PATHS.items():
            began = time.process_time()
            connection.request("GET", path)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200, (path, reply.status)
            if turn:  # the first round warms up
                taken[name].append(time.process_time() - began)
        time.sleep(0.2)  # not measured: an anonymous reader may ask 50 times a second
    connection.close()
    return taken


def visits(running: Running) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"first paint": [], "list painted": []}
    with chromium() as browser:
        for _ in range(VISITS + 1):
            context = browser.new_context(base_url=f"http://127.0.0.1:{running.port}")
            page = context.new_page()
            page.goto("/gpu", wait_until="commit")
            page.locator("#run-rows tr").nth(49).wait_for()
            listed_ms = page.evaluate("performance.now()")
            painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            taken["first paint"].append(page.evaluate(painted) / 1000)
            taken["list painted"].append(listed_ms / 1000)
            context.close()
            time.sleep(1)  # not measured: the rate of an anonymous reader recovers
    return {name: values[1:] for name, values in taken.items()}


def story() -> float:
    """A newcomer's first minute: on the wall, the start of the program included."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        demo = Demo(Path(folder))
        try:
            demo.until("told", lambda: any(act["act"] == Act.SLOW for act in demo.acts()))
            return time.monotonic() - began
        finally:
            demo.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick: bool = parser.parse_args().quick
    runs = QUICK_RUNS if quick else RUNS
    # Each run that waits would be a line of warning here.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with short_folder() as folder, serving(folder, quota=None) as running:
        fill(running, runs)
        taken = {**requests(running), **visits(running)}
    taken["story"] = [story()]
    spreads = {name: Spread.of(values) for name, values in taken.items()}
    for name, spread in spreads.items():
        worst = max(taken[name])
        print(f"{name:18} median {spread.median * 1000:7.1f} ms, worst {worst * 1000:7.1f} ms")
    found: dict[str, Any] = {
        "runs": runs,
        "load_average": round(os.getloadavg()[0], 1),
        "machine": {**machine(), "clock": "CPU seconds of requests, seconds on the wall of paints"},
        "seconds": {name: spread.as_json() for name, spread in spreads.items()},
        "worst_seconds": {name: round(max(values), 4) for name, values in taken.items()},
    }
    write_results("page", found, quick=quick)
    holds = all(
        spreads[name].median < most
        for name, most in (
            ("runs", PAGE_S_MAX),
            ("first paint", PAINT_S_MAX),
            ("story", STORY_S_MAX),
        )
    )
    said = "one page of runs within 20 ms, first paint within 1 s, the story within 60 s:"
    print(said, "yes" if holds else "NO")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
