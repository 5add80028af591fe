"""The kinds that Fairlead adds to Kubernetes, and their CRDs, made from the manifests' own types.

A CRD refuses what a manifest's type refuses, so that nothing wrong is stored even while the
controller is away; what only the whole of the objects can tell (an unknown budget, another owner's
run) the controller says in the condition `Accepted`.
"""

import re
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec

from fairlead.kube.rules import DURATION_RULE, OBJECT_RULES, rules_of
from fairlead.kube.specs import (
    GPULeaseSpec,
    OwnerBindingSpec,
    PodAllocationSpec,
    QuerySpec,
    ResolverOutcomeSpec,
)
from fairlead.schema.objects import API_VERSION, BudgetSpec, ReservationSpec, RunSpec
from fairlead.schema.route_group import CONFIG_MAX, RouteGroupSpec
from fairlead.schema.times import DURATION_PATTERN
from fairlead.schema.traffic import AgentConfigDocument

GROUP, VERSION = API_VERSION.split("/")
_ITEMS_MAX, _TEXT_MAX = 1000, 4096
"""Bounds for what a manifest leaves open: the API server prices rules by the largest object."""

Document = dict[str, Any]
Column = tuple[str, str, str]
"""Name, type and path of a column of `kubectl get`."""


@dataclass(frozen=True, slots=True)
class KubeKind:
    """One kind: where it lives, what it says, how `kubectl get` shows it."""

    kind: str
    plural: str
    short: tuple[str, ...]
    spec: type[msgspec.Struct]
    columns: tuple[Column, ...]
    namespaced: bool = True
    written: bool = True
    """Whether users write it; else it is the controller's."""
    status: tuple[tuple[str, Document], ...] = ()
    """Parts of the status that have a shape of their own."""

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The address of the kind, of a namespace's objects, of one object, or a part of it."""
        parts = ["/apis", GROUP, VERSION]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *([name] if name else []), *([sub] if sub else [])])

    def crd(self) -> Document:
        """The CustomResourceDefinition."""
        names = {
            "kind": self.kind,
            "listKind": f"{self.kind}List",
            "plural": self.plural,
            "singular": self.kind.lower(),
            "shortNames": list(self.short),
            "categories": ["fairlead"],
        }
        columns = [
            {"name": name, "type": type, "jsonPath": path} for name, type, path in self.columns
        ]
        age: Document = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": names,
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "additionalPrinterColumns": [*columns, age],
                        "schema": {"openAPIV3Schema": self._schema()},
                    }
                ],
            },
        }

    def _schema(self) -> Document:
        spec = structural(self.spec)
        spec["x-kubernetes-validations"] = rules_of(self.kind, spec)
        schema: Document = {
            "type": "object",
            "description": spec.pop("description", ""),
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": spec,
                "status": {**STATUS, "properties": {**STATUS["properties"], **dict(self.status)}},
            },
        }
        if self.kind == "PodAllocation":
            rule = "self.metadata.name == self.spec.uid"
            message = "metadata.name must be spec.uid"
            schema["x-kubernetes-validations"] = [{"rule": rule, "message": message}]
        if self.written:
            schema["x-kubernetes-validations"] = [
                {
                    "rule": "size(self.metadata.name) <= 63",
                    "message": "metadata.name must be at most 63 characters",
                }
            ]
        return schema


CONDITIONS: Document = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string"},
            "message": {"type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    },
}
STATUS: Document = {
    "type": "object",
    "description": "What the controller says; the ledger is the truth.",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {"conditions": CONDITIONS},
}
AGENTS: Document = {
    "type": "array",
    "description": "What the traffic agent of each node says; each writes its own.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["node", "dataplane"],
    "items": {
        "type": "object",
        "required": ["node", "dataplane"],
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "node": {"type": "string"},
            "dataplane": {"type": "string"},
            "programmed": {"type": "boolean"},
            "message": {"type": "string"},
            "admission": {"type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "backends": {"type": "integer", "format": "int64"},
        },
    },
}

