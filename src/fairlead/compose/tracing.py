"""OpenTelemetry traces of the control plane, where they are asked for (`fairlead up --traces`).

| span | of | attributes |
|---|---|---|
| `GET /v1/runs` and so on | an API request | `http.request.method`, `http.route` |
| `turn` | a turn of the control plane | |
| `decision` | a recorded decision, inside its turn or request | `fairlead.kind`, `fairlead.seq` |
| `apply` | a change by the executor, inside the same | `fairlead.verb`, `.run`, `.decision` |

`otlp` has the packages, and is imported only where an address is given: no agent pays for them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from fairlead.ledger.replay import is_decision
from fairlead.ports.executor import Executor, Job
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Entry
from fairlead.ports.tracing import NoTracer, Tracer

_APPLIES = ("stop", "pause", "resume", "resize")


@contextmanager
def tracing(address: str | None) -> Iterator[Tracer]:
    """A tracer that sends to an OTLP/HTTP collector, such as `http://127.0.0.1:4318`; without an
    address one that does nothing."""
    if address is None:
        yield NoTracer()
        return
    try:
        from fairlead.compose.otlp import spans_to  # noqa: PLC0415 - an extra, and 20 MB
    except ImportError as error:
        raise PermanentFault(f"--traces needs pip install 'fairlead[otel]': {error}") from error
    with spans_to(address) as tracer:
        yield tracer


def decision_spans(tracer: Tracer) -> Callable[[Entry], None]:
    """A listener of the committer: one span for each decision that is recorded."""

    def note(entry: Entry) -> None:
        if is_decision(entry):
            with tracer.span("decision", fairlead__kind=entry.kind, fairlead__seq=entry.seq):
                pass  # it was decided just before; what matters is where, and the entry's number

    return note


class TracedExecutor:
    """An executor whose changes are spans."""

    def __init__(self, executor: Executor, tracer: Tracer) -> None:
        self._executor, self._tracer = executor, tracer

    def start(self, job: Job) -> None:
        with self._span("start", job.run, job.id):
            self._executor.start(job)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._executor, name)
        if name not in _APPLIES:
            return call

        def traced(run: str, *arguments: Any, decision: str, **more: Any) -> Any:
            with self._span(name, run, decision):
                return call(run, *arguments, decision=decision, **more)

        return traced

    def _span(self, verb: str, run: str, decision: str) -> AbstractContextManager[object]:
        about = {"fairlead__verb": verb, "fairlead__run": run, "fairlead__decision": decision}
        return self._tracer.span("apply", **about)


def traced(executor: Executor, tracer: Tracer) -> Executor:
    if isinstance(tracer, NoTracer):
        return executor
    return cast("Executor", TracedExecutor(executor, tracer))
