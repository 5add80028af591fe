"""Runs a recorded decision of any kind again and compares bytes, wherever the record is kept.

Both the recorder and the ledger use this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.invariant import known
from fairlead.core.lottery import OwnerWeighting
from fairlead.schema.border import BadInput
from fairlead.schema.cpu_govern import KIND as CPU_KIND
from fairlead.schema.cpu_govern import VERSION as CPU_VERSION
from fairlead.schema.cpu_govern import replay_cpu
from fairlead.schema.gpu import VERSIONS, decide_resolve
from fairlead.schema.kinds import KINDS, Kind, deficit_kind
from fairlead.schema.traffic import AgentTickDocument, ConfirmingTickDocument
from fairlead.schema.traffic_govern import KIND, VERSION, replay_govern

Shipped = Mapping[tuple[str, int], Kind]


SHIPPED: Shipped = {
    **{(name, 1): kind for name, kind in KINDS.items()},
    **{
        ("gpu.resolve", version): replace(
            KINDS["gpu.resolve"], decide=partial(decide_resolve, owner_weighting=weighting)
        )
        for weighting, version in VERSIONS.items()
        if weighting is not OwnerWeighting.OWNERS
    },
    ("gpu.fund", 2): KINDS["gpu.fund"],
    ("gpu.start", 2): KINDS["gpu.start"],
    ("gpu.queue", 2): KINDS["gpu.queue"],
    ("gpu.queue", 3): KINDS["gpu.queue"],
    ("gpu.grow", 2): KINDS["gpu.grow"],
    ("gpu.recall", 2): KINDS["gpu.recall"],
    **{("gpu.deficit", version): deficit_kind(apart=False) for version in (1, 2)},
    ("gpu.deficit", 3): KINDS["gpu.deficit"],
    **{("gpu.backfill", version): KINDS["gpu.backfill"] for version in (2, 3)},
    **{(name, 2): KINDS["gpu.clock"] for name in ("clock.anchored", "clock.held")},
    ("traffic.tick", 2): replace(KINDS["traffic.tick"], input_shape=AgentTickDocument),
    ("traffic.tick", 3): replace(KINDS["traffic.tick"], input_shape=ConfirmingTickDocument),
}
"""The decisions this release can run again, by name and version.

A change of what a kind decides takes the next number; the old function stays here under the old one
for as long as records of it are around.
"""

Sequel = Callable[[Mapping[str, Any], Any], tuple[Mapping[str, Any], Any]]
"""(input, what the entry before left or None) to (result, what this entry leaves)."""
SEQUELS: Mapping[tuple[str, int], Sequel] = {
    **{(CPU_KIND, v): partial(replay_cpu, version=v) for v in range(1, CPU_VERSION + 1)},
    **{(KIND, v): partial(replay_govern, version=v) for v in range(1, VERSION + 1)},
}
"""Decisions whose input is whole only in the first entry of a segment; raises BadInput."""


class Verdict(StrEnum):
    """What running a decision again showed."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """This kind, or this version of it, is not shipped any more or not yet: an answer of its own,
    because nothing can be said about the decision."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recorded decision and what running it again showed."""

    seq: int
    kind: str
    version: int
    verdict: Verdict
    result: Mapping[str, Any] | None = None
    """What is decided now, where anything is."""
    detail: str = ""
    """Why there is no result."""
    recorded: Mapping[str, Any] | None = None
    """What was decided then, where both can be compared."""


class Replayer:
    """Runs the decisions of one record again, in their order.

    An entry whose input refers to the one before it (`SEQUELS`) needs that order; any other one
    can be run by itself.
    """

    def __init__(self, kinds: Shipped = SHIPPED) -> None:
        self._kinds = kinds
        self._carried: dict[str, Any] = {}

    def run(
        self, seq: int, kind: str, version: int, input: Mapping[str, Any], output: Mapping[str, Any]
    ) -> Replayed:
        """Decide as this release decides, and compare with what was decided then."""
        shipped, sequel = self._kinds.get((kind, version)), SEQUELS.get((kind, version))
        if shipped is None and sequel is None:
            named = any(name == kind for name, _ in (*self._kinds, *SEQUELS))
            what = f"version {version}" if named else "decision of that name"
            detail = f"{kind}: there is no {what} here"
            return Replayed(seq, kind, version, Verdict.UNKNOWN, detail=detail)
        try:
            if sequel is not None:
                result, self._carried[kind] = sequel(input, self._carried.get(kind))
            else:
                # Through the border, as `fairlead decide` would: a record is input like any other.
                result = known(shipped, "a kind that is shipped").run(canonical(input)).result
        except BadInput as error:
            # What the entries before it led to is in doubt: the next whole input begins anew.
            self._carried.pop(kind, None)
            detail = f"is refused now: {error}"
            return Replayed(seq, kind, version, Verdict.DIFFERENT, detail=detail)
        same = canonical(result) == canonical(output)
        verdict = Verdict.SAME if same else Verdict.DIFFERENT
        return Replayed(seq, kind, version, verdict, result, recorded=output)


def explain_difference(decision: Replayed) -> str:
    """The first field that differs, or why there is no result."""
    if decision.verdict is Verdict.DIFFERENT and not decision.detail:
        return first_difference(decision.recorded, decision.result)
    return decision.detail


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """`slots.b1: recorded 12, decided 13` for the first field that differs; empty if none does."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted({*one, *other})
        pairs = ((f"{path}.{key}".lstrip("."), one.get(key), other.get(key)) for key in keys)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        items = enumerate(zip(one, other, strict=True))
        pairs = ((f"{path}[{index}]", mine, yours) for index, (mine, yours) in items)
    else:
        return "" if one == other else f"{path or 'output'}: recorded {one!r}, decided {other!r}"
    differences = (first_difference(mine, yours, where) for where, mine, yours in pairs)
    return next(filter(None, differences), "")
