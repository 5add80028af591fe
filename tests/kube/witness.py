"""Watches pods and leases beside the proxy, and checks at every event that nothing is used twice.

A pod that is not gone, has not ended and is behind no gate holds its devices, also while it
terminates.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fairlead.kube.client import ApiError, Connection, Document, KubeClient
from fairlead.kube.gpu.ranks import GPU, JOB, LEASES, RUN
from fairlead.kube.kinds import KINDS
from fairlead.ports.faults import Fault


class Held(NamedTuple):
    """What a pod holds."""

    uid: str
    job: str
    node: str
    gpus: int
    leases: tuple[str, ...]


def held(pod: Document) -> Held | None:
    meta, spec = pod["metadata"], pod["spec"]
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or spec.get("schedulingGates"):
        return None
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (node,) = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"]
    notes = meta["annotations"]
    gpus = int(spec["containers"][0]["resources"]["limits"][GPU])
    return Held(meta["uid"], notes[JOB], node, gpus, tuple(notes[LEASES].split(",")))


class Witness:
    """`problems` is empty as long as all is well."""

    def __init__(
        self, to: Connection, gpus: int, see: Callable[[str, Document], None] = lambda *_: None
    ) -> None:
        """`see` is told every event."""
        self._client, self._gpus, self._see = KubeClient(to), gpus, see
        self._stop = threading.Event()
        self.problems: list[str] = []
        self.events = 0
        self.together: set[tuple[Held, Held]] = set()
        """Pods of different starts that were on one node at once."""
        watched = {
            "/api/v1/pods": (self._check_pods, {"labelSelector": RUN}),
            KINDS["GPULease"].path(): (self._check_leases, {}),
        }
        self._threads = [
            threading.Thread(target=self._follow, args=(path, *how), daemon=True)
            for path, how in watched.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()

    def _follow(self, path: str, check: Any, query: dict[str, str]) -> None:
        while not self._stop.is_set():
            try:
                items, version = self._client.list(path, **query)
                known = {item["metadata"]["uid"]: item for item in items}
                check(known)
                for event in self._client.watch(path, version, **query):
                    if event["type"] == "BOOKMARK":
                        continue
                    self.events += 1
                    self._see(event["type"], event["object"])
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = event["object"]
                    check(known)
            except (ApiError, Fault):
                self._stop.wait(0.1)  # it is away, or was restarted: list again
            except Exception as error:  # noqa: BLE001 - a witness that dies must not be taken for content
                self.problems.append(f"the witness of {path} died: {error!r}")
                return

    def _check_pods(self, pods: dict[str, Document]) -> None:
        holding = [found for pod in pods.values() if (found := held(pod)) is not None]
        for node in {each.node for each in holding}:
            there = sorted(each for each in holding if each.node == node)
            if sum(each.gpus for each in there) > self._gpus:
                self.problems.append(f"more than {self._gpus} devices of {node} are used: {there}")
            self.together |= {
                (one, other) for one in there for other in there if one.job < other.job
            }

    def _check_leases(self, leases: dict[str, Document]) -> None:
        slots = [slot for lease in leases.values() for slot in lease["spec"]["slots"]]
        if len(slots) != len(set(slots)):
            shown = {lease["metadata"]["name"]: lease["spec"]["slots"] for lease in leases.values()}
            self.problems.append(f"a device is leased twice: {shown}")

    def check(self, slots: dict[str, list[str]]) -> None:
        """With every lease's slots, as the ledger has them."""
        for one, other in self.together:
            mine, theirs = (
                {slot for lease in each.leases for slot in slots[lease] if each.node in slot}
                for each in (one, other)
            )
            if mine & theirs:
                self.problems.append(f"{one} and {other} had {mine & theirs} at once")
        assert not self.problems, "\n".join(self.problems[:5])
        assert self.events > 0, "the witness saw nothing"
