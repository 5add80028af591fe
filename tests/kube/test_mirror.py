"""What the cluster shows, and in which order; no server is needed."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from fairlead.kube.gpu.front import FrontEnd
from fairlead.kube.writers import Rank
from fairlead.ports.executor import Exit
from tests.kube.small import Server, Small, put, refusing
from tests.kube.world import node, run

Write = Callable[[], bool]


class Later:
    """Takes writes, and makes them when it is told to."""

    def __init__(self, client: Server, monkeypatch: pytest.MonkeyPatch, *, room: int) -> None:
        self._taken: list[tuple[Write, Future[bool]]] = []
        monkeypatch.setattr(client, "submit", self._submit)
        monkeypatch.setattr(client, "room", lambda span_s: room)

    def _submit(self, write: Write, rank: Rank) -> Future[bool]:
        future: Future[bool] = Future()
        self._taken.append((write, future))
        return future

    def write(self) -> list[bool]:
        taken, self._taken = self._taken, []
        begun = [row for row in taken if row[1].set_running_or_notify_cancel()]
        for write, future in begun:
            future.set_result(write())
        return [future.result() for _, future in begun]


def shown(small: Small, run: str) -> list[Any]:
    """Phases that were written of a run."""
    path = f"/runs/{run}/status"
    return [body["status"].get("phase") for _, sent, body in small.client.sent if path in sent]


def step(small: Small) -> None:
    small.front.turn()
    small.plane.reconcile()
    small.mirror.turn()


def end(small: Small, run: str) -> None:
    job = small.status(run)["job"]
    exit = Exit(job, run, small.now_ms, code=0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(small.executor, "poll", lambda: [exit])
        small.plane.reconcile()


def test_a_state_that_changed_before_its_turn_is_never_written(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    step(small)
    end(small, "team-a.train")
    assert False in later.write(), "what was handed over is outdated"
    assert shown(small, "train") == []
    step(small)
    later.write()
    assert shown(small, "train") == ["Completed"]
    (body,) = [row for _, path, row in small.client.sent if path.endswith("/train/status")]
    held = {row["type"]: row["status"] for row in body["status"]["conditions"]}
    assert (held["Admitted"], held["Completed"]) == ("True", "True")


def test_what_came_and_went_before_its_turn_costs_one_write(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease is made and deleted, and no finalizer is set and taken away again."""
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.front.turn()
    small.plane.reconcile()
    end(small, "team-a.train")
    step(small)
    later.write()
    about = [
        path for method, path, _ in small.client.sent if "/team-a/" in path and method != "GET"
    ]
    assert [path for path in about if "gpuleases" in path] == []
    assert [path for path in about if "/runs/" in path] == [
        "/apis/fairlead.dev/v1alpha1/namespaces/team-a/runs/train/status"
    ]


