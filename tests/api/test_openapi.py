"""The OpenAPI document is true of the running server: a property-based client tries it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairlead.api.app import ENDPOINTS
from tests.api.reporting import group_moment, node_moment, report
from tests.api.servers import Running, run

BOUNDED = """
[[operations]]
include-path = "/v1/watch"
parameters = { "query.limit" = 1, "query.after" = 0 }
[[operations]]
include-path = "/v1/reports"
parameters = { "query.limit" = 1, "query.name" = "typed" }
[[operations]]
include-path = "/v1/events"
parameters = { "query.wait_s" = 0 }
[[operations]]
include-path = "/v1/runs/{name}/logs"
parameters = { "path.name" = "wrote", "query.follow" = false }
"""
REPORTED = {"nodes": {"typed": [node_moment(1)]}, "groups": {"typed": [group_moment(1)]}}


@pytest.mark.component("schemathesis")
def test_a_client_made_from_the_document_finds_no_lie(server: Running, tmp_path: Path) -> None:
    """Valid and invalid requests of every operation: status, headers and bodies as documented.

    Streams are bounded (`limit`, `wait_s`, no `follow`), or they would have no end. Not tried: that
    whatever fits the schema is accepted (a run must also make sense). The token is a tenant's, so
    that nobody undoes the fixture.
    """
    token = server.token("tester", "team-a")
    server.apply(run("wrote", command=["echo", "something"]))
    server.ended("wrote")
    server.ok("POST", "/v1/reports", report("typed", **REPORTED))
    config = tmp_path / "schemathesis.toml"
    config.write_text(BOUNDED)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("st")),
            "--config-file",
            str(config),
            "run",
            f"http://127.0.0.1:{server.port}/openapi.json",
            "-H",
            f"Authorization: Bearer {token}",
            "--max-examples",
            "3",
            "--generation-deterministic",
            "--phases",
            "coverage,fuzzing",
            "--exclude-checks",
            "positive_data_acceptance",
            "--no-color",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"Tested: {len(ENDPOINTS)}" in done.stdout, "none is left out"
    assert server.ok("GET", "/healthz")["ok"]


def test_answers_have_the_types_that_are_documented(server: Running) -> None:
    """Every table that can be read without parameters, with something in it, read strictly.

    Forecasts and outcomes need a waiting and a preempted run: test_preemption.py. A story needs a
    demo: test_story.py.
    """
    server.apply(run("typed", duration="1h"))
    server.until("running", lambda: server.status("Run", "typed")["phase"] == "Running")
    server.ok("POST", "/v1/reports", report("typed", **REPORTED))
    queries = {
        "/v1/sponsors": "?owner=team-b&flavor=H100",
        "/v1/consistency": "?old=1&new=2",
        "/v1/events": "?limit=1000",
    }
    tried = 0
    for each in ENDPOINTS:
        if each.method != "GET" or each.media != "application/json":
            continue
        if "{seq}" in each.path or each.path.endswith(("/forecast", "/story")):
            continue
        path = (
            each.path.replace("{kind}", "Run").replace("{name}", "typed").replace("{number}", "1")
        )
        answer = server.ok("GET", path + queries.get(each.path, ""))
        msgspec.convert(answer, each.answer)
        tried += 1
    assert tried >= 15
    described = server.ok("GET", "/openapi.json")
    assert described["openapi"] == "3.1.0"
    assert len(described["paths"]) == len({each.path for each in ENDPOINTS})
