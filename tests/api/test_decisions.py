"""Entries and decisions over HTTP: searched, proved, decided again; what is hidden from whom."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from fairlead.api import decisions, service
from fairlead.api.app import ENDPOINTS
from fairlead.core.audit import check_inclusion, leaf_hash
from fairlead.schema.replay import Replayed, Verdict
from tests.api.servers import Running, budget, node, run, serving, short_folder

SHAPES = {each.path: each.answer for each in ENDPOINTS if each.method == "GET"}
SECRET = "hush-hush"


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """A run with a command that is its owner's alone, and an outcome."""
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        running.apply(node(devices=2), budget("team-a", 4), budget("team-b", 4))
        running.apply(
            run(
                "mine",
                "team-a",
                command=["sh", "-c", f"exec sleep 600 # {SECRET}"],
                checkpointGrace="1s",
            ),
            run("theirs", "team-b", duration="9h"),
        )
        for name in ("mine", "theirs"):
            running.until(name, lambda name=name: running.status("Run", name)["phase"] == "Running")
        number = running.ok("POST", "/v1/resolve", {"flavor": "H100", "gpus": 1})["outcome"]
        path = f"/v1/outcomes/{number}"
        running.until("applied", lambda: running.ok("GET", path)["stage"] == "applied")
        yield running


def read(lab: Running, path: str, documented: str = "", **more: Any) -> Any:
    """An answer, after making sure that it has its documented type."""
    found = lab.ok("GET", path, **more)
    msgspec.convert(found, SHAPES[documented or path.partition("?")[0]])
    return found


def search(lab: Running, **query: Any) -> list[dict[str, Any]]:
    """All pages of a search, as anybody gets them."""
    items: list[dict[str, Any]] = []
    before = None
    while True:
        words = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        more = "" if before is None else f"&before={before}"
        page = read(lab, f"/v1/entries?{words}{more}", tcp=True)
        items += page["items"]
        before = page["next"]
        if before is None:
            return items


def test_a_search_finds_what_it_names_page_by_page(lab: Running) -> None:
    """By kind, object, author, time and text; newest first; each entry once."""
    everything = search(lab, limit=200)
    seqs = [row["seq"] for row in everything]
    assert seqs == list(range(seqs[0], 0, -1))
    # The run that was preempted starts again meanwhile: newer entries may come.
    assert [row["seq"] for row in search(lab, limit=7) if row["seq"] <= seqs[0]] == seqs
    kinds = {row["kind"] for row in search(lab, kind="gpu.resolve")}
    assert {"gpu.resolve.commit", "gpu.resolve.draw"} <= kinds
    assert all(kind.startswith("gpu.resolve.") for kind in kinds)
    assert search(lab, kind="gpu.resolv") == []
    about = search(lab, object="Run/mine")
    assert about == [row for row in search(lab, object="mine") if row["seq"] <= about[0]["seq"]]
    assert {row["object"]["name"] for row in about} == {"mine"}
    assert search(lab, object="Budget/mine") == []
    assert {row["author"] for row in search(lab, author="fairlead")} == {"fairlead"}
    assert any("preempted" in row["message"] for row in search(lab, text="PREEMPTED by"))
    middle = everything[len(everything) // 2]
    since = search(lab, since=middle["time"])
    assert {row["seq"] for row in since} >= set(range(middle["seq"], seqs[0] + 1))
    until = search(lab, until=middle["time"])
    assert until[0]["time"] <= middle["time"]
    assert {row["seq"] for row in until} >= set(range(1, middle["seq"] + 1))


def test_a_search_looks_at_a_bounded_number_of_entries(
    lab: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then says where to go on, and nothing is skipped."""
    wanted = search(lab, kind="ledger.created")
    assert [row["seq"] for row in wanted] == [1]
    monkeypatch.setattr(decisions, "LOOKED_AT_MAX", 10)
    monkeypatch.setattr(decisions, "READ_AT_ONCE", 4)
    size = lab.ok("GET", "/v1/head")["size"]
    first = read(lab, "/v1/entries?kind=ledger.created", tcp=True)
    assert first["items"] == []
    assert size - 9 <= first["next"] <= lab.ok("GET", "/v1/head")["size"] - 9
    assert search(lab, kind="ledger.created") == wanted
    seqs = [row["seq"] for row in search(lab, limit=3)]
    assert seqs == list(range(seqs[0], 0, -1))


def test_what_is_hidden_is_not_found_either(lab: Running) -> None:
    """Neither shown nor searched: a command is its owner's."""
    assert search(lab, text=SECRET) == []
    (applied,) = [row for row in search(lab, object="Run/mine") if row["kind"] == "object.applied"]
    assert SECRET not in json.dumps(applied)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "query.limit"),
        ("limit=201", "query.limit"),
        ("before=0", "query.before"),
        ("since=yesterday", "query.since"),
        ("until=soon", "query.until"),
        ("kind=", "query.kind"),
        ("odd=1", "query.odd"),
    ],
)
def test_a_bad_search_is_refused(lab: Running, query: str, field: str) -> None:
    reply = lab.send("GET", f"/v1/entries?{query}", tcp=True)
    assert (reply.status, reply.json["error"]["path"]) == (422, field)