def test_the_widest_run_is_shown_first(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(small.client, monkeypatch, room=1)
    small.add("team-a", run("a-small", 1), run("b-wide", 8), run("c-small", 1))
    put(small.sources.nodes, node("n1", gpus=16))
    step(small)
    later.write()
    assert shown(small, "b-wide") == ["Running"]
    assert shown(small, "a-small") == shown(small, "c-small") == []
    for _ in range(20):
        step(small)
        later.write()
    assert shown(small, "a-small") == shown(small, "c-small") == ["Running"]


def finalized(small: Small, run: str) -> int:
    """How often a run got its finalizer."""
    path = f"/runs/{run}"
    return sum(sent.endswith(path) and "metadata" in body for _, sent, body in small.client.sent)


def test_what_matters_more_takes_the_place_of_another_write_of_its_object(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer that waited behind thousands of runs kept its own run from being shown."""
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    step(small)
    later.write()
    assert shown(small, "train") == ["Running"]
    step(small)
    assert finalized(small, "train") == 0, "it is handed over, and not written yet"
    end(small, "team-a.train")
    step(small)
    later.write()
    assert shown(small, "train") == ["Running", "Completed"]
    assert finalized(small, "train") == 0
    for _ in range(3):
        step(small)
        later.write()
    assert finalized(small, "train") == 0, "its accounts are settled"
    assert not small.front.unheld


def test_a_run_that_starts_does_not_wait_for_what_was_to_say_that_it_waits(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes are made by rank: the one of a run that waits comes after all others."""
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("train", 8))
    step(small)
    put(small.sources.nodes, node("n1"))
    step(small)
    later.write()
    assert shown(small, "train") == ["Running"]


def test_a_run_that_waits_needs_no_finalizer(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted, it is gone at once, and is cancelled: there is nothing to settle."""
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("train", 8))
    for _ in range(3):
        step(small)
        later.write()
    assert shown(small, "train") == ["Pending"]
    assert finalized(small, "train") == 0
    put(small.sources.nodes, node("n1"))
    for _ in range(3):
        step(small)
        later.write()
    assert finalized(small, "train") == 1


def test_what_waits_longest_is_written_whatever_else_is_due(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget has the last rank, and is shown although runs fill what there is room for."""
    monkeypatch.setattr("fairlead.kube.gpu.mirror.OLDEST", 1)
    later = Later(small.client, monkeypatch, room=1)
    small.add("team-a", *(run(f"r{number}", 1) for number in range(8)))
    put(small.sources.nodes, node("n1"))
    for _ in range(4):
        step(small)
        later.write()
    assert any("/budgets/team-a" in path for _, path, _ in small.client.sent)


def test_what_was_written_while_nothing_waited_owes_the_oldest_no_write(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quiet day all that there was room for went to what waited longest, not to starts."""
    monkeypatch.setattr("fairlead.kube.gpu.mirror.OLDEST", 8)
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", *(run(f"early-{number}", 1) for number in range(8)))
    put(small.sources.nodes, node("n1", gpus=16))
    for _ in range(4):
        step(small)
        later.write()
    monkeypatch.setattr(small.client, "room", lambda span_s: 1)
    small.add("team-a", run("a-small", 1), run("b-wide", 4))
    step(small)
    later.write()
    assert shown(small, "b-wide") == ["Running"]
    assert shown(small, "a-small") == []


def test_what_waits_to_be_shown_is_kept_at_most_twice(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that start and end while nothing can be written leave their former ranks behind."""
    monkeypatch.setattr("fairlead.kube.gpu.mirror.STALE", 0)
    later = Later(small.client, monkeypatch, room=0)
    small.add("team-a", *(run(f"r{number}", 1) for number in range(8)))
    step(small)
    put(small.sources.nodes, node("n1"))
    step(small)
    for number in range(8):
        end(small, f"team-a.r{number}")
        step(small)
        assert len(small.mirror._ranked) <= 2 * len(small.mirror._due)
    monkeypatch.setattr(small.client, "room", lambda span_s: 100)
    for _ in range(3):
        step(small)
        later.write()
    assert [shown(small, f"r{number}") for number in range(8)] == [["Completed"]] * 8


def test_a_run_that_was_deleted_while_no_controller_ran_is_ended(small: Small) -> None:
    """It had no finalizer yet, so the cluster did not wait for us."""
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    assert small.status("team-a.train")["phase"] == "Running"
    (key,) = small.sources.runs.known()
    small.sources.runs._objects.pop(key)
    small.sources.runs.take_keys()
    successor = FrontEnd(small.client, small.plane, small.sources, say=small.said.append)
    successor.turn()
    assert small.status("team-a.train")["stopping"]


@pytest.mark.parametrize("told", ["late", "refused"])
def test_a_device_waits_for_a_lease_whose_making_is_under_way(
    small: Small, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """Of a lease that is closed before the server has answered, or that the server made although
    it said otherwise: its devices are shown under the next one when it is removed."""
    later = Later(small.client, monkeypatch, room=100)
    small.add("team-a", run("first", 8), run("second", 8))
    put(small.sources.nodes, node("n1"))
    step(small)
    if told == "refused":
        small.client.answer = refusing(500, "/gpuleases")
        assert False in later.write()
        small.client.answer = lambda method, path, body: None
    end(small, "team-a.first")
    step(small)
    writes = lambda: [  # noqa: E731 - read twice, below
        (method, path.rpartition(".")[0])
        for method, path, _ in small.client.sent
        if "/gpuleases" in path and method in ("DELETE", "POST")
    ]
    made = len(writes())
    later.write()
    for _ in range(3):
        step(small)
        later.write()
    assert [method for method, _ in writes()[made:]] == ["DELETE", "POST"]
