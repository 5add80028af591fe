"""What happened in a schedule of faults, in its order: for the report of a failure."""

import threading
import time

from tests.kube.replicas import Replicas
from tests.kube.world import Document


class Chronicle:
    """Lines with their time; thread-safe."""

    def __init__(self) -> None:
        self._began, self._lock = time.monotonic(), threading.Lock()
        self._lines: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        with self._lock:
            self._lines.append((time.monotonic(), text))

    def see(self, event: str, document: Document) -> None:
        """A change of a pod or a lease, as the API server told it."""
        meta, status, spec = document["metadata"], document.get("status", {}), document["spec"]
        facts = {
            "node": spec.get("nodeName"),
            "slots": spec.get("slots"),
            "phase": status.get("phase"),
            "gated": bool(spec.get("schedulingGates")) or None,
            "leaving": meta.get("deletionTimestamp"),
            "job": (meta.get("annotations") or {}).get("fairlead.dev/job"),
            "version": meta["resourceVersion"],
        }
        shown = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        self.note(f"  {event} {document.get('kind', '')} {meta['name']} {shown}")

    def text(self) -> str:
        with self._lock:
            return "\n".join(f"{at - self._began:8.2f} {text}" for at, text in self._lines)

    def writes(self, replicas: Replicas) -> str:
        """What the controllers asked the API server for, through their proxies."""
        rows = sorted(
            (write.time_s, f"{number} {write.method} {write.path}")
            for number, replica in enumerate(replicas.all)
            for write in replica.writes
        )
        return "\n".join(f"{at - self._began:8.2f} {text}" for at, text in rows)