def _holds(found: dict[str, Any]) -> bool:
    data = found["entry"]
    assert data is None or leaf_hash(data.encode()).hex() == found["leaf"]
    head = found["head"]
    return check_inclusion(
        leaf=bytes.fromhex(found["leaf"]),
        index=found["event"]["seq"] - 1,
        size=head["size"],
        proof=[bytes.fromhex(step) for step in found["proof"]],
        root=bytes.fromhex(head["root"]),
    )


def test_every_entry_is_proved_and_shown_to_whom_it_may(lab: Running) -> None:
    """Exact bytes where nothing is hidden; else the hash, which proves as well."""
    owner, other = lab.token("ann", "team-a"), lab.token("bob", "team-b")
    for row in search(lab, limit=200):
        path = f"/v1/entries/{row['seq']}"
        public = read(lab, path, "/v1/entries/{seq}", tcp=True)
        assert _holds(public)
        assert public["event"]["kind"] == row["kind"]
        if public["entry"] is not None:
            assert SECRET not in public["entry"]
            assert "input" not in json.loads(public["entry"])["body"]
        admin = read(lab, path, "/v1/entries/{seq}")
        assert admin["entry"] is not None
        assert _holds(admin)
    (applied,) = [row for row in search(lab, object="Run/mine") if row["kind"] == "object.applied"]
    path = f"/v1/entries/{applied['seq']}"
    assert SECRET in lab.ok("GET", path, tcp=True, token=owner)["entry"]
    assert lab.ok("GET", path, tcp=True, token=other)["entry"] is None
    for wrong in ("0", "x", "9" * 30, "99999", "-1"):
        assert lab.send("GET", f"/v1/entries/{wrong}").status == 404, wrong


def test_a_decision_is_shown_and_decided_again(lab: Running) -> None:
    """All of them come to the same bytes; inputs are an admin's, except the lottery's."""
    replayed = set()
    for row in search(lab, limit=200):
        path = f"/v1/decisions/ledger/{row['seq']}"
        reply = lab.send("GET", path, tcp=True)
        if reply.status == 404:
            assert lab.ok("GET", f"/v1/entries/{row['seq']}")["decision"] is False
            assert lab.send("GET", f"{path}/replay").status == 404
            continue
        public = read(lab, path, "/v1/decisions/ledger/{seq}", tcp=True)
        admin = read(lab, path, "/v1/decisions/ledger/{seq}")
        assert admin["hidden"] == []
        assert isinstance(admin["input"], dict)
        assert isinstance(admin["output"], dict)
        for name in ("input", "output"):
            assert public[name] == (None if name in public["hidden"] else admin[name])
        drawn = row["kind"] == "gpu.resolve.draw"
        assert ("input" in public["hidden"]) is not drawn
        again = read(lab, f"{path}/replay", "/v1/decisions/ledger/{seq}/replay", tcp=True)
        assert (again["verdict"], again["detail"]) == ("same", "")
        assert again["recordedSHA256"] == again["decidedSHA256"]
        assert (again["decided"] is None) == ("output" in public["hidden"])
        replayed.add(row["kind"])
    assert {"gpu.fund", "gpu.place", "gpu.deficit", "gpu.resolve.draw"} <= replayed


def test_another_decision_is_called_so(lab: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first field that differs is named to those who may see it."""
    (draw,) = search(lab, kind="gpu.resolve.draw")
    (deficit,) = search(lab, kind="gpu.deficit")

    def differs(_: Any, entry: Any) -> Replayed:
        return Replayed(
            entry.seq, entry.kind, 1, Verdict.DIFFERENT, {"gpus": 2}, recorded={"gpus": 1}
        )

    monkeypatch.setattr(decisions, "replay", differs)
    for seq, told in ((draw["seq"], "gpus: recorded 1, decided 2"), (deficit["seq"], "")):
        found = lab.ok("GET", f"/v1/decisions/ledger/{seq}/replay", tcp=True)
        assert (found["verdict"], found["detail"]) == ("different", told)
        assert found["recordedSHA256"] != found["decidedSHA256"]
        assert found["bytes"] == len(b'{"gpus":1}')


def test_replays_wait_for_each_other(lab: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute, and anybody may ask: one at a time, and then the answer is to come back."""
    (draw,) = search(lab, kind="gpu.resolve.draw")
    monkeypatch.setattr(service, "REPLAY_WAIT_S", 0.01)
    with lab.service.replaying():
        reply = lab.send("GET", f"/v1/decisions/ledger/{draw['seq']}/replay", tcp=True)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
