"""The agent's recorded decision, `traffic.govern`: what was seen of a group, and the plan for it.

A life replays from its record alone (`schema/life.py`). The entries that hold the memory hold the
rules, too; all hold the sighting and whether the plan before it was applied. The output is that of
`traffic.tick` with the limits for the dataplane, the backends to drain, and a digest of the memory
and of the snapshot that the plan was made from.

An entry after a wait holds what was seen in the ticks that decided nothing, and the output whether
the next ticks may do so: a wait that the entry before it does not allow is refused.

Rules of version 7 and before have no edition 4: slots followed latencies of few requests. Up to
version 6 they have no edition 3: rooms added up to more than may be inside. Version 5 left out
waits. Version 4 had no retries, and its rules no `own_flow`: slow backends alone
could restrict a bounded group. Version 3 left out how much may be inside a group without its agent,
and its rules have edition 1: one backend could close admission. Version 2 left out what brought an
early tick forward, and what each of a backend's servers may hold. Version 1 also recorded the
verdicts of health checks, not their results, and left out sensors that had been silent for too
long. Records of all of them still replay.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fairlead.core.canonical import Rendered, canonical
from fairlead.core.invariant import known
from fairlead.core.traffic import (
    CHECK_FAILURES,
    GroupDecision,
    GroupMemory,
    GroupRules,
    Sighting,
    Snapshot,
    govern,
    settle,
)
from fairlead.core.traffic.pace import may_wait, rests
from fairlead.core.traffic.sighting import Waited
from fairlead.core.units import OutOfRange
from fairlead.schema.border import BadInput, check_shape, parse_json
from fairlead.schema.life import begin, digest
from fairlead.schema.rendering import rendered
from fairlead.schema.traffic import from_plan, plain

KIND, VERSION = "traffic.govern", 8
_encoder = msgspec.json.Encoder()


class GovernDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `traffic.govern`."""

    group: str
    applied: bool | None
    """Was the plan before this one applied? None: the life begins here, or goes on after a gap."""
    memory: GroupMemory | None
    """None, as `rules`: as the entry before this one left it."""
    rules: GroupRules | None
    sighting: Sighting
    waited: Waited | None = None
    """What was seen since the entry before this one, in ticks that decided nothing."""


def from_memory(memory: GroupMemory) -> dict[str, Any]:
    """The document of a memory: what an agent keeps, and where a record begins."""
    document: dict[str, Any] = plain(memory)
    return document


def write_memory(memory: GroupMemory) -> bytes:
    """The document of a memory, as JSON."""
    return _encoder.encode(memory)


def to_memory(document: Mapping[str, Any]) -> GroupMemory:
    """A kept memory; `BadInput` for what is none."""
    try:
        memory = check_shape(dict(document), GroupMemory)
    except OutOfRange as error:
        raise BadInput(error.field, error.message) from error
    for name in ("now_ms", "healths"):
        if getattr(memory, name) is None:
            raise BadInput(name, "is required")
    return memory


def written_input(
    group: str,
    sighting: Sighting,
    *,
    applied: bool | None,
    memory: GroupMemory | None = None,
    rules: GroupRules | None = None,
    waited: Waited | None = None,
) -> Rendered:
    """The input document of a decision, as it is recorded."""
    return rendered(GovernDocument(group, applied, memory, rules, sighting, waited))


def written_output(memory: GroupMemory, decision: GroupDecision) -> Rendered:
    """`output_of` as it is recorded."""
    return rendered(_output(memory, decision, VERSION))


def _output(memory: GroupMemory, decision: GroupDecision, version: int) -> dict[str, Any]:
    return {
        **from_plan(decision.plan),
        "digest": _digest(memory, decision.snapshot, version),
        "drains": list(decision.drains),
        "limits": decision.limits,
        "rests": rests(decision),
        "urgent": list(decision.urgent),
    }


