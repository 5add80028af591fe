"""Border types of the node agent: its configuration file."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.cpu import Actuation, Policy
from fairlead.core.units import SIZE_MAX
from fairlead.schema import cpu
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.reports import ReportSettings
from fairlead.schema.yaml import read_settings

Milliseconds = Annotated[int, Meta(ge=10, le=3_600_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class PodRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is known about pods whose path below the root matches a glob; the first match counts."""

    match: Annotated[str, Meta(min_length=1)]
    request_millicores: cpu.Millicores = 0
    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] = 0
    opted_out: bool = False
    latency_target_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class NodeAgentDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The node agent's configuration; every field can be left out."""

    root: str | None = None
    pattern: Annotated[str, Meta(min_length=1)] = "*"
    capacity_millicores: Annotated[int, Meta(ge=1, le=SIZE_MAX)] | None = None
    policy: Policy = Policy.NASH
    actuate: Actuation = Actuation.LIMITS
    reserve: cpu.Ratio = 0.10
    sample_ms: Milliseconds = 1_000
    clear_ms: Milliseconds = 5_000
    hysteresis_band: cpu.Ratio = 0.05
    headroom: cpu.HeadroomDocument = cpu.HeadroomDocument()
    guardrails: cpu.GuardrailsDocument = cpu.GuardrailsDocument()
    smoothing: cpu.SmoothingDocument = cpu.SmoothingDocument()
    pods: list[PodRule] = []
    state_dir: str | None = None
    metrics_port: Port | None = None
    metrics_address: str = "127.0.0.1"
    burst: bool = True
    observe_only: bool = False
    kube: bool = False
    node_name: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    cgroups: str | None = None
    report: ReportSettings | None = None


def read_node_document(data: bytes, overrides: dict[str, Any]) -> NodeAgentDocument:
    document = check_shape(read_settings(data, overrides), NodeAgentDocument)
    if document.sample_ms > document.clear_ms:
        raise BadInput("sample_ms", f"must be at most clear_ms, {document.clear_ms}")
    if document.actuate is not Actuation.LIMITS:
        if document.kube and document.actuate is not Actuation.WEIGHTS:
            raise BadInput("actuate", "must be limits or weights with kube")
        if "/" in document.pattern:
            raise BadInput("pattern", "must be of one level where weights are governed")
    return document