_PHASE = ("Phase", "string", ".status.phase")
_REASON = ("Reason", "string", ".status.reason")
KINDS = {
    made.kind: made
    for made in (
        KubeKind(
            "Budget",
            "budgets",
            ("bgt",),
            BudgetSpec,
            (
                ("Owner", "string", ".spec.owner"),
                ("Envelopes", "string", ".spec.envelopes[*].name"),
                ("Healthy", "string", '.status.conditions[?(@.type=="Healthy")].status'),
                ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].reason'),
                ("Deleting", "string", '.status.conditions[?(@.type=="Terminating")].reason'),
            ),
            namespaced=False,
        ),
        KubeKind(
            "Run",
            "runs",
            (),
            RunSpec,
            (
                ("Owner", "string", ".status.owner"),
                ("Flavor", "string", ".spec.flavor"),
                ("GPUs", "integer", ".spec.totalGPUs"),
                ("Width", "integer", ".status.width"),
                _PHASE,
                _REASON,
            ),
        ),
        KubeKind(
            "Reservation",
            "reservations",
            ("resv",),
            ReservationSpec,
            (
                ("Run", "string", ".spec.run"),
                ("Start", "string", ".spec.earliestStart"),
                ("State", "string", ".status.state"),
                _REASON,
                ("Short", "integer", ".status.shortfallGPUs"),
            ),
        ),
        KubeKind(
            "OwnerBinding",
            "ownerbindings",
            (),
            OwnerBindingSpec,
            (
                ("Namespace", "string", ".spec.namespace"),
                ("Owner", "string", ".spec.owner"),
                ("Bound", "string", '.status.conditions[?(@.type=="Bound")].reason'),
            ),
            namespaced=False,
        ),
        KubeKind(
            "GPULease",
            "gpuleases",
            ("gl",),
            GPULeaseSpec,
            (
                ("Run", "string", ".spec.run"),
                ("Role", "string", ".spec.role"),
                ("Slots", "string", ".spec.slots"),
                ("Payer", "string", ".spec.payer.budget"),
                ("Open", "boolean", ".status.open"),
            ),
            written=False,
        ),
        KubeKind(
            "ResolverOutcome",
            "resolveroutcomes",
            ("ro",),
            ResolverOutcomeSpec,
            (
                ("Stage", "string", ".status.stage"),
                ("Cause", "string", ".spec.cause"),
                ("Deficit", "integer", ".spec.deficitGPUs"),
                ("Label", "string", ".status.label"),
            ),
            namespaced=False,
            written=False,
        ),
        KubeKind(
            "RouteGroup",
            "routegroups",
            ("rg",),
            RouteGroupSpec,
            (
                ("Service", "string", ".spec.service.name"),
                ("Dataplane", "string", ".spec.dataplane"),
                ("Address", "string", ".status.address"),
                ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].reason'),
                ("Programmed", "string", '.status.conditions[?(@.type=="Programmed")].status'),
                ("Backends", "integer", ".status.backends"),
            ),
            status=(("nodes", AGENTS),),
        ),
        KubeKind(
            "PodAllocation",
            "podallocations",
            ("pa",),
            PodAllocationSpec,
            (
                ("Pod", "string", ".spec.pod"),
                ("Node", "string", ".spec.node"),
                ("Limit", "string", ".spec.containers[*].limitMillicores"),
                ("Request", "string", ".spec.containers[*].requestMillicores"),
                ("In force", "integer", ".status.millicores"),
                ("Applied", "string", '.status.conditions[?(@.type=="Applied")].status'),
                ("Reason", "string", '.status.conditions[?(@.type=="Applied")].reason'),
            ),
            written=False,
        ),
        KubeKind(
            "Query",
            "queries",
            (),
            QuerySpec,
            (
                ("Method", "string", ".spec.method"),
                ("Path", "string", ".spec.path"),
                ("Code", "integer", ".status.code"),
            ),
        ),
    )
}


