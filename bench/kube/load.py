"""The load: Kueue's published baseline, or a smaller one of the same shape, for either side.

5 cohorts of 6 queues with a quota of 20; each queue gets 350 small, 100 medium and 50 large
workloads (1, 5, 20 GPUs; 200, 500, 1000 ms), one every 100, 500, 1200 ms. In Kueue the queues of a
cohort borrow; in Fairlead a queue is an owner with an envelope of 20, a cohort is a family.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
API = "fairlead.dev/v1alpha1"
CLASS, RUNTIME = "bench.fairlead.dev/class", "RUNTIME_MS"
QUOTA = 20
UNIT = {"small": 7, "medium": 2, "large": 1}
"""Workloads of each class in ten."""


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """One class of workloads, as Kueue's configuration names it."""

    name: str
    gpus: int
    runtime_ms: int
    every_ms: int
    priority: int
    estimate: str = "1h"
    """How long its owner says that it runs: a few times as long as it does."""


CLASSES = (
    WorkloadClass("small", 1, 200, 100, 50, "1s"),
    WorkloadClass("medium", 5, 500, 500, 100, "2s"),
    WorkloadClass("large", 20, 1000, 1200, 200, "4s"),
)


@dataclass(frozen=True, slots=True)
class WorkloadSet:
    """Workloads that are created one after the other, each a while after the last."""

    queue: str
    of: WorkloadClass
    count: int


@dataclass(frozen=True, slots=True)
class Load:
    """How many of everything."""

    cohorts: int
    queues: int
    tens: int
    """Tens of workloads of each queue."""

    @classmethod
    def of(cls, workloads: int) -> "Load":
        """About so many: in 30 queues from 300 on, in one cohort below."""
        if workloads >= 300:
            return cls(5, 6, workloads // 300)
        return cls(1, max(1, workloads // 10), 1)

    @property
    def workloads(self) -> int:
        return self.cohorts * self.queues * self.tens * 10

    @property
    def quota(self) -> int:
        return self.cohorts * self.queues * QUOTA

    def names(self) -> Iterator[tuple[str, str]]:
        """(cohort, queue)"""
        for cohort in range(self.cohorts):
            for queue in range(self.queues):
                yield f"cohort-{cohort}", f"cq-{cohort}-{queue}"

    def sets(self) -> Iterator[WorkloadSet]:
        for _, queue in self.names():
            for of in CLASSES:
                yield WorkloadSet(queue, of, UNIT[of.name] * self.tens)

    def for_kueue(self) -> Document:
        """The generator's configuration, in the words of Kueue's own."""
        sets = [
            {
                "count": UNIT[of.name] * self.tens,
                "creationIntervalMs": of.every_ms,
                "workloads": [
                    {
                        "className": of.name,
                        "runtimeMs": of.runtime_ms,
                        "priority": of.priority,
                        "request": str(of.gpus),
                    }
                ],
            }
            for of in CLASSES
        ]
        queues = {
            "className": "cq",
            "count": self.queues,
            "nominalQuota": str(QUOTA),
            "borrowingLimit": "100",
            "reclaimWithinCohort": "Any",
            "withinClusterQueue": "LowerPriority",
            "workloadsSets": sets,
        }
        return {"cohorts": [{"className": "cohort", "count": self.cohorts, "queuesSets": [queues]}]}

    def for_fairlead(self, quota: int = QUOTA) -> Iterator[Document]:
        """Namespaces, whose they are, and their budgets."""
        for cohort, queue in self.names():
            envelope = {"name": "main", "flavor": "gpu", "concurrency": quota}
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": queue}}
            yield _made("OwnerBinding", queue, {"namespace": queue, "owner": queue})
            yield _made(
                "Budget", queue, {"owner": queue, "parents": [cohort], "envelopes": [envelope]}
            )


def _made(kind: str, name: str, spec: Document) -> Document:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def run(name: str, namespace: str, of: WorkloadClass, **template: Any) -> Document:
    """One workload as a Run; `template`: more of its pod template."""
    pod = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}, **template}
    return {
        "apiVersion": API,
        "kind": "Run",
        "metadata": {"name": name, "namespace": namespace, "labels": {CLASS: of.name}},
        "spec": {
            "flavor": "gpu",
            "totalGPUs": of.gpus,
            "duration": of.estimate,
            "priority": of.priority,
            "env": {RUNTIME: str(of.runtime_ms)},
            "template": pod,
        },
    }
