"""A conflict: GPUs are missing somewhere, and these runs hold leases there.

The frozen input of `resolve` and `forecast`. A lease is a candidate when it is in scope: the
flavor and every label of the scope are equal and, where a cap binds, one of its envelopes pays.
The digest names the conflict for good, whatever the order of its runs and leases. The envelopes of
a cap are part of it as they are given: `renamed`, which is what is frozen, has them in order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from json.encoder import encode_basestring as quoted
from typing import NamedTuple

from fairlead.core.canonical import as_json, encoded, text
from fairlead.core.lottery import Draw, Odds, Pseudonyms, Tokens
from fairlead.core.reasons import CutKind
from fairlead.core.units import INTEGER_MAX, Count, Name, OutOfRange, PositiveCount, repeats


class Role(StrEnum):
    """What a lease is for: to compute, or to stand by in case a device dies."""

    ACTIVE = "active"
    SPARE = "spare"


@dataclass(frozen=True, slots=True)
class ScopeCap:
    """An aggregate cap that binds: only what its envelopes pay is a candidate."""

    budget: str
    name: str
    envelopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where GPUs are missing. A label that a lease lacks is a mismatch; no wildcards."""

    flavor: str
    location: Mapping[str, str] = field(default_factory=dict)
    cap: ScopeCap | None = None

    def document(self) -> dict[str, object]:
        document: dict[str, object] = as_json(self)
        return document


@dataclass(frozen=True, slots=True)
class Malleable:
    """A run that can work with less: down to its minimum, by multiples of its step."""

    min_gpus: PositiveCount
    step_gpus: PositiveCount


@dataclass(frozen=True, slots=True)
class ConflictRun:
    """A run with leases; `nominated`: its owner offers it for preemption first."""

    id: Name
    owner: Name
    malleable: Malleable | None = None
    nominated: bool = False


@dataclass(frozen=True, slots=True)
class ConflictLease:
    """An open lease: whole GPUs of one group of a run, in one place, paid by one envelope."""

    id: Name
    run: Name
    role: Role
    group: Count
    gpus: PositiveCount
    flavor: str
    location: Mapping[str, str]
    funded: bool
    budget: str
    envelope: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """All that a resolve looks at, but for the seed. Ids are unique, every lease's run is here."""

    scope: Scope
    deficit_gpus: Count
    runs: tuple[ConflictRun, ...]
    leases: tuple[ConflictLease, ...]

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("leases", "id", [lease.id for lease in self.leases])
        runs = {run.id for run in self.runs}
        for i, lease in enumerate(self.leases):
            if lease.run not in runs:
                yield OutOfRange(f"leases[{i}].run", f"names an unknown run, {lease.run!r}")
        if sum(lease.gpus for lease in self.leases) > INTEGER_MAX:
            yield OutOfRange("leases", f"add up to more than {INTEGER_MAX} GPUs")

    def document(self) -> dict[str, object]:
        """The input of `gpu.resolve` without a seed, runs and leases by id."""
        runs = tuple(sorted(self.runs, key=lambda run: run.id))
        leases = tuple(sorted(self.leases, key=lambda lease: lease.id))
        document: dict[str, object] = as_json(replace(self, runs=runs, leases=leases))
        return document


def conflict_digest(conflict: Conflict) -> str:
    return sha256(conflict_bytes(conflict)).hexdigest()


def conflict_bytes(conflict: Conflict) -> bytes:
    """The canonical JSON of the conflict's document, as it is kept under its digest.

    The leases are written by hand, their keys in order: a set of 100 000 takes a third of the time
    that it takes through `canonical`, which looks at every key and value anew.
    """
    places: dict[tuple[tuple[str, str], ...], str] = {}
    lines: list[str] = []  # written as they come, then sorted: memory is read in one sweep
    for lease in conflict.leases:
        place = tuple(lease.location.items())
        location = places.get(place)
        if location is None:
            location = places[place] = text(dict(place))
        funded = "true" if lease.funded else "false"
        lines.append(
            f'{{"budget":{quoted(lease.budget)},"envelope":{quoted(lease.envelope)},'
            f'"flavor":{quoted(lease.flavor)},"funded":{funded},"gpus":{lease.gpus},'
            f'"group":{lease.group},"id":{quoted(lease.id)},"location":{location},'
            f'"role":"{lease.role}","run":{quoted(lease.run)}}}'
        )
    ids = [lease.id for lease in conflict.leases]
    leases = ",".join([lines[i] for i in sorted(range(len(ids)), key=ids.__getitem__)])
    runs = [as_json(run) for run in sorted(conflict.runs, key=lambda run: run.id)]
    return encoded(
        f'{{"deficit_gpus":{text(conflict.deficit_gpus)},"leases":[{leases}],'
        f'"runs":{text(runs)},"scope":{text(conflict.scope.document())}}}'
    )


