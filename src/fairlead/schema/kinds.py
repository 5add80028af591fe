"""The decisions that `fairlead decide` and replay know, by name: one table, one line per kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.core import gpu as core
from fairlead.core.canonical import NotCanonical, canonical
from fairlead.schema import cpu, funding, gpu, traffic
from fairlead.schema.border import BadInput, read_document
from fairlead.schema.funding import FUND
from fairlead.schema.gpu import STYLE


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one decision as plain data; `refused` is an expected result, not an error."""

    result: dict[str, Any]
    refused: bool = False

    def written(self) -> bytes:
        """The result as canonical JSON."""
        try:
            return canonical(self.result)
        except NotCanonical as error:  # sizes are bounded, and their sums are not
            raise BadInput("$", f"leads to a result that JSON cannot carry: {error}") from error


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of decision: its documents, and the function behind it, whose docstring begins with
    the sentence that `fairlead decide` lists."""

    name: str
    input_shape: type[msgspec.Struct]
    output_shape: type[msgspec.Struct]
    decide: Callable[[Any], dict[str, Any]]
    refuses: Callable[[dict[str, Any]], bool] = lambda result: False

    @property
    def summary(self) -> str:
        sentence = (self.decide.__doc__ or "").partition("\n")[0].rstrip(".")
        return sentence[:1].lower() + sentence[1:]

    def run(self, data: bytes) -> Decision:
        """Bytes in, decision out; raises `BadInput` and nothing else for bad input."""
        document = read_document(data, self.input_shape)
        try:
            result = self.decide(document)
        except OverflowError as error:  # of a date: sizes are bounded
            raise BadInput("$", f"leads to a time beyond the year 9999 ({error})") from error
        return Decision(result, self.refuses(result))

    def json_schema(self) -> dict[str, Any]:
        return {
            "input": msgspec.json.schema(self.input_shape),
            "output": msgspec.json.schema(self.output_shape),
        }


def _unless(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda result: not result[name]


_COVER = funding.COVER.document(funding.CoverInput, "CoverDocument")
_FUND = FUND.document(funding.FundInput, "FundDocument")
_START = FUND.document(gpu.StartInput, "StartDocument")
_PLACED = STYLE.document(core.Placement, "PlaceResult")
_RESIZED = STYLE.document(core.Resize, "ResizeResult")
_FAILED = STYLE.document(core.RunFailure)
_RESTARTED = STYLE.document(core.Restart, "RestartResult")
_LIMITS = STYLE.document(core.RunLimits)
_LIMITED = STYLE.document(core.Limit, "LimitResult")
_READ = STYLE.document(core.IdleRequest)
_IDLE = STYLE.document(core.IdleResult)
_DEVICES = STYLE.document(core.QuarantineRequest)
_CLEAN = STYLE.document(core.Quarantine, "QuarantineResult")
_CLOCKS = STYLE.document(core.ClockRequest)
_TIME = STYLE.document(core.ClockDecision, "ClockResult")
_REFUND = FUND.document(core.RefundRequest)
_REFUNDED = STYLE.document(core.Refund, "RefundResult")
_RESOLVED = STYLE.document(gpu.ResolveResult, "ResolveResult")
_DEFICIT = STYLE.document(gpu.DeficitInput)
_SHORT = STYLE.document(core.Deficit, "DeficitResult")
_WAITING = STYLE.document(core.Waiting)
_QUEUED = STYLE.document(core.Queue, "QueueResult")
_BACKFILL = STYLE.document(core.BackfillRequest)
_BACKFILLED = STYLE.document(core.Backfill, "BackfillResult")
_RESERVATIONS = STYLE.document(core.ActivateRequest)
_ACTIVATED = STYLE.document(core.Activations, "ActivateResult")
_RESERVE = STYLE.document(core.ReserveRequest)
_RESERVED = STYLE.document(core.ReserveAnswer, "ReserveResult")
_SHRUNK = STYLE.document(core.ShrunkRuns)
_GROWS = STYLE.document(core.GrowthOrder, "GrowResult")
_RANKED = STYLE.document(core.RankRequest)
_RANKING = STYLE.document(core.Ranking, "RankResult")
_AFTER = STYLE.document(core.Dependencies)
_RELEASED = STYLE.document(core.AfterResult)
_KINDS = (
    Kind("cpu.clear", cpu.ClearDocument, cpu.ClearResult, cpu.decide_clear),
    Kind("cpu.allocate", cpu.AllocateDocument, cpu.AllocateResult, cpu.decide_allocate),
    Kind("gpu.cover", _COVER, funding.CoverResult, funding.decide_cover, _unless("funded")),
    Kind("gpu.fund", _FUND, funding.CoverResult, funding.decide_fund, _unless("funded")),
    Kind("gpu.place", gpu.PlaceDocument, _PLACED, gpu.decide_place, _unless("placed")),
    Kind(
        "gpu.start",
        _START,
        gpu.StartResult,
        gpu.decide_start,
        lambda result: result["reason"] in ("NotFunded", "NoDevices"),
    ),
    Kind(
        "gpu.resize",
        STYLE.document(core.ResizeRequest),
        _RESIZED,
        gpu.decide_resize,
        lambda result: result["reason"] != "Resized",
    ),
    Kind(
        "gpu.restart",
        _FAILED,
        _RESTARTED,
        gpu.decide_restart,
        lambda result: result["reason"] not in ("Restarts", "Requeues"),
    ),
    Kind("gpu.limit", _LIMITS, _LIMITED, gpu.decide_limit),
    Kind("gpu.idle", _READ, _IDLE, gpu.decide_idle),
    Kind("gpu.quarantine", _DEVICES, _CLEAN, gpu.decide_quarantine),
    Kind(
        "gpu.after",
        _AFTER,
        _RELEASED,
        gpu.decide_after,
        lambda result: result["reason"] == "DependencyFailed",
    ),
    Kind("gpu.clock", _CLOCKS, _TIME, gpu.decide_clock, _unless("admits")),
    Kind("gpu.refund", _REFUND, _REFUNDED, gpu.decide_refund),
    Kind("gpu.resolve", gpu.ResolveDocument, _RESOLVED, gpu.decide_resolve, _unless("resolved")),
    Kind(
        "gpu.deficit",
        _DEFICIT,
        _SHORT,
        gpu.decide_deficit,
        lambda result: result["shortfall_gpus"] > 0 or result["reason"] == "EnvelopePromised",
    ),
    Kind("gpu.queue", _WAITING, _QUEUED, gpu.decide_queue),
    Kind(
        "gpu.backfill",
        _BACKFILL,
        _BACKFILLED,
        gpu.decide_backfill,
        lambda result: result["delays"] is not None,
    ),
    Kind("gpu.activate", _RESERVATIONS, _ACTIVATED, gpu.decide_activate),
    Kind(
        "gpu.recall",
        FUND.document(funding.RecallInput, "RecallDocument"),
        STYLE.document(core.Recall, "RecallResult"),
        gpu.decide_recall,
        _unless("leases"),
    ),
    Kind(
        "gpu.overdraw",
        STYLE.document(core.OverdrawRequest),
        STYLE.document(core.Overdraw, "OverdrawResult"),
        gpu.decide_overdraw,
        lambda result: result["reason"] != "Starts",
    ),
    Kind(
        "gpu.reserve",
        _RESERVE,
        _RESERVED,
        gpu.decide_reserve,
        lambda result: result["reason"] != "Allowed",
    ),
    Kind("gpu.grow", _SHRUNK, _GROWS, gpu.decide_grow),
    Kind("gpu.rank", _RANKED, _RANKING, gpu.decide_rank),
    Kind("traffic.tick", traffic.TickDocument, traffic.TickResult, traffic.decide_tick),
    Kind(
        "traffic.configure",
        traffic.ConfigureDocument,
        traffic.ConfigureResult,
        traffic.decide_configure,
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
