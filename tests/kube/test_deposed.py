"""A leader that was replaced and does not know it yet; no server is needed."""

import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from fairlead.engine.gpu import ControlPlane
from fairlead.kube.client import ApiError, Connection, Document, KubeClient
from fairlead.kube.controller import ClusterController
from fairlead.kube.election import Election, Terms
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.gangs import GangWriter
from fairlead.kube.gpu.pods import PodExecutor
from fairlead.kube.gpu.ranks import read_pod
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Key, Mirrored
from fairlead.ports.executor import Executor, Job
from fairlead.ports.faults import TemporaryFault
from tests.engine.gpu.worlds import START, MemoryLedger
from tests.kube.small import Server, Small, put, shown
from tests.kube.test_pods import rank_pod
from tests.kube.world import node, run, until


class Wire(KubeClient):
    """Counts what would leave this process."""

    def __init__(self, **given: Any) -> None:
        super().__init__(Connection("nowhere", 1, None, lambda: None), **given)
        self.left: list[str] = []

    def _exchange(self, method: str, path: str, body: bytes | None, content: str) -> Document:
        self.left.append(method)
        return {}


def test_who_does_not_lead_writes_nothing() -> None:
    """Asked anew for every attempt: what waited for its turn may be too late."""
    leads = True
    client = Wire(may_write=lambda: leads)
    client.create("/x", {})
    leads = False
    for write in (
        lambda: client.create("/x", {}),
        lambda: client.patch("/x", {}),
        lambda: client.replace("/x", {}),
        lambda: client.delete("/x"),
    ):
        with pytest.raises(TemporaryFault, match="does not lead"):
            write()
    assert client.get("/x") == {}
    assert client.left == ["POST", "GET"]
    client.close()


def test_who_leads_no_more_when_it_is_connected_writes_nothing() -> None:
    """A handshake takes its time, and a process may be halted in the middle of it."""
    leads, received = [True], list[bytes]()

    class Slow(KubeClient):
        def _connect(self, *, timeout_s: float) -> HTTPConnection:
            made = super()._connect(timeout_s=timeout_s)
            leads[0] = False
            return made

    with socket.create_server(("127.0.0.1", 0)) as server:
        to = Connection("127.0.0.1", server.getsockname()[1], None, lambda: None)
        client = Slow(to, may_write=lambda: leads[0])
        with pytest.raises(TemporaryFault, match="does not lead"):
            client.create("/x", {})
        connected, _ = server.accept()
        with connected:
            received.append(connected.recv(1000))
    assert received == [b""], "the connection is closed, and nothing was sent over it"
    client.close()


def test_what_a_deposed_leader_sends_late_names_what_it_means(small: Small) -> None:
    """A status holds for the version that it was made for, a mark for one pod: what the successor
    has written meanwhile stays."""
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    path = KINDS["Run"].path("team-a", "train", "status")
    (status,) = [body for method, sent, body in small.client.sent if sent == path]
    known = small.sources.runs.get(Key("team-a", "train"))
    assert known is not None
    assert status["metadata"] == {"resourceVersion": known["metadata"]["resourceVersion"]}
    pod = rank_pod("train", 0, 1, "Running")
    small.client.sent.clear()
    found = read_pod(pod)
    assert found is not None
    GangWriter(small.client, small.sources).notify(found, "{}")
    ((_, _, mark),) = small.client.sent
    assert mark["metadata"]["uid"] == pod["metadata"]["uid"]


