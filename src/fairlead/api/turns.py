"""The threads beside the server: turns of the control plane, news for watchers, old output pruned.

All end when asked. A temporary fault is waited out; a broken invariant stops the process, and the
executor's shims keep the runs as they are.
"""

import threading
from collections.abc import Callable
from typing import Any

import structlog

from fairlead.api.service import Service
from fairlead.ports.faults import Fault

TURN_S, PRUNE_S = 1.0, 3600.0
_READ = 500
_RESOLVER = ("gpu.resolve.commit", "gpu.resolve.draw", "gpu.resolve.void", "run.cut")
_BREACHES = ("Exhausted", "Overcommitted")
_log = structlog.get_logger("fairlead.gpu")


class Turns:
    """Runs `reconcile` every second and after every change; logs what operators act on."""

    def __init__(self, service: Service, on_bug: Callable[[BaseException], None]) -> None:
        self._service, self._on_bug = service, on_bug
        self._stop = threading.Event()
        self._logged = service.plane.seq
        self._clock_told = False
        works = [("turns", self._turn, TURN_S), ("news", self._news, TURN_S)]
        if service.prune is not None:
            works.append(("prune", self._prune, PRUNE_S))
        self._threads = [
            threading.Thread(target=self._guard, args=(work, pause_s), name=name, daemon=True)
            for name, work, pause_s in works
        ]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End after the present turn."""
        self._stop.set()
        self._service.wake.set()
        for each in self._threads:
            each.join(timeout=10)

    def _guard(self, work: Callable[[], None], pause_s: float) -> None:
        said = ""
        while not self._stop.is_set():
            try:
                work()
                said = ""
            except Fault as fault:
                if str(fault) != said:
                    _log.warning("fault", fault=str(fault))
                said = str(fault)
                self._stop.wait(pause_s)
            except BaseException as error:  # noqa: BLE001 - a bug: nothing goes on after it
                self._on_bug(error)
                return

    def _turn(self) -> None:
        service = self._service
        service.wake.clear()
        try:
            service.plane.reconcile()
        except Fault as fault:
            service.fault = str(fault)
            raise
        service.fault = ""
        self._tell_clock(service.plane.faults.get("*clock"))
        service.wake.wait(TURN_S)

    def _tell_clock(self, fault: str | None) -> None:
        """Once for as long as it lasts."""
        if fault is not None and not self._clock_told:
            behind_s = self._service.plane.committer.clock_behind_ms // 1000
            _log.warning("clock behind", behind_s=behind_s, fault=fault)
        self._clock_told = fault is not None

    def _prune(self) -> None:
        if self._service.prune is not None:
            self._service.prune()
        self._stop.wait(PRUNE_S)

    def _news(self) -> None:
        seq = self._service.plane.events.wait(self._service.bell.seq, TURN_S)
        self._service.bell.ring(seq)
        while self._logged < seq:
            found = self._service.plane.events.read(self._logged, _READ)
            if not found:
                break
            for event in found:
                tell(event)
            self._logged = found[-1]["seq"]


def _tell_resolver(kind: str, body: dict[str, Any], seq: int) -> None:
    """A resolve from its commitment to its end; the seed once it is public."""
    if kind == "gpu.resolve.commit":
        _log.warning(
            "resolve committed",
            outcome=seq,
            scope=body["scope"],
            chain=body["chain"],
            k=body["k"],
            deficit_gpus=body["deficit_gpus"],
        )
    elif kind in ("gpu.resolve.draw", "gpu.resolve.void"):
        _log.warning(
            "resolve drawn" if kind.endswith("draw") else "resolve voided",
            outcome=body["commit_seq"],
            seed=body["seed"],
            label=body["label"],
            reason=body.get("reason"),
            seq=seq,
        )
    elif kind == "run.cut":
        _log.warning(
            "run gives way",
            run=body["run"],
            outcome=body["outcome"],
            leases=sorted(body["leases"]),
            reason=body["reason"],
            grace_ms=body["grace_ms"],
            seq=seq,
        )
    else:
        _log.warning(
            "reservation blocked",
            reservation=body["reservation"],
            run=body["run"],
            reason=body["reason"],
            shortfall_gpus=body["shortfall_gpus"],
            message=body["message"],
            seq=seq,
        )


def _is_resolver(event: dict[str, Any]) -> bool:
    if event["kind"] == "reservation.state":
        return bool(event["body"]["state"] == "Blocked")
    return event["kind"] in _RESOLVER


def tell(event: dict[str, Any]) -> None:
    """A structured log line for cover failures, lending denials and cap breaches."""
    body, seq = event["body"], event["seq"]
    if event["kind"] == "gpu.fund" and body["output"]["refusal"] is not None:
        refusal = body["output"]["refusal"]
        _log.warning(
            "cover failed",
            run=body["run"],
            owner=event["owner"],
            code=refusal["code"],
            shortfall_gpus=refusal["shortfall_gpus"],
            remedy=refusal["remedy"],
            seq=seq,
            message=refusal["message"],
        )
        for binding in refusal["binding"]:
            if binding["kind"] in ("acl", "lending"):
                _log.warning(
                    "lending denied",
                    run=body["run"],
                    owner=event["owner"],
                    budget=binding["budget"],
                    envelope=binding["name"],
                    limit=binding["limit"],
                    used=binding["used"],
                    seq=seq,
                )
    elif _is_resolver(event):
        _tell_resolver(event["kind"], body, seq)
    elif event["kind"] == "lease.unfunded":
        _log.warning(
            "cap breached",
            lease=body["lease"],
            run=body["run"],
            cap=body["kind"],
            budget=body["budget"],
            name=body["name"],
            hours=body["hours"],
            seq=seq,
        )
    elif event["kind"] == "budget.condition" and body["status"] and body["type"] in _BREACHES:
        _log.warning(
            "cap breached",
            budget=body["budget"],
            condition=body["type"],
            reason=body["reason"],
            message=body["message"],
            seq=seq,
        )
