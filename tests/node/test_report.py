"""An agent's reports: bounded, in the background, and never in the agent's way."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.compose.reporting import http_send
from fairlead.node import report
from fairlead.node.report import NotTaken, Reporter
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.convert import convert
from fairlead.schema.reports import AgentReport, NodeMoment, ReportSettings
from tests.api.reporting import node_moment
from tests.node.traffic.servers import until

FAST_S = 0.01


def moment(number: int, **more: Any) -> NodeMoment:
    return convert(node_moment(number, time_ms=number, **more), NodeMoment)


class Plane:
    """A control plane that can be away, slow or wrong."""

    def __init__(self) -> None:
        self.taken: list[AgentReport] = []
        self.answer: Callable[[bytes], bytes] = self.take

    def __call__(self, body: bytes) -> bytes:
        return self.answer(body)

    def take(self, body: bytes) -> bytes:
        self.taken.append(check_shape(json.loads(body), AgentReport))
        return b'{"taken": 1, "orders": {}}'

    def away(self, body: bytes) -> bytes:
        raise NotTaken("connection refused", again=True)

    @property
    def numbers(self) -> list[int]:
        found = [row.decision for r in self.taken for n in r.nodes for row in n.moments]
        return [decision.number for decision in found if decision is not None]


@pytest.fixture
def plane() -> Plane:
    return Plane()


def reporting(plane: Plane, **more: Any) -> Reporter:
    made = Reporter(plane, agent="n", every_s=FAST_S, **more)
    made.start()
    return made


def test_moments_arrive_in_order_and_once(plane: Plane) -> None:
    reporter = reporting(plane)
    for number in range(1, 51):
        reporter.node("n", 1000, lambda number=number: moment(number))
    until(lambda: len(plane.numbers) == 50, "all arrived")
    assert plane.numbers == list(range(1, 51))
    assert (reporter.sent, reporter.dropped) == (50, 0)
    reporter.close()


def test_a_control_plane_that_is_away_costs_the_oldest_moments(plane: Plane) -> None:
    """They are counted, the warning comes once, and the newest arrive when it is back."""
    said: list[str] = []
    plane.answer = plane.away
    size = len(report._encoded(moment(1)))
    reporter = reporting(plane, warn=said.append, bytes_max=5 * size)
    for number in range(1, 21):
        reporter.node("n", 1000, lambda number=number: moment(number))
    until(lambda: reporter.dropped >= 14, "the oldest are dropped")
    plane.answer = plane.take
    until(lambda: plane.numbers, "taken again")
    assert plane.numbers[-1] == 20
    assert plane.taken[-1].dropped == reporter.dropped == 20 - len(plane.numbers)
    assert [text.partition(":")[0] for text in said] == [
        "reports are not taken",
        "the control plane takes reports again",
    ]
    reporter.close()


def test_a_slow_control_plane_delays_no_tick(plane: Plane) -> None:
    """While a request hangs every hand-over returns, and the queue is bounded."""
    hangs = threading.Event()

    def slow(body: bytes) -> bytes:
        hangs.wait()  # no hand-over waits for the reply: it would wait for ever
        return plane.take(body)

    plane.answer = slow
    reporter = reporting(plane)
    many = 4 * report.WAITING_MAX
    for number in range(many):
        reporter.node("n", 1000, lambda number=number: moment(number))
    assert len(reporter._waiting) <= report.WAITING_MAX
    assert reporter.dropped >= many - 2 * report.WAITING_MAX
    hangs.set()
    reporter.close()


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b'{"taken": "many"', b"\xff"], ids=["empty", "html", "cut", "bytes"]
)
def test_rubbish_as_a_reply_is_an_outage(plane: Plane, answer: bytes) -> None:
    plane.answer = lambda body: answer
    reporter = reporting(plane)
    reporter.node("n", 1000, lambda: moment(1))
    until(lambda: reporter.problem, "it is said")
    plane.answer = plane.take
    until(lambda: plane.numbers == [1], "sent again")
    reporter.close()


def test_a_report_that_is_refused_for_its_content_is_not_sent_again(plane: Plane) -> None:
    """What is wrong with a body stays wrong: it must not block what comes after it."""

    def refuse(body: bytes) -> bytes:
        raise NotTaken("422", again=False)

    plane.answer = refuse
    reporter = reporting(plane)
    reporter.node("n", 1000, lambda: moment(1))
    until(lambda: reporter.dropped == 1, "dropped")
    plane.answer = plane.take
    reporter.node("n", 1000, lambda: moment(2))
    until(lambda: plane.numbers == [2], "the next one is taken")
    reporter.close()


def test_a_moment_that_cannot_be_made_is_left_out(plane: Plane) -> None:
    reporter = reporting(plane)
    reporter.node("n", 1000, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    reporter.node("n", 1000, lambda: moment(2))
    until(lambda: plane.numbers == [2], "the others go on")
    assert reporter.dropped == 1
    reporter.close()


def test_a_decision_that_is_too_large_stays_in_the_agents_record(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "DECISION_BYTES_MAX", 100)
    reporter = reporting(plane)
    reporter.node("n", 1000, lambda: moment(1))
    until(lambda: plane.taken, "arrived")
    ((row,),) = [part.moments for part in plane.taken[0].nodes]
    assert row.decision is None
    assert row.state.pods
    reporter.close()


def test_close_sends_what_waits(plane: Plane) -> None:
    reporter = Reporter(plane, agent="n", every_s=60)
    reporter.start()
    reporter.node("n", 1000, lambda: moment(1))
    until(lambda: plane.numbers == [1], "the first goes at once")
    reporter.node("n", 1000, lambda: moment(2))
    reporter.close()
    assert plane.numbers == [1, 2]


def test_a_token_is_never_sent_in_the_open() -> None:
    for to, allowed in (
        ("http://10.0.0.1:8470", False),
        ("http://127.0.0.1:8470", True),
        ("/run/fairlead.sock", True),
    ):
        settings = ReportSettings(to, token_file="/nowhere")
        if allowed:
            with pytest.raises(NotTaken, match="token_file"):
                http_send(settings)(b"{}")
        else:
            with pytest.raises(BadInput, match="must be https"):
                http_send(settings)
    with pytest.raises(BadInput, match=r"report\.to"):
        http_send(ReportSettings("http://"))