def test_nothing_is_written_after_the_client_is_closed() -> None:
    """A leader resigns when nothing of its own is under way any more."""
    client, begun, go_on = Wire(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(10)
        with pytest.raises(TemporaryFault):
            client.create("/x", {})
        client.left.append("refused")

    client.later(slow)
    begun.wait(10)
    closing = threading.Thread(target=client.close)
    closing.start()
    until(lambda: client._closed, "it is closing")
    assert closing.is_alive(), "it waits for what is under way"
    go_on.set()
    closing.join(10)
    assert client.left == ["refused"]


def test_a_list_that_is_older_than_what_we_know_takes_nothing_back() -> None:
    """A pod that we made while the server was asked for all is not gone; one that went meanwhile
    does not return; and of two lists the one that was asked for first may come last."""
    key, meanwhile = Key("", "a"), list[Callable[[], object]]()
    answers = iter([([], 5), ([], 7), ([shown(node("b"), version=3)], 8), ([], 20)])

    def answer(method: str, path: str, body: Any) -> Document:
        items, version = next(answers)
        if meanwhile:
            meanwhile.pop()()
        return {"items": items, "metadata": {"resourceVersion": str(version)}}

    client = Server(answer)
    source = Mirrored(client, "/", lambda: None, gone=True)
    source.refresh()
    meanwhile.append(lambda: source.put(shown(node("a"), version=10)))
    source.refresh()
    assert source.get(key) is not None, "it was made after the list"
    assert not source.take_gone()

    def went() -> None:
        with source._lock:
            source._end(Key("", "b"), shown(node("b"), version=9))

    meanwhile.append(went)
    source.refresh()
    assert source.get(Key("", "b")) is None, "it was deleted after the list"
    source.refresh()
    assert set(source.take_gone()) == {key}, "a newer list does not have it"
    client.close()


def test_a_list_that_comes_after_a_newer_one_is_no_news() -> None:
    newer: dict[str, Any] = {"items": [], "metadata": {"resourceVersion": "20"}}
    older = {"items": [shown(node("a"), version=5)], "metadata": {"resourceVersion": "9"}}
    asked = list[int]()

    def answer(method: str, path: str, body: Any) -> Document:
        asked.append(1)
        if len(asked) == 1:
            source.refresh()  # another thread, whose answer is faster
            return older
        return newer

    client = Server(answer)
    source = Mirrored(client, "/", lambda: None, gone=True)
    source.refresh()
    assert source.get(Key("", "a")) is None
    client.close()


def test_a_new_leader_knows_all_pods_whatever_its_watch_has_told() -> None:
    """And what the watch tells late is no news."""
    answers = {"items": [shown(node("a"), version=5)], "metadata": {"resourceVersion": "7"}}
    late = [
        {"type": "ADDED", "object": shown(node("b"), version=6)},
        {"type": "DELETED", "object": shown(node("b"), version=7)},
        {"type": "ADDED", "object": shown(node("c"), version=8)},
    ]
    client = Server(lambda method, path, body: answers)
    client.watch = lambda *_, **__: iter(late)  # type: ignore[method-assign]
    source = Mirrored(client, "/", lambda: None)
    source.refresh()
    assert set(source.all()) == {Key("", "a")}
    source._watch("1")
    assert set(source.all()) == {Key("", "a"), Key("", "c")}
    assert not source.take_gone()
    client.close()


def test_a_controller_that_cannot_read_the_cluster_ends_when_it_is_asked_to() -> None:
    """Not after the minute that it would wait for the first list."""

    def refuse(method: str, path: str, body: Any) -> Document:
        raise ApiError(503, "ServiceUnavailable", "the server starts")

    client = Server(refuse)

    def open_plane(executor: Executor) -> ControlPlane:
        raise AssertionError("it never leads")

    election = Election(client, "me", namespace="default")
    made = ClusterController(client, election, open_plane, lambda: START)
    running = threading.Thread(target=made.run)
    running.start()
    until(lambda: made.sources.runs.fault, "the first list fails")
    made.stop()
    running.join(10)
    assert not running.is_alive()
    assert not made.synced


class Leases:
    """The one Lease of an election, as a server keeps it."""

    def __init__(self) -> None:
        self.document: Document | None = None

    def answer(self, method: str, path: str, body: Any) -> Document | None:
        if "/leases" not in path:
            return {"items": [], "metadata": {"resourceVersion": "1"}} if method == "GET" else None
        if method == "GET" and self.document is None:
            raise ApiError(404, "NotFound", "there is none")
        if method != "GET":
            version = 1 + int((self.document or shown({}))["metadata"]["resourceVersion"])
            self.document = shown(body, version=version)
        return self.document


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_an_election_trusts_no_clock_but_its_own(renewed: str) -> None:
    """A lease is taken when it was not renewed for its time, by the clock of who takes it."""
    leases, now_s = Leases(), [100.0]
    client = Server(leases.answer)
    first, second = (
        Election(client, name, namespace="default", clock=lambda: now_s[0]) for name in "ab"
    )
    assert first.turn()
    assert leases.document is not None
    leases.document["spec"]["renewTime"] = renewed
    for _ in range(3):
        assert not second.turn()
        now_s[0] += 5.0
    assert not first.leads, "its time is over before another one may take it"
    now_s[0] += 5.1
    assert second.turn()
    assert not first.turn()
    assert first.holder == "b"
    client.close()


def test_a_turn_that_lasts_longer_than_the_lease_loses_nothing() -> None:
    leases, terms = Leases(), Terms(duration_s=1, renew_s=0.2)
    client = Server(leases.answer)
    election = Election(client, "me", namespace="default", terms=terms)
    led: list[bool] = []

    def open_plane(executor: Executor) -> ControlPlane:
        time.sleep(2.5)
        led.append(election.leads)
        return ControlPlane(MemoryLedger(time_ms=START), executor, lambda: START)

    controller = ClusterController(client, election, open_plane, lambda: START)
    running = threading.Thread(target=controller.run, daemon=True)
    running.start()
    until(lambda: controller.turns, "a turn is done")
    controller.stop()
    running.join(20)
    assert led == [True]
    assert leases.document is not None
    assert leases.document["spec"]["holderIdentity"] == "", "it resigned"


def test_a_delete_that_comes_late_hits_no_later_pod(small: Small) -> None:
    """The rank's name is used again as soon as the pod of an earlier start is gone."""
    put(small.sources.pods, rank_pod("a", 0, 1, "Succeeded"))
    plain = RunObject("u", {"spec": {"containers": [{"name": "main", "image": "x"}]}})
    executor = PodExecutor(small.client, small.sources, lambda _: plain, lambda: START)
    executor.start(Job("team-a.a.0123abcd.2", "team-a.a", "team-a", ("x",), ("n1#0",)))
    until(lambda: executor._late, "it waits for the name")
    (deleted,) = [body for method, _, body in small.client.sent if method == "DELETE"]
    assert deleted == {"preconditions": {"uid": "u"}}
