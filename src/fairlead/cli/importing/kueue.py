"""Kueue: ClusterQueues and Cohorts as Budgets.

A ClusterQueue becomes a Budget of an owner with its name; its cohort is its parent, so the queues
of a cohort are a family and share what is idle. `nominalQuota` of GPUs is the concurrency.
"""

from collections import Counter
from typing import Any

from fairlead.cli.importing.report import Document, Imported
from fairlead.schema.border import printable

GPU = "nvidia.com/gpu"
_ELSEWHERE = {
    "LocalQueue": "bind users instead: fairlead users bind USER --owner QUEUE",
    "ResourceFlavor": "nodes say their flavor: see the spec of a Node",
    "WorkloadPriorityClass": "a Run has a priority within its owner",
}
_NOT_CARRIED = {
    "namespaceSelector": "users are bound to owners",
    "preemption": "preemption is `fairlead up --resolver`, the same for all owners",
    "queueingStrategy": "one queue, by tier and age, with backfill",
    "flavorFungibility": "a Run names its flavor",
    "admissionChecks": "there are none",
    "admissionChecksStrategy": "there are none",
    "stopPolicy": "cordon nodes, or lower the budget",
    "fairSharing": "owners are served by their budgets, without weights",
}


class NotKueue(ValueError):
    """Nothing of the input is read here."""


def import_kueue(documents: list[Any]) -> Imported:
    made = Imported()
    kinds = Counter(_named(document)[0] for document in documents)
    if not kinds["ClusterQueue"] + kinds["Cohort"]:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"
        raise NotKueue(
            "must have a ClusterQueue or a Cohort, as `kubectl get clusterqueues,cohorts -o yaml` "
            f"prints them; found {printable(found[:200])}"
        )
    queues: dict[str, str] = {}
    for document in documents:
        kind, name = _named(document)
        if kind == "ClusterQueue":
            queues[name] = _cohort(document.get("spec") or {})
    cohorts = {name for name in queues.values() if name}
    declared = set[str]()
    for document in documents:
        kind, name = _named(document)
        spec = document.get("spec") or {} if isinstance(document, dict) else {}
        if kind == "ClusterQueue":
            _queue(made, name, spec, queues)
        elif kind == "Cohort":
            declared.add(name)
            _cohort_budget(made, name, spec)
        else:
            why = _ELSEWHERE.get(kind, "it is neither a ClusterQueue nor a Cohort")
            made.lose(f"{kind} {name}", "", "", why)
    for name in sorted(cohorts - declared):
        made.add_budget(f"Cohort {name}", name, [], [])
    return made


def _named(document: Any) -> tuple[str, str]:
    if not isinstance(document, dict):
        return "document", str(document)[:40]
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    kind = document.get("kind")
    return (
        "document without a kind" if kind is None else str(kind),
        "without a name" if name is None else str(name),
    )


def _cohort(spec: Document) -> str:
    return str(spec.get("cohortName") or spec.get("cohort") or "")


def _queue(made: Imported, name: str, spec: Document, queues: dict[str, str]) -> None:
    about, cohort = f"ClusterQueue {name}", _cohort(spec)
    siblings = sorted(q for q, of in queues.items() if of == cohort and q != name and cohort)
    envelopes = _envelopes(made, about, spec, siblings)
    made.add_budget(about, name, [cohort] if cohort else [], envelopes)
    for key, why in _NOT_CARRIED.items():
        if spec.get(key) not in (None, {}, [], "None"):
            made.lose(about, key, spec[key], why)


def _cohort_budget(made: Imported, name: str, spec: Document) -> None:
    about, parent = f"Cohort {name}", str(spec.get("parentName") or spec.get("parent") or "")
    made.add_budget(about, name, [parent] if parent else [], _envelopes(made, about, spec, []))
    if spec.get("fairSharing"):
        made.lose(about, "fairSharing", spec["fairSharing"], _NOT_CARRIED["fairSharing"])


def _envelopes(
    made: Imported, about: str, spec: Document, siblings: list[str]
) -> list[dict[str, Any]]:
    envelopes = []
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                where = f"{flavor.get('name')}.{resource.get('name')}"
                if resource.get("name") != GPU:
                    quota = resource.get("nominalQuota")
                    made.lose(about, where, quota, "budgets are of GPUs only")
                    continue
                envelope = _envelope(made, about, where, flavor, resource, siblings=siblings)
                envelopes += [] if envelope is None else [envelope]
    return envelopes


def _envelope(
    made: Imported,
    about: str,
    where: str,
    flavor: Document,
    resource: Document,
    *,
    siblings: list[str],
) -> dict[str, Any] | None:
    quota, lends = str(resource.get("nominalQuota", "")), resource.get("lendingLimit")
    if not (quota.isascii() and quota.isdigit()):
        made.lose(about, f"{where}.nominalQuota", quota, "must be a number of whole GPUs")
        return None
    if resource.get("borrowingLimit") is not None:
        why = "each Run says how much it may borrow: funding.maxBorrowGPUs"
        made.lose(about, f"{where}.borrowingLimit", resource["borrowingLimit"], why)
    if quota == "0":
        made.lose(about, f"{where}.nominalQuota", quota, "an envelope has at least one GPU")
        return None
    name = str(flavor.get("name"))
    made_of: dict[str, Any] = {"name": name, "flavor": name, "concurrency": int(quota)}
    if lends is not None:
        # The family would share all of it: it is lent to the siblings by name instead, up to that.
        made_of["sharing"] = "none"
        if str(lends) != "0" and siblings:
            made_of["lending"] = {"allow": True, "to": siblings, "maxConcurrency": int(str(lends))}
            why = "its siblings' runs must say funding.allowBorrow to use it"
            made.lose(about, f"{where}.lendingLimit", lends, why)
        elif str(lends) != "0":
            why = "no other ClusterQueue of its cohort is in the input: it lends to none"
            made.lose(about, f"{where}.lendingLimit", lends, why)
    return made_of
