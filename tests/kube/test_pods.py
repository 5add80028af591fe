"""Runs as pods, where something is in the way of starting, ending or reading them."""

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.engine.gpu.values import Refused
from fairlead.kube.client import ApiError, Document
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.front import ADMIN
from fairlead.kube.gpu.pods import PodExecutor
from fairlead.kube.gpu.ranks import JOB, RANK, RANKS, RUN, grace_s, read_pod
from fairlead.kube.watch import Key
from fairlead.ports.executor import Job
from tests.engine.gpu.worlds import START
from tests.kube.small import Small, put, refusing, shown
from tests.kube.world import node, run, until


def test_a_run_that_cannot_start_can_be_ended(small: Small) -> None:
    """By a quota, for one: a run that is deleted then gives its devices back."""
    small.client.answer = refusing(403, "/pods")
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    until(lambda: small.executor._late, "its pod is refused")
    assert small.executor.running()
    leaving = {**run("train", 8)}
    leaving["metadata"] = {**leaving["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    put(small.sources.runs, leaving, version=2)

    def gone() -> bool:
        small.turn()
        return small.plane.objects.get("Run", "team-a.train") is None

    until(gone, "the run is ended and forgotten", 5)
    assert not small.plane.objects.list("Lease")
    assert not small.executor.running()


def rank_pod(run: str, rank: int, ranks: int, phase: str, **meta: Any) -> Document:
    return shown(
        {
            "metadata": {
                "name": f"{run}-{rank}",
                "namespace": "team-a",
                "labels": {RUN: run, RANK: str(rank)},
                "annotations": {JOB: f"team-a.{run}.0123abcd.1", RANKS: str(ranks)},
                **meta,
            },
            "spec": {},
            "status": {"phase": phase},
        }
    )


@pytest.mark.parametrize("ranks", ["9" * 5000, "٣", "1 "])
def test_a_number_that_none_of_our_pods_has_is_not_read(ranks: str) -> None:
    annotations = {JOB: "team-a.a.0123abcd.1", RANKS: ranks}
    assert read_pod(rank_pod("a", 0, 1, "Running", annotations=annotations)) is None


def test_a_gang_that_cannot_be_evicted_keeps_no_exit_back(small: Small) -> None:
    small.client.answer = refusing(500, "/eviction")
    put(small.sources.pods, rank_pod("a", 0, 2, "Failed"), rank_pod("a", 1, 2, "Running"))
    put(small.sources.pods, rank_pod("b", 0, 1, "Succeeded"))
    assert [exit.run for exit in small.executor.poll()] == ["team-a.b"]


def test_a_disruption_budget_does_not_stand_above_a_decision(small: Small) -> None:
    small.client.answer = refusing(429, "/eviction")
    put(small.sources.pods, rank_pod("a", 0, 1, "Running"))
    small.executor.stop("team-a.a", 5000, decision="7")
    method, path, body = small.client.sent[-1]
    assert (method, path) == ("DELETE", "/api/v1/namespaces/team-a/pods/a-0")
    assert body == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 5}


@pytest.mark.parametrize(("granted_s", "asked"), [(10**9, True), (5, False), (0, False)])
def test_a_pod_that_leaves_too_late_is_asked_again(
    small: Small, granted_s: int, asked: bool
) -> None:
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": granted_s}
    put(small.sources.pods, rank_pod("a", 0, 1, "Running", **leaving))
    small.executor.stop("team-a.a", 5000, decision="7")
    assert bool(small.client.sent) == asked


def test_a_pod_is_never_forgotten_before_it_has_ended() -> None:
    """A grace of none would be just that."""
    assert [grace_s(ms) for ms in (0, 1, 1000, 1001)] == [1, 1, 1, 2]


def test_a_template_that_makes_no_pod_ends_its_run(small: Small) -> None:
    """Whatever we did not foresee: a start that raises must not stay under way for ever."""
    job = Job("team-a.a.0123abcd.1", "team-a.a", "team-a", ("x",), ("n1#0",))
    odd = RunObject("u", {"spec": {"containers": ["text"]}})
    executor = PodExecutor(small.client, small.sources, lambda _: odd, lambda: START)
    executor.start(job)
    (exit,) = until(executor.poll, "it is refused")
    assert exit.lost
    assert "makes no pod" in exit.reason


@pytest.mark.parametrize(
    ("gates", "apart"), [([], True), ([{"name": "fairlead.dev/lease"}], False)]
)
def test_a_gang_that_lost_a_rank_while_nobody_looked_has_failed(
    small: Small, gates: list[Document], apart: bool
) -> None:
    """Behind its gate it has not begun: then the rank is made."""
    job = Job("team-a.a.0123abcd.1", "team-a.a", "team-a", ("x",), ("n1#0", "n2#0"))
    plain = RunObject("u", {"spec": {"containers": [{"name": "main", "image": "x"}]}})
    there = rank_pod("a", 0, 2, "Running")
    there["spec"]["schedulingGates"] = gates
    put(small.sources.pods, there)
    executor = PodExecutor(small.client, small.sources, lambda _: plain, lambda: START)
    executor.start(job)
    until(lambda: not executor._making, "the start is done")
    assert executor.poll() == []
    sent = [(method, path.rpartition("/")[2]) for method, path, _ in small.client.sent]
    assert (("POST", "eviction") in sent) == apart
    assert (("POST", "pods") in sent) != apart
    if apart:
        put(small.sources.pods, rank_pod("a", 0, 2, "Failed"), version=2)
        (exit,) = executor.poll()
        assert exit.job == job.id
        assert exit.lost


def test_a_gang_that_lost_a_node_holds_the_others_until_its_pods_are_gone(small: Small) -> None:
    small.add("team-a", run("gang", 8), run("next", 4))
    put(small.sources.nodes, node("n1", gpus=4), node("n2", gpus=4))
    small.turn()
    until(lambda: len(small.sources.pods.all()) == 2, "both pods are made")
    small.sources.nodes._end(Key("", "n1"), shown(node("n1"), version=2))
    small.turn()
    assert small.status("team-a.gang")["reason"] == "NodeFailed"
    assert small.status("team-a.next")["phase"] == "Pending", "n2 is still in use"
    evicted = [path for _, path, _ in small.client.sent if path.endswith("/eviction")]
    assert evicted, "and asked for"
    for key, document in small.sources.pods.all().items():
        small.sources.pods._end(key, shown(document, version=5000))
    small.turn()
    assert small.status("team-a.gang")["phase"] == "Pending"
    assert small.status("team-a.next")["phase"] == "Running"


class Pods:
    """The pods of a server, whose answers may be lost."""

    def __init__(self) -> None:
        self.there: dict[str, Document] = {}
        self.version, self.lost = 100, False

    def answer(self, method: str, path: str, body: Any) -> Document | None:
        self.version += 1
        if method == "GET" and path.startswith("/?"):  # as `Small` lists all of its kinds
            return {
                "items": list(self.there.values()),
                "metadata": {"resourceVersion": str(self.version)},
            }
        if not path.endswith("/pods"):
            return None
        made = shown(body, version=self.version, uid=f"u{self.version}")
        self.there[made["metadata"]["name"]] = made
        if self.lost:
            raise ApiError(500, "InternalError", "it is made, and nobody knows")
        return made


def test_devices_of_a_pod_whose_making_was_not_answered_are_not_given_away(small: Small) -> None:
    """Its run is deleted before the watch tells of the pod, which holds them until it goes."""
    pods = Pods()
    small.client.answer, pods.lost = pods.answer, True
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    until(lambda: small.executor._late, "its pod is not answered")
    leaving = {**run("train", 8)}
    leaving["metadata"] = {**leaving["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    put(small.sources.runs, leaving, version=2)

    def turned(holds: Callable[[], Any]) -> Any:
        small.turn()
        return holds()

    until(lambda: turned(small.sources.pods.known), "the server is asked")
    small.turn()
    assert [lease["status"]["open"] for lease in small.plane.objects.list("Lease")] == [True]
    assert any("train-0/eviction" in path for _, path, _ in small.client.sent)
    pods.there.clear()
    small.sources.pods.refresh()
    until(lambda: turned(lambda: not small.plane.committer.projection.leases), "it is free", 5)


def test_a_new_leader_makes_no_pod_again_that_it_saw_going(small: Small) -> None:
    """While it waited: the rank has begun, and is lost. No pod is under way when that is told."""
    pods = Pods()
    small.client.answer = pods.answer
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    until(lambda: pods.there, "it has its pod")
    job = small.status("team-a.train")["job"]
    successor = PodExecutor(small.client, small.sources, small.find_run, lambda: small.now_ms)
    pods.there.clear()
    small.sources.pods.refresh()
    sent = len(small.client.sent)
    successor.start(Job(job, "team-a.train", "team-a", ("true",), ("n1#0",)))
    until(lambda: not successor._making, "it is looked at")
    assert [path for method, path, _ in small.client.sent[sent:] if method == "POST"] == []
    (exit,) = successor.poll()
    assert (exit.job, exit.lost) == (job, True)


ASKED = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("meta", "ended", "stopped"),
    [
        ({}, "2026-01-01T00:00:10Z", False),
        (ASKED, "2026-01-01T00:00:09Z", False),
        (ASKED, "2026-01-01T00:00:10Z", True),  # in the second in which it was asked
        (ASKED, "2026-01-01T00:00:11Z", True),
        (ASKED, None, True),
        ({}, None, True),
    ],
)
def test_who_ended_before_being_asked_was_not_stopped(
    small: Small, meta: Document, ended: str | None, stopped: bool
) -> None:
    """A run that is preempted has not failed, nor completed, by the signal that asks it to end."""
    for code, phase in ((0, "Succeeded"), (143, "Failed")):
        pod = rank_pod("train", 0, 1, phase, **meta)
        state = {"terminated": {"exitCode": code, "finishedAt": ended}}
        pod["status"]["containerStatuses"] = [{"state": state if ended else {}}]
        executor = PodExecutor(small.client, small.sources, small.find_run, lambda: START)
        put(small.sources.pods, pod, version=10 + code)
        (exit,) = executor.poll()
        assert exit.stopped is stopped


def test_a_run_of_pods_is_not_paused(small: Small) -> None:
    """Refused when it is asked for: a ledger that says `paused` of pods that run would lie."""
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    with pytest.raises(Refused, match="pods cannot be paused: cancel the run"):
        small.plane.verbs.act("Run", "team-a.train", "pause", author=ADMIN)
    assert not small.status("team-a.train")["paused"]
