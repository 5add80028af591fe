"""Conditions of objects, as `kubectl wait` and `kubectl describe` read them."""

from datetime import UTC, datetime

from fairlead.kube.client import Document

_STATUS = {True: "True", False: "False", None: "Unknown"}


class Conditions:
    """Conditions of one object's generation; a condition's time moves only with its status."""

    def __init__(self, document: Document) -> None:
        rows = document.get("status", {}).get("conditions") or ()
        self._before = {row["type"]: row for row in rows}
        self._generation = document["metadata"]["generation"]

    def has(self, type: str) -> bool:
        return type in self._before

    def row(self, type: str, reason: str, message: str, *, holds: bool | None) -> Document:
        """`holds` None: it may still come about."""
        status, old = _STATUS[holds], self._before.get(type)
        since = old["lastTransitionTime"] if old and old["status"] == status else now()
        return {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": self._generation,
            "lastTransitionTime": since,
        }

    def of_run(self, status: Document) -> list[Document]:
        """`kubectl wait --for=condition=Running|Completed|Failed run/NAME`."""
        phase, message = status["phase"], status["message"] or ""
        running = phase in ("Running", "Shrunk")
        held = {
            "Admitted": running or phase == "Completed",
            "Running": running,
            "Completed": phase == "Completed",
            "Failed": phase == "Failed",
        }
        reason = status["reason"] or phase
        return [self.row(type, reason, message, holds=holds) for type, holds in held.items()]

    def of_reservation(self, status: Document) -> Document:
        state, why = status["state"], status["message"] or ""
        return self.row("Activated", status["reason"] or state, why, holds=state == "Active")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
