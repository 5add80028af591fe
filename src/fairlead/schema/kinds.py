"""The decisions that `fairlead decide` and replay know, by name: one table, one line per kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.core import gpu as core
from fairlead.core.canonical import NotCanonical, canonical
from fairlead.schema import cpu, funding, gpu, traffic
from fairlead.schema.border import BadInput, read_document
from fairlead.schema.derive import Style
from fairlead.schema.funding import FUND
from fairlead.schema.gpu import STYLE

Refuses = Callable[[dict[str, Any]], bool]


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
    refuses: Refuses = lambda result: False

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


def _unless(name: str) -> Refuses:
    return lambda result: not result[name]


def _other_than(*reasons: str) -> Refuses:
    return lambda result: result["reason"] not in reasons


_SENTENCES = {
    "gpu.place": "Find devices for a gang of GPUs: best fit, groups inside one domain",
    "gpu.resize": "Decide which leases of a run end and begin: a shrink, or a node that is lost",
    "gpu.restart": "Decide whether a run that has ended starts again",
    "gpu.limit": "Decide whether a run that holds devices has to end, or is to be warned",
    "gpu.idle": "Decide since when the devices of runs do nothing",
    "gpu.quarantine": "Decide which devices hold memory that no run has, and are given to none",
    "gpu.after": "Decide whether a run that starts after others may start",
    "gpu.clock": "Decide the ledger's time, and whether runs may start: the clock may have jumped",
    "gpu.refund": "Decide which leases of a budget lose their funding, or have it again",
    "gpu.deficit": "Find the scope that is short of GPUs, and the candidates for preemption",
    "gpu.queue": "Order the runs that wait for admission, and say which are held",
    "gpu.backfill": "Decide whether a run may start before others that wait for devices",
    "gpu.activate": "Order the reservations that are due, and say which may preempt",
    "gpu.overdraw": "Decide whether a run without funding starts on devices that would be idle",
    "gpu.reserve": "Decide whether a reservation may be made, or moved",
    "gpu.grow": "Order the runs that lack groups which an outcome took",
    "gpu.rank": "Order the waiting runs that recall funding, reclaim devices or start unfunded",
}
"""What the kinds decide whose function is core's own."""


def _derived(
    name: str,
    asked: type,
    decide: Callable[[Any], Any],
    answer: type,
    *,
    refuses: Refuses = lambda result: False,
    read: Style = STYLE,
    title: str | None = None,
    write: Callable[[Any, Any], dict[str, Any]] = lambda asked, found: STYLE.from_core(found),
) -> Kind:
    """A kind whose documents follow from what its function of core takes and returns."""

    def run(document: Any) -> dict[str, Any]:
        given: Any = read.to_core(asked, document)
        return write(given, decide(given))

    run.__doc__ = _SENTENCES[name]
    result = STYLE.document(answer, title or f"{name.removeprefix('gpu.').capitalize()}Result")
    return Kind(name, read.document(asked), result, run, refuses)


def deficit_kind(*, apart: bool) -> Kind:
    """`apart`: since version 3."""
    return _derived(
        "gpu.deficit",
        gpu.DeficitInput,
        lambda given: core.find_deficit(given.demand, given.holdings, apart=apart),
        core.Deficit,
        refuses=lambda result: (
            result["shortfall_gpus"] > 0 or result["reason"] == "EnvelopePromised"
        ),
    )


_KINDS = (
    Kind("cpu.clear", cpu.ClearDocument, cpu.ClearResult, cpu.decide_clear),
    Kind("cpu.allocate", cpu.AllocateDocument, cpu.AllocateResult, cpu.decide_allocate),
    Kind(
        "gpu.cover",
        funding.COVER.document(funding.CoverInput, "CoverDocument"),
        funding.CoverResult,
        funding.decide_cover,
        _unless("funded"),
    ),
    Kind(
        "gpu.fund",
        FUND.document(funding.FundInput, "FundDocument"),
        funding.CoverResult,
        funding.decide_fund,
        _unless("funded"),
    ),
    _derived(
        "gpu.place",
        gpu.PlaceInput,
        lambda given: core.place(given.nodes, given.gang),
        core.Placement,
        refuses=_unless("placed"),
    ),
    Kind(
        "gpu.start",
        FUND.document(gpu.StartInput, "StartDocument"),
        gpu.StartResult,
        gpu.decide_start,
        lambda result: result["reason"] in ("NotFunded", "NoDevices"),
    ),
    _derived(
        "gpu.resize", core.ResizeRequest, core.resize, core.Resize, refuses=_other_than("Resized")
    ),
    _derived(
        "gpu.restart",
        core.RunFailure,
        core.restart,
        core.Restart,
        refuses=_other_than("Restarts", "Requeues"),
        write=gpu.from_restart,
    ),
    _derived("gpu.limit", core.RunLimits, core.limit, core.Limit),
    _derived("gpu.idle", core.IdleRequest, core.idle, core.IdleResult, title="IdleResultDocument"),
    _derived("gpu.quarantine", core.QuarantineRequest, core.quarantine, core.Quarantine),
    _derived(
        "gpu.after",
        core.Dependencies,
        core.after,
        core.AfterResult,
        refuses=lambda result: result["reason"] == "DependencyFailed",
        title="AfterResultDocument",
    ),
    _derived(
        "gpu.clock",
        core.ClockRequest,
        core.judge_clock,
        core.ClockDecision,
        refuses=_unless("admits"),
    ),
    _derived("gpu.refund", core.RefundRequest, core.refund, core.Refund, read=FUND),
    Kind(
        "gpu.resolve",
        gpu.ResolveDocument,
        STYLE.document(gpu.ResolveResult, "ResolveResult"),
        gpu.decide_resolve,
        _unless("resolved"),
    ),
    deficit_kind(apart=True),
    _derived("gpu.queue", core.Waiting, core.queue, core.Queue, write=gpu.from_queue),
    _derived(
        "gpu.backfill",
        core.BackfillRequest,
        core.backfill,
        core.Backfill,
        refuses=lambda result: result["delays"] is not None,
        write=gpu.from_backfill,
    ),
    _derived("gpu.activate", core.ActivateRequest, core.activate, core.Activations),
    Kind(
        "gpu.recall",
        FUND.document(funding.RecallInput, "RecallDocument"),
        STYLE.document(core.Recall, "RecallResult"),
        gpu.decide_recall,
        _unless("leases"),
    ),
    _derived(
        "gpu.overdraw",
        core.OverdrawRequest,
        core.overdraw,
        core.Overdraw,
        refuses=_other_than("Starts"),
    ),
    _derived(
        "gpu.reserve",
        core.ReserveRequest,
        core.reserve,
        core.ReserveAnswer,
        refuses=_other_than("Allowed"),
    ),
    _derived("gpu.grow", core.ShrunkRuns, core.grow, core.GrowthOrder),
    _derived("gpu.rank", core.RankRequest, core.rank, core.Ranking),
    Kind("traffic.tick", traffic.TickDocument, traffic.TickResult, traffic.decide_tick),
    Kind(
        "traffic.configure",
        traffic.ConfigureDocument,
        traffic.ConfigureResult,
        traffic.decide_configure,
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
