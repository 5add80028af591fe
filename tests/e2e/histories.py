"""Concurrent clients of a control plane that is killed again and again, and what they were told.

Objects: each budget is a register with a unique value per write. Reads, writes, conditional writes
and deletions of several clients must have an order in which each is one step.
Leases: the ledger says in which order each device was leased and freed. What clients read about a
device must follow that order, and no read may be older than one that was answered before it began.
"""

import http.client
import json
import math
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.ledger.sqlite import SqliteReader
from tests.api.servers import UnixConnection, budget, node, run, short_folder
from tests.e2e.planes import Plane
from tests.linearizability import Impossible, Operation, linearizable

KEYS = ("team-a", "team-b", "team-c")
CLIENTS = 4
_GONE = (ConnectionRefusedError, FileNotFoundError)


class Client:
    """Works until it is told to end; remembers each operation with its times and answer."""

    def __init__(self, socket: Path, work: Callable[["Client", random.Random], None], seed: int):
        self.history: dict[str, list[Operation]] = defaultdict(list)
        self.faults: list[str] = []
        self._socket, self._end, self._rng = socket, threading.Event(), random.Random(seed)
        self._work = work
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            while not self._end.is_set():
                self._work(self, self._rng)
        except AssertionError as fault:
            self.faults.append(str(fault))

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any] | None:
        """The answer, or None where none came. Raises ConnectionError where nothing was sent."""
        connection = UnixConnection(self._socket)
        try:
            try:
                connection.connect()
            except _GONE as error:
                time.sleep(0.01)  # it is being started again; no need to ask more often
                raise ConnectionError from error
            try:
                connection.request(method, path, None if body is None else json.dumps(body))
                reply = connection.getresponse()
                return reply.status, json.loads(reply.read())
            except (OSError, http.client.HTTPException, ValueError):
                return None
        finally:
            connection.close()

    @property
    def count(self) -> int:
        return sum(map(len, list(self.history.values())))

    def end(self) -> None:
        self._end.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "a client hangs"
        assert not self.faults, self.faults[0]


# -- objects --------------------------------------------------------------------------------------


def edit(client: Client, rng: random.Random) -> None:
    """One operation on one budget. Its value is its concurrency, which no other write has."""
    key, value = rng.choice(KEYS), rng.randrange(1, 100_000)
    action = rng.choice(("read", "read", "write", "write", "swap", "delete"))
    if action == "read":
        _read(client, key)
    elif action == "delete":
        _change(client, key, "delete", None)
    elif action == "write":
        _change(client, key, "write", value)
    elif (seen := _read(client, key)) is not None:
        expected, version = seen
        _change(client, key, "swap", (expected, value), f"?expected_version={version}")


def _read(client: Client, key: str) -> tuple[int | None, int] | None:
    """Value and version of a budget, (None, 0) where there is none; None without an answer."""
    begin = time.monotonic()
    try:
        reply = client.send("GET", f"/v1/objects/Budget/{key}")
    except ConnectionError:
        return None
    if reply is None or reply[0] >= 500:
        return None
    status, document = reply
    assert status in (200, 404), reply
    value, version = None, 0
    if status == 200:
        value = document["spec"]["envelopes"][0]["concurrency"]
        version = document["metadata"]["resourceVersion"]
    client.history[key].append(Operation(begin, time.monotonic(), "read", None, value))
    return value, version


def _change(client: Client, key: str, action: str, argument: Any, query: str = "") -> None:
    """Write, swap or delete; what got no answer is kept as well, for it may have happened."""
    value = argument[1] if action == "swap" else argument
    method, body = ("DELETE", None) if action == "delete" else ("PUT", budget(key, value))
    begin = time.monotonic()
    try:
        reply = client.send(method, f"/v1/objects/Budget/{key}{query}", body)
    except ConnectionError:
        return
    end, status = time.monotonic(), 500 if reply is None else reply[0]
    assert status in (200, 404, 409) or status >= 500, reply
    end = math.inf if status >= 500 else end
    client.history[key].append(Operation(begin, end, action, argument, status == 200))


def register(state: int | None, done: Operation) -> int | None:
    """A budget as one step: its value, or None where there is none."""
    match done.action:
        case "read":
            possible, after = done.answer == state, state
        case "delete":
            possible, after = done.answer == (state is not None), None
        case "swap":
            expected, value = done.argument
            possible = done.answer == (state == expected)
            after = value if state == expected else state
        case _:
            possible, after = done.answer, done.argument
    if done.answered and not possible:
        raise Impossible
    return after


