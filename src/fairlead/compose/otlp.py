"""Spans of OpenTelemetry, sent to a collector over OTLP/HTTP. Imported by `tracing` alone.

Spans wait in a bounded queue of the SDK; what a collector does not take in time is dropped.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from fairlead import __version__
from fairlead.host.log import Log
from fairlead.ports.tracing import Attribute

EXPORT_S, EVERY_MS, FLUSH_MS = 2.0, 1_000, 2_000
_log = Log("fairlead.traces")


@contextmanager
def spans_to(address: str) -> Iterator["Spans"]:
    about = Resource.create({"service.name": "fairlead", "service.version": __version__})
    provider = TracerProvider(resource=about)
    exporter = LoggedExporter(address)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EVERY_MS))
    try:
        yield Spans(provider.get_tracer("fairlead", __version__))
    finally:
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


class LoggedExporter(SpanExporter):
    """Says once that a collector takes no spans, where the SDK would say so every second."""

    def __init__(self, address: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        endpoint = f"{address.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
        self._endpoint, self._taken = endpoint, True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        taken = result is SpanExportResult.SUCCESS
        if self._taken and not taken:
            _log.warning("traces are not taken", collector=self._endpoint)
        self._taken = taken
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK gives it no types


class Spans:
    """Tells spans; which is inside which follows threads and tasks of one request."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        """Two underscores in the name of an attribute are its dot."""
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        return self._tracer.start_as_current_span(name, attributes=named)
