"""An agent's reports to the control plane: buffered, bounded, and never in the agent's way.

    reporter = Reporter(send, agent="gpu-1")
    reporter.start()
    reporter.node("gpu-1", 5_000, lambda: moment)     # after a clearing: O(1), and it never raises
    reporter.close()

A thread of its own makes the documents and sends them. What cannot be sent waits in a buffer of
bounded size; the oldest moments are dropped first, and counted. A control plane that is down, slow
or wrong costs the agent nothing but that thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from fairlead.host.clock import now_ms
from fairlead.ports.faults import Fault
from fairlead.schema.reports import VERSION, GroupMoment, NodeMoment

EVERY_S = 1.0
"""How often it sends at most."""
WAITING_MAX, BYTES_MAX, BATCH_BYTES = 256, 4 * 2**20, 2**20
DECISION_BYTES_MAX = 2**19
"""A larger decision is left out of its moment; the agent's own record has it."""
PAUSE_S_MAX = 15.0
CLOSE_S = 1.0

Moment = NodeMoment | GroupMoment
Orders = Mapping[str, Mapping[str, str]]


class NotTaken(Exception):
    """The control plane did not take a report; `again` says whether to send it once more."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


Send = Callable[[bytes], bytes]
"""Send the body of a report and return the body of the reply; raises `NotTaken`."""


class _Waiting(NamedTuple):
    """A moment that is still to be made into a document."""

    part: str
    name: str
    every_ms: int
    make: Callable[[], Moment]


class _Made(NamedTuple):
    part: str
    name: str
    every_ms: int
    data: bytes


class Reporter:
    """Sends what `node` and `group` are given. `warn` is called when sending begins to fail, and
    when it works again."""

    def __init__(
        self,
        send: Send,
        *,
        agent: str,
        warn: Callable[[str], None] = lambda _: None,
        taken: Callable[[dict[str, Any]], None] = lambda _: None,
        every_s: float = EVERY_S,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._send, self._agent, self._warn, self._taken = send, agent, warn, taken
        self._every_s, self._bytes_max = every_s, bytes_max
        self._started_ms = now_ms()
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._made: deque[_Made] = deque()
        self._bytes = 0
        self.dropped = self.sent = 0
        self.problem = ""
        """Why the last report was not taken; empty when it was."""
        self._stop, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    # --- the agent's side

    def node(self, name: str, every_ms: int, make: Callable[[], NodeMoment]) -> None:
        self._offer(_Waiting("nodes", name, every_ms, make))

    def group(self, name: str, every_ms: int, make: Callable[[], GroupMoment]) -> None:
        self._offer(_Waiting("groups", name, every_ms, make))

    def _offer(self, moment: _Waiting) -> None:
        with self._lock:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(moment)
        self._news.set()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send what waits, if that works at once."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    # --- the thread

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            self._make_all()
            if self._flush():
                pause_s = self._every_s
            else:
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                self._news.set()  # what waits is tried again without news
            self._wait(pause_s)
        self._make_all()
        self._flush()

    def _wait(self, seconds: float) -> None:
        """Documents are made meanwhile, so that a long pause keeps no more than its bytes."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._stop.wait(
            min(left, self._every_s)
        ):
            self._make_all()

    def _make_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                moment = self._waiting.popleft()
            try:
                made = _Made(*moment[:3], _encoded(moment.make()))
            except Exception as error:  # noqa: BLE001 - a report never ends the agent
                self.dropped += 1
                self._failed(f"{moment.name}: {type(error).__name__}: {error}")
                continue
            self._made.append(made)
            self._bytes += len(made.data)
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._made.popleft().data)
                self.dropped += 1

    def _flush(self) -> bool:
        """Send everything, in batches; False where the control plane did not take one."""
        while self._made:
            batch = self._batch()
            try:
                reply = msgspec.json.decode(self._send(self._body(batch)))
                self._taken(reply)
            except NotTaken as error:
                self._failed(str(error))
                if error.again:
                    return False
                self.dropped += len(batch)
            except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
                self._failed(f"the reply is none of a control plane: {error}")
                return False
            except Fault as fault:  # what it ordered could not be kept: it is asked again
                self._failed(str(fault))
                return False
            else:
                self.sent += len(batch)
                if self.problem:
                    self.problem = ""
                    self._warn("the control plane takes reports again")
            for moment in batch:
                self._made.popleft()
                self._bytes -= len(moment.data)
        return True

    def _failed(self, reason: str) -> None:
        if not self.problem:
            self._warn(f"reports are not taken: {reason}")
        self.problem = reason

    def _batch(self) -> list[_Made]:
        batch: list[_Made] = []
        size = 0
        for moment in self._made:
            size += len(moment.data)
            if batch and size > BATCH_BYTES:
                break
            batch.append(moment)
        return batch

    def _body(self, batch: list[_Made]) -> bytes:
        parts: dict[str, dict[str, tuple[int, list[msgspec.Raw]]]] = {"nodes": {}, "groups": {}}
        for moment in batch:
            subject = parts[moment.part].setdefault(moment.name, (moment.every_ms, []))
            subject[1].append(msgspec.Raw(moment.data))
        document = {
            "version": VERSION,
            "agent": self._agent,
            "started_ms": self._started_ms,
            "dropped": self.dropped,
            **{
                part: [
                    {"name": name, "every_ms": every_ms, "moments": moments}
                    for name, (every_ms, moments) in subjects.items()
                ]
                for part, subjects in parts.items()
            },
        }
        return msgspec.json.encode(document)


def _encoded(moment: Moment) -> bytes:
    data = msgspec.json.encode(moment)
    if len(data) > DECISION_BYTES_MAX and moment.decision is not None:
        return msgspec.json.encode(msgspec.structs.replace(moment, decision=None))
    return data