def check_objects(kills: int, seed: int) -> dict[str, int]:
    """Clients edit three budgets through `kills` kills; their histories are linearizable."""
    counted = Counter[str](kills=kills)
    with short_folder() as folder:
        plane = _plane(folder)
        clients = [Client(plane.socket, edit, seed * 100 + i) for i in range(CLIENTS)]
        try:
            _kill(plane, kills, random.Random(seed), lambda: sum(each.count for each in clients))
        finally:
            status = plane.down()
            for client in clients:
                client.end()
        assert status == 0
    for key in KEYS:
        history = [each for client in clients for each in client.history[key]]
        counted["operations"] += len(history)
        counted["not answered"] += sum(not each.answered for each in history)
        assert linearizable(history, register, None), f"{key}: {sorted(history)}"
    return dict(counted)


# -- leases ---------------------------------------------------------------------------------------


def look(client: Client, rng: random.Random) -> None:
    """Who holds which device now."""
    begin = time.monotonic()
    try:
        reply = client.send("GET", "/v1/leases")
    except ConnectionError:
        return
    if reply is None or reply[0] >= 500:
        return
    held = {slot: row["lease"] for row in reply[1] for slot in row["slots"]}
    done = Operation(begin, time.monotonic(), "read", None, held)
    client.history["leases"].append(done)


def _holders_seen(clients: list[Client]) -> int:
    reads = (each for client in clients for each in list(client.history["leases"]))
    return len({(slot, lease) for each in reads for slot, lease in each.answer.items()})


def submit(client: Client, rng: random.Random) -> None:
    """Short runs, one after the other."""
    name = f"r{rng.randrange(10**9)}"
    body = run(name, gpus=rng.choice((1, 1, 2)), command=["sleep", "0.05"], duration="1s")
    try:
        client.send("PUT", f"/v1/objects/Run/{name}", body)
    except ConnectionError:
        return


def device(holders: tuple[str | None, ...]) -> Callable[[Any, Operation], int]:
    """One device as one step: where it is in the ledger's order of holders."""

    def step(state: int, done: Operation) -> int:
        if done.action == "read":
            if done.answer != holders[state]:
                raise Impossible
            return state
        if done.argument != state + 1:
            raise Impossible
        return state + 1

    return step


def check_leases(kills: int, seed: int, devices: int = 3) -> dict[str, int]:
    """What clients read about devices, through `kills` kills, follows the ledger's order."""
    counted = Counter[str](kills=kills)
    with short_folder() as folder:
        plane = _plane(folder)
        plane.apply(node(devices=devices), budget("team-a", devices))
        clients = [Client(plane.socket, look, seed * 100 + i) for i in range(3)]
        clients.append(Client(plane.socket, submit, seed))
        try:
            _kill(plane, kills, random.Random(seed), lambda: _holders_seen(clients))
        finally:
            status = plane.down()
            for client in clients:
                client.end()
        assert status == 0
        told = holders_of(folder / "data" / "ledger.db")
    reads = [each for client in clients for each in client.history["leases"]]
    counted["reads"] = len(reads)
    for slot in sorted(told):
        order = (None, *told[slot])
        # The control plane moves a device on when it likes; only the order is known.
        moves = [Operation(0.0, math.inf, "move", i) for i in range(1, len(order))]
        seen = [each._replace(answer=each.answer.get(slot)) for each in reads]
        counted["moves"] += len(moves)
        assert linearizable([*moves, *seen], device(order), 0), f"{slot}: {order} {sorted(seen)}"
    return dict(counted)


def holders_of(path: Path) -> dict[str, list[str | None]]:
    """Who held each device, in the ledger's order; None where it was free."""
    told: dict[str, list[str | None]] = defaultdict(list)
    slots: dict[str, list[str]] = {}
    with SqliteReader(path) as reader:
        after = 0
        while part := reader.entries(after, 10_000):
            after = part[-1].seq
            for entry in part:
                if entry.kind == "lease.open":
                    slots[entry.body["lease"]] = entry.body["slots"]
                    for slot in entry.body["slots"]:
                        told[slot].append(entry.body["lease"])
                elif entry.kind == "lease.close":
                    for slot in slots[entry.body["lease"]]:
                        told[slot].append(None)
    return told


def _plane(folder: Path) -> Plane:
    plane = Plane(folder, "--no-http")
    plane.preloaded = True
    return plane.up()


def _kill(plane: Plane, kills: int, rng: random.Random, progress: Callable[[], int]) -> None:
    """Kill it at a random moment of the clients' work, and let them work after the last time."""
    for number in range(kills + 1):
        _wait(plane, progress, rng.randint(6, 30))
        if number < kills:
            plane.down(signal.SIGKILL)
            plane.process = None
            plane.up()


def _wait(plane: Plane, progress: Callable[[], int], more: int) -> None:
    enough = progress() + more
    plane.until("the clients went on", lambda: progress() >= enough)
