"""One object that is odd, refused or misread keeps no other one waiting; no server is needed."""

from typing import Any

import pytest

from fairlead.engine.gpu import Author
from fairlead.engine.gpu.values import NotFound
from fairlead.kube.client import Document, decode
from fairlead.kube.controller import ClusterController
from fairlead.kube.election import Election
from fairlead.kube.gpu.front import ADMIN, FrontEnd
from fairlead.kube.gpu.items import outcome_item
from fairlead.kube.gpu.mirror import Mirror
from fairlead.kube.gpu.ranks import whole
from fairlead.kube.gpu.verdicts import TEXT_MAX
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Key, Mirrored
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Archived
from tests.kube.small import Server, Small, put, refusing, shown
from tests.kube.world import made, node, run, until

PLAIN = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


@pytest.mark.parametrize(
    ("quantity", "number"), [("8", 8), ("0", 0), ("8k", 8000), ("1e3", 1000), ("1E3", 1000)]
)
def test_numbers_of_devices_are_read_as_kubernetes_writes_them(quantity: str, number: int) -> None:
    assert whole(quantity) == number


@pytest.mark.parametrize("quantity", ["", "-1", "1.5", "8Ki", "many", "9" * 5000, "1e99", "٣"])
def test_what_is_no_number_of_devices_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="no number of devices"):
        whole(quantity)


def test_a_node_that_is_misread_keeps_no_other_one_waiting(small: Small) -> None:
    odd, fine = node("a"), node("b")
    odd["status"]["allocatable"]["nvidia.com/gpu"] = "500m"
    put(small.sources.nodes, odd, fine)
    small.turn()
    small.turn()
    assert small.plane.objects.get("Node", "a") is None
    assert small.node("b")["spec"]["devices"] == 8
    assert len([line for line in small.said if "node a" in line]) == 1
    put(small.sources.nodes, node("a"), version=2)
    small.turn()
    assert small.node("a")["spec"]["devices"] == 8


def test_a_node_whose_devices_are_not_reported_has_not_failed(small: Small) -> None:
    """As after a restart of its kubelet: what runs there runs on, and nothing is added."""
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    assert small.status("team-a.train")["phase"] == "Running"
    put(small.sources.nodes, node("n1", gpus=0), version=2)
    small.turn()
    assert small.status("team-a.train")["phase"] == "Running"
    assert small.node("n1")["spec"]["cordoned"]
    put(small.sources.nodes, node("n1"), version=3)
    small.turn()
    assert not small.node("n1")["spec"]["cordoned"]


@pytest.mark.parametrize("part", ["ownerbindings", "/runs/", "gpuleases", "/events", "/status"])
@pytest.mark.parametrize("status", [403, 422, 500])
def test_what_the_server_refuses_to_show_keeps_no_run_waiting(
    small: Small, part: str, status: int
) -> None:
    small.client.answer = refusing(status, part)
    controller = ClusterController(
        small.client,
        Election(small.client, "me", namespace="default"),
        lambda _: small.plane,
        lambda: small.now_ms,
        say=small.said.append,
    )
    controller.plane, controller._front = small.plane, small.front
    controller.auditor, controller._mirror = small.auditor, small.mirror
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    for _ in range(3):
        controller.turn()
    assert small.status("team-a.train")["phase"] == "Running"
    until(lambda: any(path.endswith("/pods") for _, path, _ in small.client.sent), "pods are made")


def test_a_lease_that_was_made_without_its_status_gets_it(small: Small) -> None:
    """Its maker died between the two writes, or the second one failed."""
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.client.answer = refusing(500, "gpuleases/")
    small.turn()
    (lease,) = [body for _, path, body in small.client.sent if path.endswith("gpuleases")]
    put(small.sources.leases, lease)
    small.client.answer, small.client.sent[:] = (lambda *_: None), []
    small.turn()
    name = lease["metadata"]["name"]
    path = KINDS["GPULease"].path("team-a", name, "status")
    (patch,) = [body for _, sent, body in small.client.sent if sent == path]
    assert patch["status"]["open"]


# -- the client and the election ------------------------------------------------------------------


def test_one_write_that_raises_keeps_no_other_one_back() -> None:
    client, done = Server(), list[int]()

    def write(number: int) -> bool:
        if number == 1:
            raise KeyError("metadata")
        done.append(number)
        return True

    wanted = {1, 2, 3}
    with pytest.raises(Fault, match="KeyError"):
        client.each(wanted, write)
    client.close()
    assert sorted(done) == [2, 3]
    assert wanted == {1}


