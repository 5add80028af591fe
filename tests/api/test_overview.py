"""GET /v1/overview and `fairlead status`: the same lines, each with a view that exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.api.overview import overview
from fairlead.api.web import VIEWS
from fairlead.cli.gpu.render import told
from fairlead.schema.convert import convert
from fairlead.schema.reports import AgentReport
from fairlead.schema.times import format_time
from tests.api.reporting import backend, group_moment, node_moment, report
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.api.test_health import Served
from tests.cli.shells import Shell


@pytest.fixture
def busy() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(devices=4), budget("team-a", 4), run("first", gpus=2, duration="1h"))
        running.until("running", lambda: running.status("Run", "first")["phase"] == "Running")
        running.apply(run("too-big", gpus=99))
        running.until("refused", lambda: running.status("Run", "too-big")["refusal"])
        yield running


def test_the_command_prints_what_the_page_shows(busy: Running, tmp_path: Path) -> None:
    document = busy.ok("GET", "/v1/overview", tcp=True)
    assert document["gpu"]["devices"]["used"] == 2
    assert document["gpu"]["queue"]["notFunded"] == 1
    shell = Shell(busy, tmp_path / "heads.json")
    shown = json.loads(shell.ok("status", "-o", "json"))
    assert shown["attention"] == document["attention"]
    text = shell.ok("status")
    assert "4 devices: 2 used, 0 held as spares, 2 free, 0 unavailable" in text
    assert "1 running, 1 waiting" in text
    assert "concurrency of envelope team-a/main from 4 to 101 would do" in text
    for row in document["attention"]:
        assert told(row["text"]) in text, "a remedy as `plan` says it"


def test_every_line_leads_to_a_view(busy: Running) -> None:
    """The server answers there."""
    rows = busy.ok("GET", "/v1/overview")["attention"]
    assert "/runs/too-big" in {row["path"] for row in rows}
    views = [re.sub(r"\{[^}]+\}", "[^/]+", view) for view in VIEWS]
    for row in rows:
        path = re.split("[?#]", row["path"])[0]
        assert any(re.fullmatch(view, path) for view in views), row
        assert busy.send("GET", path, tcp=True).status == 200


def test_trouble_of_the_ledger_and_the_clock_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path)
    served.world.plane.faults |= {"*clock": "an hour behind", "busy": "no such program"}
    monkeypatch.setattr(served.ledger, "failure", lambda: "the disk is full")
    document = overview(served.service, None)  # type: ignore[arg-type]  # it reads no call
    kinds = [(row.kind, row.severity) for row in document.attention[:3]]
    assert kinds == [("ledger", "bad"), ("clock", "bad"), ("fault", "warn")]
    assert "the disk is full" in document.attention[0].text
    assert document.attention[2].path == "/runs/busy"


def test_what_agents_report_is_summed_and_needs_attention() -> None:
    """Congestion, shed load, ejected backends, faults; and an agent that is silent."""
    with short_folder() as folder, serving(folder) as server:
        quiet = server.ok("GET", "/v1/overview")
        assert (quiet["cpu"]["nodes"], quiet["traffic"]["groups"]) == (0, 0)
        calm = node_moment(1, mode="uncongested", need_millicores=900)
        hot = node_moment(1, mode="overloaded", problems=["web/main: no such file"])
        sick = [backend("a"), backend("b", isolated="outlier")]
        shedding = group_moment(1, mode="soft", reasons=["full"], backends=sick, fault="refused")
        for agent, parts in (
            ("one", {"nodes": {"n1": [calm], "n2": [hot]}}),
            ("two", {"groups": {"shop": [shedding]}}),
        ):
            server.ok("POST", "/v1/reports", report(agent, **parts))
        document = server.ok("GET", "/v1/overview")
        assert document["cpu"] | {"throttling": None} == {
            "nodes": 2,
            "congested": 0,
            "overloaded": 1,
            "stale": 0,
            "capacityMillicores": 3600,
            "needMillicores": 3300,
            "usageMillicores": 1920,
            "throttling": None,
        }
        traffic = document["traffic"]
        assert (traffic["groups"], traffic["soft"], traffic["hard"]) == (1, 1, 0)
        assert (traffic["backends"], traffic["ejected"]) == (2, 1)
        lines = {(row["severity"], row["path"], row["text"]) for row in document["attention"]}
        assert lines == {
            ("bad", "/cpu/n2", "Node n2 is overloaded: its pods need 2.4 of 1.8 cores"),
            ("bad", "/cpu/n2", "Node n2: web/main: no such file"),
            ("warn", "/traffic/shop", "Service shop sheds load: full"),
            ("warn", "/traffic/shop", "Service shop: 1 of 2 backends ejected, b"),
            ("bad", "/traffic/shop", "Service shop: the last plan was not applied: refused"),
        }


def test_a_silent_agent_is_urgent_and_counts_as_nothing_else(tmp_path: Path) -> None:
    served = Served(tmp_path)
    service, world = served.service, served.world
    moments = {"nodes": {"n1": [node_moment(1, world.now_ms)]}}
    service.fleet.take(convert(report("one", **moments), AgentReport), world.now_ms)
    world.now_ms += 60_000
    document = overview(service, None)  # type: ignore[arg-type]  # it reads no call
    assert (document.cpu.nodes, document.cpu.congested, document.cpu.stale) == (1, 0, 1)
    (row,) = (row for row in document.attention if row.kind == "agent")
    assert (row.severity, row.path) == ("bad", "/cpu/n1")
    assert row.since == format_time(world.now_ms - 60_000)
