"""The threads beside the server: turns of the control plane, the event log, the service's chores.

All end when asked. A temporary fault is retried; a broken invariant stops the process, and the
executor's shims keep the runs as they are.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead.api.service import Service
from fairlead.host.log import Log
from fairlead.ports.faults import Fault
from fairlead.schema.words import readable

TURN_S = 1.0
_READ = 500
_BREACHES = ("Exhausted", "Overcommitted")
_log = Log("fairlead.gpu")


class Background:
    """Runs `reconcile` every second and after every change; logs what operators act on."""

    def __init__(self, service: Service, on_bug: Callable[[BaseException], None]) -> None:
        self._service, self._on_bug = service, on_bug
        self._stop = threading.Event()
        self._logged = service.plane.seq
        self._clock_logged = False
        chores = ((partial(self._chore, *chore), chore[1]) for chore in service.chores)
        stale = (partial(self._chore, service.note_stale, TURN_S), TURN_S)
        works = ((self._turn, TURN_S), (self._events, TURN_S), stale, *chores)
        self._threads = [
            threading.Thread(target=self._guard, args=work, daemon=True) for work in works
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the present turn."""
        self._stop.set()
        self._service.wake.set()
        for thread in self._threads:
            thread.join(timeout=15)

    def _guard(self, work: Callable[[], None], pause_s: float) -> None:
        logged = ""
        while not self._stop.is_set():
            try:
                work()
                logged = ""
            except Fault as fault:
                if str(fault) != logged:
                    _log.warning("fault", fault=str(fault))
                logged = str(fault)
                self._stop.wait(pause_s)
            except BaseException as error:  # noqa: BLE001 - a bug: nothing goes on after it
                self._on_bug(error)
                return

    def _turn(self) -> None:
        service = self._service
        service.wake.clear()
        try:
            with service.tracer.span("turn"):
                service.plane.reconcile()
        except Fault as fault:
            service.fault = str(fault)
            raise
        service.fault = ""
        self._log_clock(service.plane.faults.get("*clock"))
        service.wake.wait(TURN_S)

    def _log_clock(self, fault: str | None) -> None:
        """Once for as long as it lasts."""
        if fault is not None and not self._clock_logged:
            _log.warning("clock jumped", fault=fault)
        self._clock_logged = fault is not None

    def _chore(self, work: Callable[[], object], pause_s: float) -> None:
        work()
        self._stop.wait(pause_s)

    def _events(self) -> None:
        log = self._service.plane.events
        seq = log.wait(self._service.signal.seq, TURN_S)
        self._service.signal.notify(seq)
        while self._logged < seq:
            events = log.read(self._logged, _READ)
            if not events:
                break
            for event in events:
                log_event(event)
            self._logged = events[-1]["seq"]


def log_event(event: dict[str, Any]) -> None:
    """One structured line for funding failures, lending denials, cap breaches, preemption and
    processes that the ledger did not start."""
    kind, body, seq = event["kind"], event["body"], event["seq"]
    if kind == "gpu.fund" and body["output"]["refusal"] is not None:
        _log_refusal(event, body["output"]["refusal"])
    elif kind == "lease.unfunded":
        _warn("cap breached", seq, body, "lease run budget name hours", cap=body["kind"])
    elif kind == "budget.condition" and body["status"] and body["type"] in _BREACHES:
        _warn("cap breached", seq, body, "budget reason message", condition=body["type"])
    elif kind == "gpu.resolve.commit":
        _warn("resolve committed", None, body, "scope chain k deficit_gpus", outcome=seq)
    elif kind in ("gpu.resolve.draw", "gpu.resolve.void"):
        word = "resolve drawn" if kind.endswith("draw") else "resolve voided"
        more = {"outcome": body["commit_seq"], "reason": body.get("reason")}
        _warn(word, seq, body, "seed label", **more)
    elif kind == "run.cut":
        leases = sorted(body["leases"])
        _warn("run preempted", seq, body, "run outcome reason grace_ms", leases=leases)
    elif kind == "job.unknown":
        _warn("unknown process", seq, body, "run job grace_ms message")
    elif kind == "reservation.state" and body["state"] == "Blocked":
        _warn("reservation blocked", seq, body, "reservation run reason shortfall_gpus message")


def _warn(event: str, seq: int | None, body: dict[str, Any], fields: str, **more: Any) -> None:
    """A line with fields of the entry's body and, after its own number, more."""
    values = {name: body[name] for name in fields.split()} | more
    _log.warning(event, **values, **({} if seq is None else {"seq": seq}))


def _log_refusal(event: dict[str, Any], refusal: dict[str, Any]) -> None:
    about = {"run": event["body"]["run"], "owner": event["owner"]}
    message = readable(refusal["message"])
    fields = "code shortfall_gpus remedy"
    _warn("cover failed", event["seq"], refusal, fields, **about, message=message)
    for binding in refusal["binding"]:
        if binding["kind"] in ("acl", "lending"):
            more = {**about, "envelope": binding["name"]}
            _warn("lending denied", event["seq"], binding, "budget limit used", **more)