def test_a_watch_goes_on_after_what_it_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.kube.watch.BACKOFF_S", 0.01)
    answers = iter([{}, {"items": [None], "metadata": {"resourceVersion": "1"}}])
    fine = {"items": [shown(node("n1"))], "metadata": {"resourceVersion": "1"}}
    client = Server(lambda method, path, body: next(answers, fine))
    source = Mirrored(client, "/", lambda: None)
    source.start()
    assert source.wait(5)
    assert len(source.all()) == 1
    source.stop()
    client.close()


def test_a_lease_without_a_spec_can_be_taken() -> None:
    def answer(method: str, path: str, body: Any) -> Document | None:
        return {"metadata": {"name": "l", "resourceVersion": "1"}} if method == "GET" else None

    client = Server(answer)
    assert Election(client, "me", namespace="default").turn()
    client.close()


def test_a_lease_that_may_not_be_written_is_told() -> None:
    """Without a word a controller would wait for ever, and RouteGroups would have no conditions."""
    client = Server(refusing(403, "/leases"))
    election = Election(client, "me", namespace="default", name="l")
    assert not election.turn()
    assert "the Lease default/l: " in (election.fault or "")
    client.answer = lambda *_: None
    election._next = 0.0
    assert election.turn()
    assert election.fault is None
    client.close()


def test_reservations_name_runs_of_their_own_namespace_only(small: Small) -> None:
    small.add("team-a", run("train", 8))
    small.add("team-b")
    spec = {"run": "team-a.train", "earliestStart": "2030-01-01T00:00:00Z"}
    put(small.sources.reservations, made("Reservation", "r", spec, "team-b"))
    small.turn()
    ((_, verdict),) = [row for row in small.front.verdicts.items() if row[0][0] == "Reservation"]
    assert not verdict.accepted
    assert verdict.message == "there is no Run 'team-a.train' in its namespace yet"


@pytest.mark.parametrize("depth", [1, 500, 1500, 100_000])
def test_an_object_that_is_nested_too_deeply_is_read_without_its_depths(depth: int) -> None:
    deep = b'{"a":' * depth + b"[1]" + b"}" * depth
    text = b'"]}\\\\\\"{["'
    found = decode(b'{"items":[{"x":%s,"y":%s},{"z":[1,2]}]}' % (deep, text))
    assert found["items"][0]["y"] == ']}\\"{['
    assert found["items"][1] == {"z": [1, 2]}
    assert "a" in found["items"][0]["x"]


def test_a_namespace_has_a_limit_of_runs(small: Small) -> None:
    """The refusal names the option; one that was refused is taken when another has ended."""
    small.front = FrontEnd(small.client, small.plane, small.sources, runs_max=1)
    small.mirror = Mirror(
        small.client, small.plane, small.sources, small.front, auditor=small.auditor
    )
    small.add("team-a", run("first", 4), run("second", 4))
    small.add("team-b", run("other", 4, "team-b"))
    small.turn()
    verdicts = {key.name: row for (kind, key), row in small.front.verdicts.items() if kind == "Run"}
    assert [name for name, verdict in verdicts.items() if verdict.accepted] == ["first", "other"]
    assert verdicts["second"].reason == "TooManyRuns"
    assert "--max-runs" in verdicts["second"].message
    small.plane.verbs.act("Run", "team-a.first", "cancel", author=ADMIN)
    small.turn()
    assert small.plane.objects.get("Run", "team-a.second") is not None


def test_a_refusal_is_short_whatever_it_names(small: Small) -> None:
    long = {"metadata": {"labels": {"fairlead.dev/" + "a" * 100_000: "x"}}}
    small.add("team-a", run("train", 8, template={**PLAIN, **long}))
    small.turn()
    ((_, verdict),) = [row for row in small.front.verdicts.items() if row[0][0] == "Run"]
    assert not verdict.accepted
    assert len(verdict.message) == TEXT_MAX


