"""kill -9 of the control plane under load: what was acknowledged is there, once, and verifies."""

import http.client
import json
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from fairlead.ledger.sqlite import SqliteReader
from tests.api.servers import UnixConnection, budget, node, run, short_folder
from tests.e2e.planes import Plane


class Load:
    """Submits runs and edits a budget as fast as it can; remembers what was acknowledged."""

    def __init__(self, plane: Plane, marks: Path, number: int) -> None:
        self._plane, self._marks, self._number = plane, marks, number
        self.end = threading.Event()
        self.runs: list[str] = []
        self.concurrency = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        count = 0
        while not self.end.is_set():
            count += 1
            name = f"r{self._number}-{count}"
            command = ["sh", "-c", f"echo x >> {self._marks}/{name}"]
            body = run(name, command=command if count % 3 == 0 else [], duration="1s")
            # The same submission again until it is answered, as a careful client does.
            while not self.end.is_set() and self._put("Run", body) is None:
                time.sleep(0.01)
            if not self.end.is_set():
                self.runs.append(name)
            edited = 8 + count
            if self._put("Budget", budget("team-a", edited)) is not None:
                self.concurrency = edited

    def _put(self, kind: str, body: dict[str, Any]) -> dict[str, Any] | None:
        connection = UnixConnection(self._plane.socket)
        try:
            path = f"/v1/objects/{kind}/{body['metadata']['name']}"
            connection.request("PUT", path, json.dumps(body).encode())
            response = connection.getresponse()
            data = response.read()
            return json.loads(data) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def join(self) -> None:
        self.end.set()
        self._thread.join(timeout=30)


def run_kills(count: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill the server `count` times at random moments of its work."""
    rng, marks = random.Random(seed), folder / "marks"
    marks.mkdir()
    acknowledged: list[str] = []
    with short_folder() as place:
        plane = Plane(place, "--no-http")
        plane.preloaded = True
        plane.up()
        plane.apply(node(devices=64), budget("team-a", 8))
        edited = 0
        for number in range(count):
            load = Load(plane, marks, number)
            time.sleep(rng.uniform(0.05, 0.6))  # the random moment itself
            plane.down(signal.SIGKILL)
            load.join()
            acknowledged += load.runs
            edited = load.concurrency or edited
            plane.process = None
            plane.up()
        found = {each["metadata"]["name"] for each in plane.ask("/v1/objects/Run")["items"]}
        lost = [name for name in acknowledged if name not in found]
        assert not lost, f"acknowledged and gone: {lost[:5]}"
        (row,) = plane.ask("/v1/budgets")
        assert row["limit_gpus"] >= edited
        plane.until("all ended", lambda: _all_ended(plane), 120)
        assert plane.down() == 0
        size = _check_ledger(place / "data" / "ledger.db")
    repeated = [each.name for each in marks.iterdir() if each.read_text() != "x\n"]
    assert not repeated, f"started twice: {repeated[:5]}"
    return {"kills": count, "acknowledged": len(acknowledged), "entries": size}


def _all_ended(plane: Plane) -> bool:
    phases = {each["status"]["phase"] for each in plane.ask("/v1/objects/Run")["items"]}
    return phases <= {"Completed"}


def _check_ledger(path: Path) -> int:
    """It verifies; nothing was applied, opened, closed or charged twice."""
    with SqliteReader(path) as reader:
        verified = reader.verify()
        assert verified.ok, verified
        entries, after = [], 0
        while part := reader.entries(after, 10_000):
            entries += part
            after = part[-1].seq
    for kind, key in (
        ("object.applied", "name"),
        ("lease.open", "lease"),
        ("lease.close", "lease"),
        ("charge.post", "lease"),
    ):
        about = [e.body[key] for e in entries if e.kind == kind and e.body.get("kind") != "Budget"]
        assert len(about) == len(set(about)), f"{kind} twice"
    opened = {e.body["lease"] for e in entries if e.kind == "lease.open"}
    closed = {e.body["lease"] for e in entries if e.kind == "charge.post"}
    assert opened == closed, "every lease is charged once"
    return len(entries)