def output_of(
    memory: GroupMemory, decision: GroupDecision, *, version: int = VERSION
) -> dict[str, Any]:
    """The output document of a decision; `memory` is what it left behind."""
    document = _output(memory, decision, version)
    document["limits"] = plain(decision.limits)
    if version < 6:
        del document["rests"]
    if version < 5:
        del document["limits"]["retries"]
    if version < 4:
        del document["limits"]["fallback"]["bound"]
    if version < 3:
        del document["urgent"]
        if document["limits"]["concurrency"] is not None:
            del document["limits"]["concurrency"]["by_server"]
    return document


def _digest(memory: GroupMemory, snapshot: Snapshot, version: int) -> str:
    """Of all that the plan was made from: the snapshot's state and the windows behind its nodes are
    in the memory."""
    remembered = _of_version(memory, version)
    seen = (snapshot.backends, snapshot.retry_index, snapshot.config)
    return digest(_encoder.encode((remembered, *seen)))


def _of_version(memory: GroupMemory, version: int) -> Any:
    """What a version remembers: up to 4 nothing of retries, and the first one left the streaks of
    checks to the adapter."""
    if version > 4:
        return memory
    document = from_memory(memory)
    del document["retry"]
    for backend in document["backends"] if version == 1 else ():
        del backend["check_failures"]
    return document


def _text(memory: GroupMemory, version: int) -> bytes:
    return _encoder.encode(_of_version(memory, version))


def read_input(input: Mapping[str, Any], version: int) -> GovernDocument:
    """A recorded input. A verdict of version 1 is read as so many results that show it."""
    match input.get("sighting"):
        case {"checks": Mapping() as verdicts, **sighting} if version == 1:
            sighting["checked"] = [
                {"group": "", "backend": name, "ok": ok}
                for name, ok in verdicts.items()
                for _ in range(CHECK_FAILURES)
            ]
            input = {**input, "sighting": sighting}
    return check_shape(dict(input), GovernDocument)


class Settled(NamedTuple):
    """Where a life stands after an entry: what the next one goes on from."""

    memory: GroupMemory
    rules: GroupRules
    decision: GroupDecision


def follow(document: GovernDocument, before: Settled | None, *, version: int = VERSION) -> Settled:
    """Decide the next entry of a life again. `BadInput` where the memory that it holds is not what
    the entries before it lead to, where those are missing, or where a value is none of ours.
    """
    memory, rules = _begin(document, before, version)
    if before is not None and document.waited is not None:
        _check_wait(document.waited, document, before)
    try:
        memory, decision = govern(memory, document.sighting, rules, group=document.group)
    except OutOfRange as error:
        raise BadInput(error.field, error.message) from error
    return Settled(memory, rules, decision)


def _check_wait(waited: Waited, document: GovernDocument, before: Settled) -> None:
    """Refuse a wait that the entry before did not allow."""
    if not document.applied:
        raise BadInput("waited", "the decision before was not in force")
    if not rests(before.decision):
        raise BadInput("waited", "the decision before does not rest")
    if not may_wait(waited):
        raise BadInput("waited", "what was seen ends the wait")


def _begin(
    document: GovernDocument, before: Settled | None, version: int
) -> tuple[GroupMemory, GroupRules]:
    led = None
    if before is not None and document.applied is not None:
        led = settle(before.memory, before.decision.plan, applied=document.applied)
    memory = begin(document.memory, led, partial(_text, version=version))
    if document.memory is None or document.rules is None:
        return memory, known(before, "what is left out follows from an entry").rules
    return memory, document.rules


def replay_govern(
    input: Mapping[str, Any], before: Any, *, version: int = VERSION
) -> tuple[Mapping[str, Any], Settled]:
    """An entry of `traffic.govern` decided again, given what the one before it led to."""
    now = follow(read_input(parse_json(canonical(input)), version), before, version=version)
    return output_of(now.memory, now.decision, version=version), now
