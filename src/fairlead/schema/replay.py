"""Decides a recorded input again and compares bytes, wherever the record is kept.

The recorder and the ledger both stand on this; they may not stand on each other.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.lottery import OwnerWeighting
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.kinds import KINDS, Kind, Outcome
from fairlead.schema.resolve import VERSIONS, ResolveDocument, decide_resolve
from fairlead.schema.traffic import AgentTickDocument
from fairlead.schema.traffic_govern import KIND, VERSION, Life, NotContinued

Shipped = Mapping[tuple[str, int], Kind]
Lives = MutableMapping[str, Life]
"""By group: what the entries so far lead to, for decisions that follow from one another."""


def _resolve_by_tokens(document: ResolveDocument) -> Outcome:
    result = decide_resolve(document, OwnerWeighting.TOKENS)
    return Outcome(result, refused=not result["resolved"])


SHIPPED: Shipped = {
    **{(name, 1): kind for name, kind in KINDS.items()},
    ("gpu.resolve", VERSIONS[OwnerWeighting.TOKENS]): replace(
        KINDS["gpu.resolve"], decide=_resolve_by_tokens
    ),
    ("traffic.tick", 2): replace(KINDS["traffic.tick"], input_shape=AgentTickDocument),
}
"""The decisions this release can run again, by name and version.

Whoever changes what a kind decides gives it the next number and keeps the old function here under
the old one for as long as records of it are around.
"""


class Verdict(StrEnum):
    """What running a decision again showed."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """This kind, or this version of it, is not shipped any more or not yet: an answer of its own,
    because nothing can be said about the decision."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it."""

    verdict: Verdict
    result: Mapping[str, Any] | None = None
    """What is decided now, where anything is."""
    detail: str = ""
    """Why there is no result."""


def decide_again(
    kind: str,
    version: int,
    input: Mapping[str, Any],
    output: Mapping[str, Any],
    kinds: Shipped = SHIPPED,
    *,
    lives: Lives | None = None,
) -> Answer:
    """Decide as this release decides, and compare with what was decided then.

    `lives` is given from entry to entry of a record, in their order.
    """
    if (kind, version) == (KIND, VERSION):
        return _follow(input, output, {} if lives is None else lives)
    shipped = kinds.get((kind, version))
    if shipped is None:
        known = any(name == kind for name, _ in kinds)
        what = f"version {version}" if known else "decision of that name"
        return Answer(Verdict.UNKNOWN, detail=f"{kind}: there is no {what} here")
    try:
        # Through the border, as `fairlead decide` would: a record is input like any other.
        result = shipped.run(canonical(input)).result
    except BadInput as error:
        return Answer(Verdict.DIFFERENT, detail=f"is refused now: {error}")
    return _compared(result, output)


def _compared(result: dict[str, Any], output: Mapping[str, Any]) -> Answer:
    same = canonical(result) == canonical(output)
    return Answer(Verdict.SAME if same else Verdict.DIFFERENT, result)


def _follow(input: Mapping[str, Any], output: Mapping[str, Any], lives: Lives) -> Answer:
    try:
        document = parse_json(canonical(input))
        life = lives.setdefault(str(input.get("group")), Life())
        return _compared(life.follow(document).output, output)
    except NotContinued as error:
        return Answer(Verdict.UNKNOWN, detail=str(error))
    except BadInput as error:
        return Answer(Verdict.DIFFERENT, detail=f"is refused now: {error}")
