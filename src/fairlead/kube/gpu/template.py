"""A run's pod template, as tenants write it: read as what it must be, and held to its lease."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from fairlead.kube.client import Document
from fairlead.kube.gpu.build import VOLUME
from fairlead.kube.kinds import GROUP
from fairlead.ports.executor import RESERVED_ENV
from fairlead.schema.border import BadInput, check_shape

BYTES_MAX = 256 * 1024
DEPTH_MAX = 50
DEVICES = ("nvidia.com/", "deviceclass.resource.kubernetes.io/")
"""Resources of these domains are devices, whole or in parts, by name or by DeviceClass."""
GRACE_MAX_S = 86_400
"""How long a pod that is asked to end may keep its devices."""
_Texts = dict[str, str]


class _Resources(msgspec.Struct, rename="camel"):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Any] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[dict[str, Any]] | None = None
    env_from: list[dict[str, Any]] | None = None
    resources: _Resources | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    labels: _Texts | None = None
    annotations: _Texts | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[Any] | None = None
    affinity: dict[str, Any] | None = None
    node_name: str | None = None
    scheduling_gates: list[Any] | None = None
    resource_claims: list[Any] | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    volumes: list[dict[str, Any]] | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None


class _Template(msgspec.Struct, rename="camel"):
    spec: _PodSpec
    metadata: _Metadata | None = None


class PodTemplate:
    """A template that was checked; the API server checks the rest when a pod is made of it."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @property
    def digest(self) -> str:
        data = msgspec.json.encode(self.document, order="sorted")
        return hashlib.sha256(data).hexdigest()

    @property
    def command(self) -> list[str]:
        """What the ledger says a run runs, where only the template does."""
        first = self.document["spec"]["containers"][0]
        named = [*(first.get("command") or ()), *(first.get("args") or ())]
        return named or [f"entrypoint of {first.get('image')}"]


def read_template(value: Any, where: str = "spec.template") -> PodTemplate:
    """Raises `BadInput` with the offending field: no pod's shape, or a way around the lease."""
    try:
        read = check_shape(value, _Template)
    except BadInput as error:
        raise BadInput(f"{where}.{error.path}", error.message) from None
    if _is_deep(value):
        raise BadInput(where, f"is nested over {DEPTH_MAX} deep")
    if len(msgspec.json.encode(value)) > BYTES_MAX:
        raise BadInput(where, f"is over {BYTES_MAX // 1024} KiB")
    meta, spec = read.metadata or _Metadata(), read.spec
    for part, named in (("labels", meta.labels), ("annotations", meta.annotations)):
        for name in named or {}:
            if name.startswith(f"{GROUP}/"):
                raise BadInput(f"{where}.metadata.{part}", f"{name!r} is Fairlead's to set")
    if not spec.containers:
        raise BadInput(f"{where}.spec.containers", "must name a container")
    taken = {
        "nodeName": spec.node_name,
        "schedulingGates": spec.scheduling_gates,
        "resourceClaims": spec.resource_claims,
        "ephemeralContainers": spec.ephemeral_containers,
        # Of one pod, it would keep pods of others from the nodes that they have leased.
        "affinity": spec.affinity,
        # Who makes room for whom is the engine's decision, and not the scheduler's.
        "priorityClassName": spec.priority_class_name,
        "priority": spec.priority is not None,
        "preemptionPolicy": spec.preemption_policy,
    }
    for field_name, given in taken.items():
        if given:
            raise BadInput(f"{where}.spec.{field_name}", "is Fairlead's to set")
    if (spec.termination_grace_period_seconds or 0) > GRACE_MAX_S:
        field = f"{where}.spec.terminationGracePeriodSeconds"
        raise BadInput(field, f"must be at most {GRACE_MAX_S}")
    groups = {"containers": spec.containers, "initContainers": spec.init_containers or []}
    for group, containers in groups.items():
        for i, container in enumerate(containers):
            _refuse_devices(container.resources, f"{where}.spec.{group}[{i}].resources")
            _refuse_variables(container.env or (), f"{where}.spec.{group}[{i}].env")
    _refuse_sources(spec.containers[0].env_from or (), f"{where}.spec.containers[0].envFrom")
    _refuse_volume(spec.volumes or (), f"{where}.spec.volumes")
    return PodTemplate(value)


def _refuse_volume(rows: Iterable[Document], where: str) -> None:
    for i, row in enumerate(rows):
        if row.get("name") == VOLUME:
            raise BadInput(f"{where}[{i}].name", f"{VOLUME} is Fairlead's volume")


def _refuse_sources(rows: Iterable[Document], where: str) -> None:
    """The first container has the devices; the device plugin's variables are overridden by those of
    a ConfigMap, whose names are not known here. In the others Fairlead's own override them."""
    for i, row in enumerate(rows):
        prefix = str(row.get("prefix") or "")
        if any(name.startswith(prefix) or prefix.startswith(name) for name in RESERVED_ENV):
            text = f"needs a prefix that no variable of a lease has, such as {RESERVED_ENV[-1]}"
            raise BadInput(f"{where}[{i}].prefix", text)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX):
        inner = [part.values() if isinstance(part, dict) else part for part in level]
        level = [each for parts in inner for each in parts if isinstance(each, dict | list)]
    return bool(level)


def _refuse_variables(rows: Iterable[Document], where: str) -> None:
    for name in (str(row.get("name")) for row in rows):
        if name.startswith(RESERVED_ENV):
            raise BadInput(where, f"{name} is set by Fairlead from the lease")


def _refuse_devices(resources: _Resources | None, where: str) -> None:
    if resources is None:
        return
    for part, named in (("limits", resources.limits), ("requests", resources.requests)):
        for name in named or {}:
            if name.startswith(DEVICES):
                raise BadInput(f"{where}.{part}", f"{name} follows from totalGPUs")
    if resources.claims:
        raise BadInput(f"{where}.claims", "devices follow from totalGPUs")
