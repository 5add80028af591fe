"""The decisions that `fairlead decide` and replay know, by name: one table, one line per kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.core import gpu
from fairlead.schema import cpu as cpu_documents
from fairlead.schema import gpu as gpu_documents
from fairlead.schema import traffic as traffic_documents
from fairlead.schema.border import read_document


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one decision as plain data; `refused` is an expected result, not an error."""

    result: dict[str, Any]
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of decision: its documents and the function behind it."""

    name: str
    summary: str
    input_shape: type[msgspec.Struct]
    output_shape: type[msgspec.Struct]
    decide: Callable[[Any], dict[str, Any]]
    refuses: Callable[[dict[str, Any]], bool] = lambda result: False

    def run(self, data: bytes) -> Decision:
        """Bytes in, decision out; raises `BadInput` and nothing else for bad input."""
        result = self.decide(read_document(data, self.input_shape))
        return Decision(result, self.refuses(result))

    def json_schema(self) -> dict[str, Any]:
        return {
            "input": msgspec.json.schema(self.input_shape),
            "output": msgspec.json.schema(self.output_shape),
        }


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="cpu.clear",
            summary="divide a node's millicores among its pods",
            input_shape=cpu_documents.ClearDocument,
            output_shape=cpu_documents.ClearResult,
            decide=cpu_documents.decide_clear,
        ),
        Kind(
            name="cpu.allocate",
            summary="decide a node's CPU limits inside the guardrails, as ordered writes",
            input_shape=cpu_documents.AllocateDocument,
            output_shape=cpu_documents.AllocateResult,
            decide=cpu_documents.decide_allocate,
        ),
        Kind(
            name="gpu.cover",
            summary="find the envelopes that pay for a GPU request, or say what would",
            input_shape=gpu_documents.COVER.document(gpu_documents.CoverInput, "CoverDocument"),
            output_shape=gpu_documents.CoverResult,
            decide=gpu_documents.decide_cover,
            refuses=lambda result: not result["funded"],
        ),
        Kind(
            name="gpu.fund",
            summary="the same from usage totals, as the control plane asks and records it",
            input_shape=gpu_documents.FUND.document(gpu_documents.FundInput, "FundDocument"),
            output_shape=gpu_documents.CoverResult,
            decide=gpu_documents.decide_fund,
            refuses=lambda result: not result["funded"],
        ),
        Kind(
            name="gpu.place",
            summary="find devices for a gang of GPUs: best fit, groups inside one domain",
            input_shape=gpu_documents.PlaceDocument,
            output_shape=gpu_documents.STYLE.document(gpu.Placement, "PlaceResult"),
            decide=gpu_documents.decide_place,
            refuses=lambda result: not result["placed"],
        ),
        Kind(
            name="gpu.start",
            summary="decide how wide a run starts or grows, who pays, and on which devices",
            input_shape=gpu_documents.FUND.document(gpu_documents.StartInput, "StartDocument"),
            output_shape=gpu_documents.StartResult,
            decide=gpu_documents.decide_start,
            refuses=lambda result: result["reason"] in ("NotFunded", "NoDevices"),
        ),
        Kind(
            name="gpu.resize",
            summary="decide which leases of a run end and begin: a shrink, or a node that is lost",
            input_shape=gpu_documents.STYLE.document(gpu.ResizeRequest),
            output_shape=gpu_documents.STYLE.document(gpu.Resize, "ResizeResult"),
            decide=gpu_documents.decide_resize,
            refuses=lambda result: result["reason"] != "Resized",
        ),
        Kind(
            name="gpu.refund",
            summary="decide which leases of a budget lose their funding, or have it again",
            input_shape=gpu_documents.FUND.document(gpu.RefundRequest),
            output_shape=gpu_documents.STYLE.document(gpu.Refund, "RefundResult"),
            decide=gpu_documents.decide_refund,
        ),
        Kind(
            name="gpu.resolve",
            summary="decide which leases end when GPUs are missing: spares, steps, then a lottery",
            input_shape=gpu_documents.ResolveDocument,
            output_shape=gpu_documents.STYLE.document(gpu_documents.ResolveResult, "ResolveResult"),
            decide=gpu_documents.decide_resolve,
            refuses=lambda result: not result["resolved"],
        ),
        Kind(
            name="gpu.deficit",
            summary="find the scope that is short of GPUs, and the candidates for preemption",
            input_shape=gpu_documents.STYLE.document(gpu_documents.DeficitInput),
            output_shape=gpu_documents.STYLE.document(gpu.Deficit, "DeficitResult"),
            decide=gpu_documents.decide_deficit,
            refuses=lambda result: bool(result["shortfall_gpus"]),
        ),
        Kind(
            name="gpu.queue",
            summary="order the runs that wait for admission, and say which are held",
            input_shape=gpu_documents.STYLE.document(gpu.Waiting),
            output_shape=gpu_documents.STYLE.document(gpu.Queue, "QueueResult"),
            decide=gpu_documents.decide_queue,
        ),
        Kind(
            name="traffic.tick",
            summary="move a group's slots between its backends and set admission, with reasons",
            input_shape=traffic_documents.TickDocument,
            output_shape=traffic_documents.TickResult,
            decide=traffic_documents.decide_tick,
        ),
        Kind(
            name="traffic.configure",
            summary="split a group's slots over backends that were just configured",
            input_shape=traffic_documents.ConfigureDocument,
            output_shape=traffic_documents.ConfigureResult,
            decide=traffic_documents.decide_configure,
        ),
    )
}
