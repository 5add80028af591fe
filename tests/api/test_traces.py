"""Traces of the control plane: told to a collector where one is named, and else not even loaded."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from fairlead.compose.tracing import tracing
from fairlead.ports.faults import PermanentFault
from tests.api.servers import budget, node, run, serving, short_folder


class Collector:
    """Takes spans over OTLP/HTTP, on loopback."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces" and status == 200:
                    collector.take(body)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        with self._arrived:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {row.key: row.value.string_value for row in resource.resource.attributes}
                self.services.add(named["service.name"])
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._arrived.notify_all()

    def until(self, holds: Any) -> Any:
        with self._arrived:
            assert self._arrived.wait_for(lambda: bool(holds()), 60), [s.name for s in self.spans]
            return holds()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    made = Collector(status)
    try:
        yield made
    finally:
        made.close()


def about(span: Span) -> dict[str, Any]:
    return {
        row.key: row.value.string_value
        if row.value.HasField("string_value")
        else row.value.int_value
        for row in span.attributes
    }


def test_a_request_a_turn_its_decisions_and_what_follows_are_spans() -> None:
    """Each decision names its kind and its entry; each lies inside the request or turn that made
    it."""
    with collecting() as collector, short_folder() as folder:
        with serving(folder, traces=collector.address) as server:
            server.apply(
                node("n1"), budget("team-a", 8), run("train", "team-a", 2, command=["true"])
            )

            def started() -> list[Span]:
                return [
                    span
                    for span in collector.spans
                    if span.name == "apply" and about(span)["fairlead.verb"] == "start"
                ]

            (apply,) = collector.until(started)
            assert about(apply)["fairlead.run"] == "train"
            entry = server.ok("GET", "/v1/explain/Run/train")["cover"]
            server.ended("train")
        spans = {span.span_id: span for span in collector.spans}
        decisions = [span for span in spans.values() if span.name == "decision"]
        (fund,) = [span for span in decisions if about(span)["fairlead.seq"] == entry["seq"]]
        assert about(fund)["fairlead.kind"] == "gpu.fund"
        for inner in (apply, fund):
            assert spans[inner.parent_span_id].name in ("turn", "POST /v1/apply")
        (applied,) = [span for span in spans.values() if span.name == "POST /v1/apply"]
        assert about(applied) == {"http.request.method": "POST", "http.route": "/v1/apply"}
        assert collector.services == {"fairlead"}
        kinds = {about(span)["fairlead.kind"] for span in decisions}
        assert kinds >= {"gpu.fund", "gpu.place"}


@pytest.mark.parametrize("status", [500, None])
def test_a_collector_that_is_away_changes_nothing(status: int | None) -> None:
    """It refuses, or nothing listens there: the control plane works, and ends in time."""
    with collecting(status or 200) as collector:
        address = collector.address
        if status is None:
            collector.close()
        with short_folder() as folder, serving(folder, traces=address) as server:
            server.apply(
                node("n1"), budget("team-a", 8), run("train", "team-a", 2, command=["true"])
            )
            server.ended("train")


def test_without_an_address_nothing_of_it_is_loaded() -> None:
    """Nor is it in an agent, whatever it is configured to do."""
    for module in ("fairlead.compose.up", "fairlead.compose.node", "fairlead.compose.traffic"):
        code = f"import {module}, sys; print([n for n in sys.modules if 'telemetry' in n])"
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == "[]", module


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairlead.compose.otlp", None)
    with pytest.raises(PermanentFault, match=r"fairlead\[otel\]"), tracing("http://127.0.0.1:1"):
        pass