@pytest.mark.parametrize("error", [NotFound("outcome", "7"), Archived("it was moved")])
def test_an_outcome_that_cannot_be_read_is_left_out(
    small: Small, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its entries may be in an archive by now."""

    def get(seq: int, *, author: Author) -> Document:
        raise error

    monkeypatch.setattr(small.plane.outcome_reports, "get", get)
    small.mirror._news.add(outcome_item(7))
    small.turn()
    assert not small.mirror._due


def test_a_refused_object_that_is_made_again_is_told_again(small: Small) -> None:
    """Under the same name, with the same mistake: it is another object, and has no status yet."""
    small.add("team-a")
    wrong = run("train", 8, duration="2 hours")
    for i, uid in enumerate(("first", "second")):
        small.client.sent[:] = []
        small.sources.runs.put(shown(wrong, 10 + i, uid=uid))
        small.turn()
        written = [
            body for _, path, body in small.client.sent if path.endswith("/runs/train/status")
        ]
        assert [body["status"]["phase"] for body in written] == ["Refused"], uid


def test_a_second_binding_does_not_take_the_namespace(small: Small) -> None:
    small.add("team-a")
    (first,) = small.sources.bindings.all().values()
    second = made("OwnerBinding", "a-typo", {"namespace": "team-a", "owner": "team-z"})
    for document, day in ((first, "01"), (second, "02")):
        stamp = f"2026-01-{day}T00:00:00Z"
        small.sources.bindings.put(shown(document, 20, creationTimestamp=stamp))
    small.turn()
    assert small.front.bound["team-a"]["spec"]["owner"] == "team-a"


def _status(small: Small, path: str) -> Document:
    """The status that was written last."""
    bodies = [body for _, sent, body in small.client.sent if sent.endswith(f"/{path}/status")]
    return dict(bodies[-1]["status"])


def test_what_may_still_come_is_waited_for_and_not_refused(small: Small) -> None:
    """An owner that is bound a moment later; a Reservation before its Run."""
    at = {"earliestStart": "2030-01-01T00:00:00Z"}
    put(small.sources.runs, run("train", 8))
    for name in ("train", "later"):
        put(small.sources.reservations, made("Reservation", name, {"run": name, **at}, "team-a"))
    small.turn()
    for path, field in (("runs/train", "phase"), ("reservations/train", "state")):
        status = _status(small, path)
        assert (status[field], status["reason"]) == ("Pending", "NoOwner")
        assert status["message"] == "no owner is bound to namespace 'team-a' yet"
        assert [row["status"] for row in status["conditions"]] == ["Unknown"]
    small.add("team-a")
    small.turn()
    assert small.status("team-a.train")["phase"] == "Reserved"
    assert _status(small, "reservations/train")["state"] == "Pending"
    status = _status(small, "reservations/later")
    assert (status["state"], status["reason"]) == ("Pending", "NoRun")
    put(small.sources.runs, run("later", 8), version=9)
    small.turn()
    assert small.status("team-a.later")["phase"] == "Reserved"
    assert _status(small, "reservations/later")["reason"] != "NoRun"


def test_a_refused_reservation_says_so_in_its_state(small: Small) -> None:
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    spec = {"run": "train", "earliestStart": "2030-01-01T00:00:00Z"}
    put(small.sources.reservations, made("Reservation", "r", spec, "team-a"))
    small.turn()
    status = _status(small, "reservations/r")
    assert (status["state"], status["reason"]) == ("Refused", "NotPending")
    assert status["message"] == "run 'train' is Running"


def test_a_budget_that_is_deleted_says_why_it_stays(small: Small) -> None:
    small.add("team-a", run("train", 8))
    put(small.sources.nodes, node("n1"))
    small.turn()
    (budget,) = small.sources.budgets.all().values()
    small.sources.budgets.put(shown(budget, 5, deletionTimestamp="2026-01-01T00:00:00Z"))
    small.turn()
    rows = {row["type"]: row for row in _status(small, "budgets/team-a")["conditions"]}
    assert rows["Terminating"]["reason"] == "EnvelopeInUse"
    assert "pays for open leases" in rows["Terminating"]["message"]


def test_a_chain_of_runs_is_taken_in_whichever_order_it_was_written(small: Small) -> None:
    """One link a turn at worst, without waiting in between; one of another name takes no part."""
    chain = [run(f"r{i:02}", 1, after=[{"run": f"r{i + 1:02}"}]) for i in range(30)]
    small.add("team-a", *chain, run("lost", 1, after=[{"run": "nobody"}]))
    put(small.sources.nodes, node("n1"))
    small.turn()
    assert not small.front.behind
    assert small.front.verdicts["Run", Key("team-a", "r00")].reason == "NoRun"
    put(small.sources.runs, run("r30", 1))
    turns = 0
    while small.front.behind or not turns:
        small.turn()
        turns += 1
        assert turns <= 31
    assert small.status("team-a.r00")["message"] == "starts after run/team-a.r01"
    assert not small.front.verdicts["Run", Key("team-a", "lost")].accepted
    assert small.status("team-a.r30")["phase"] == "Running"