def crds() -> list[Document]:
    return [kind.crd() for kind in KINDS.values()]


# -- schemas that the API server takes ------------------------------------------------------------


def structural(struct: type[msgspec.Struct]) -> Document:
    """The schema of a type as Kubernetes wants it: no references, no unions with null, RE2."""
    (top, config), components = msgspec.json.schema_components([struct, AgentConfigDocument])
    if struct is RouteGroupSpec:
        # A file's parameters are checked by name when it is read; here the API server does it.
        components["RouteGroupSpec"]["properties"]["config"] = config
    spec = _inline(top, components)
    if struct is RouteGroupSpec:
        for name, most in CONFIG_MAX.items():
            spec["properties"]["config"]["properties"][name]["maximum"] = most
    if struct is RunSpec:
        # The owner follows from the namespace; one that is written must be the same.
        spec["required"].remove("owner")
        spec["properties"]["after"] |= {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["run"],
        }
        spec["properties"]["template"] = {
            "type": "object",
            "description": "the pod template of every rank, at most 256 KiB",
            "x-kubernetes-preserve-unknown-fields": True,
        }
    return spec


def _inline(schema: Any, components: Document) -> Document:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        made = _inline(components[name], components)
        rules = OBJECT_RULES.get(name)
        return {**made, "x-kubernetes-validations": list(rules)} if rules else made
    if "anyOf" in schema:
        (one,) = [part for part in schema["anyOf"] if part.get("type") != "null"]
        return {**_inline(one, components), "nullable": True}
    kept: Document = {
        name: value
        for name, value in schema.items()
        if name not in ("title", "default", "additionalProperties")
    }
    if "properties" in schema:
        kept["properties"] = {
            name: _inline(part, components) for name, part in schema["properties"].items()
        }
        kept["required"] = list(schema.get("required", ()))
    elif schema.get("type") == "object":
        kept["maxProperties"] = _ITEMS_MAX
        kept["additionalProperties"] = _inline(schema["additionalProperties"], components)
    elif schema.get("type") == "array":
        kept.setdefault("maxItems", _ITEMS_MAX)
        kept["items"] = _inline(schema["items"], components)
    elif "enum" in schema:
        kept |= {"type": "string", "enum": list(schema["enum"])}  # a copy: YAML would refer to it
    elif schema.get("type") == "string":
        kept.setdefault("maxLength", _TEXT_MAX)
        if kept.get("pattern") == DURATION_PATTERN:
            kept["x-kubernetes-validations"] = [DURATION_RULE]
        if "pattern" in kept:
            # Go's `$` is the end of the text, and its expressions have no look-ahead.
            kept["pattern"] = kept["pattern"].replace(r"(?!\n)", "")
    elif schema.get("type") == "integer":
        kept["format"] = "int64"
    return kept


# -- names ----------------------------------------------------------------------------------------

NAME_MAX = 63


def engine_name(namespace: str, name: str) -> str:
    """What a namespaced object is called in the ledger. A namespace has no dot in its name."""
    return f"{namespace}.{name}"


def kube_name(name: str) -> tuple[str, str]:
    """Namespace and name of an object of the ledger; of thousands each text is kept once."""
    namespace, _, own = name.partition(".")
    return intern(namespace), intern(own)


def as_named_in(namespace: str, value: Any) -> Any:
    """A document or a sentence about a namespace's objects, with their names in it."""
    if isinstance(value, list):
        return [as_named_in(namespace, item) for item in value]
    if isinstance(value, dict):
        names = {"run", "reservation"} | ({"name"} if value.keys() & {"kind", "uid"} else set())
        return {
            field: item.removeprefix(f"{namespace}.")
            if field in names and isinstance(item, str)
            else as_named_in(namespace, item)
            if field == "message" or not isinstance(item, str)
            else item
            for field, item in value.items()
        }
    if isinstance(value, str):
        return re.sub(rf"(?<![\w.-]){re.escape(namespace)}\.(?=[a-z0-9])", "", value)
    return value