def renamed(conflict: Conflict, names: Pseudonyms) -> Conflict:
    """The same conflict under the pseudonyms of an outcome, which is what is frozen and decided."""
    owners = {run.id: run.owner for run in conflict.runs}
    runs = {run.id: names.run(run.owner, run.id) for run in conflict.runs}
    scope, cap = conflict.scope, conflict.scope.cap
    if cap is not None:
        envelopes = tuple(sorted(names.payer(cap.budget, name)[1] for name in cap.envelopes))
        scope = replace(scope, cap=ScopeCap(*names.cap(cap.budget, cap.name), envelopes))
    return Conflict(
        scope=scope,
        deficit_gpus=conflict.deficit_gpus,
        runs=tuple(
            ConflictRun(runs[run.id], names.owner(run.owner), run.malleable, run.nominated)
            for run in conflict.runs
        ),
        leases=tuple(
            ConflictLease(
                names.lease(owners[lease.run], lease.id),
                runs[lease.run],
                lease.role,
                lease.group,
                lease.gpus,
                lease.flavor,
                lease.location,
                lease.funded,
                *names.payer(lease.budget, lease.envelope),
            )
            for lease in conflict.leases
        ),
    )


# -- what is decided of a conflict -------------------------------------------------------------


class CutTier(StrEnum):
    """The order of preemption. A run is in one tier with all its leases."""

    UNFUNDED = "unfunded"
    NOMINATED = "nominated"
    FUNDED = "funded"

    @classmethod
    def of(cls, *, unfunded: bool, nominated: bool) -> "CutTier":
        """A run with an unfunded candidate, one that its owner nominated, or any other."""
        if unfunded:
            return cls.UNFUNDED
        return cls.NOMINATED if nominated else cls.FUNDED


class Action(NamedTuple):
    """A lease that ends; only GPUs in scope help against the deficit."""

    lease: str
    run: str
    kind: CutKind
    gpus: int
    in_scope: bool
    tier: CutTier
    draw: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The lottery of one tier: who had tokens, and what was drawn."""

    tier: CutTier
    tokens: Tokens
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Enough is freed, or nothing is done and so many GPUs would still be missing."""

    deficit_gpus: int
    freed_gpus: int = 0
    actions: tuple[Action, ...] = ()
    withdrawn: tuple[Action, ...] = ()
    """Structural cuts that the draws made unnecessary, in the order in which they were made."""
    rounds: tuple[Round, ...] = ()
    shortfall_gpus: int = 0

    @property
    def resolved(self) -> bool:
        return not self.shortfall_gpus

    def draws(self) -> Iterator[tuple[CutTier, Draw]]:
        for lottery in self.rounds:
            for draw in lottery.draws:
                yield lottery.tier, draw


@dataclass(frozen=True, slots=True)
class RiskRound:
    """A lottery that will be held: each token with its odds in the first draw of this round."""

    tier: CutTier
    odds: tuple[Odds, ...]
    missing_gpus: int
    """What is still to be freed when it begins."""
    all_lost: bool
    """Even all tokens together are no more than what is missing: every one will be drawn."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known before a seed is: the cuts by rule, and the odds of the rest."""

    deficit_gpus: int
    actions: tuple[Action, ...] = ()
    """The structural cuts, in order. Those that turn out to be unnecessary will come back."""
    withdrawn: tuple[Action, ...] = ()
    """Structural cuts that come back for certain; known only where no draw is open."""
    risks: tuple[RiskRound, ...] = ()
    shortfall_gpus: int = 0

    @property
    def first_odds(self) -> tuple[Odds, ...]:
        """The odds of every token in draw 0; empty when nothing is drawn."""
        return self.risks[0].odds if self.risks else ()
