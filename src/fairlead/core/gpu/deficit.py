"""Deficit: which scope is short of how many GPUs, and which leases are candidates for preemption.

A demand says what is missing: room for a gang, what is above a cap of a budget, so many GPUs of a
place, or everything on a node that is drained. For a gang the scopes are tried from the smallest
on: a domain, a cluster, a region, everywhere. In each, the deficit is so large that the gang fits
whichever candidates end: inside one domain its groups can be spread over all nodes; over several
domains, what is freed may leave a rest in each that is too small for a group, and so many more GPUs
are asked for. So no lease ends without a start, and no draw is thrown away because its winner
would not fit.

`conflict_of` makes the input of `resolve` from a deficit; `freeze` does so under the pseudonyms of
an outcome, with the notice that its commitment announces.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from fairlead.core.gpu.conflict import Conflict, ConflictLease, ConflictRun, CutTier, Scope, renamed
from fairlead.core.gpu.holdings import (
    CapDemand,
    CapKind,
    Demand,
    GangDemand,
    HeldLease,
    Holdings,
    NodeDemand,
    PlaceDemand,
)
from fairlead.core.gpu.model import Budget
from fairlead.core.gpu.notice import Notice, notice_of
from fairlead.core.gpu.place import DOMAIN_KEYS, Gang, Node, place
from fairlead.core.gpu.policy import Standing
from fairlead.core.gpu.scope import ScopeTest
from fairlead.core.invariant import known
from fairlead.core.lottery import OwnerWeighting, Pseudonyms
from fairlead.core.reasons import DeficitReason, Exclusion
from fairlead.core.units import Written


class CandidateLease(NamedTuple):
    """A lease that may be ended, and the tier its run is in."""

    lease: str
    run: str
    gpus: int
    tier: CutTier


class ExcludedLease(NamedTuple):
    """A lease that may not be ended for this deficit, and why."""

    lease: str
    run: str
    reason: Exclusion


@dataclass(frozen=True, slots=True)
class Deficit:
    """A scope, the GPUs that are missing in it, and every lease: a candidate, or why not."""

    reason: DeficitReason
    scope: Scope | None = None
    """None: the gang fits, or no node can ever hold it."""
    gpus: Annotated[int, Written("deficit_gpus")] = 0
    candidate_gpus: int = 0
    shortfall_gpus: int = 0
    """What is missing even when every candidate ends."""
    candidates: tuple[CandidateLease, ...] = ()
    """By lease id; empty when nothing is missing."""
    excluded: Annotated[tuple[ExcludedLease, ...], Written("exclusions")] = ()


def caps_of(budget: Budget) -> list[CapDemand]:
    """The caps of a budget in the order in which they are brought back within their limits.

    By name; an aggregate cap before an envelope of the same name.
    """
    caps: list[CapDemand] = []
    for cap in budget.aggregate_caps:
        members, metered = tuple(sorted(set(cap.envelopes))), cap.max_hours_ms is not None
        caps.append(
            CapDemand(
                CapKind.AGGREGATE, budget.name, cap.name, cap.flavor, members, cap.max_gpus, metered
            )
        )
    for own in budget.envelopes:
        limits = (own.max_hours_ms, own.lending.max_gpus, own.lending.max_hours_ms)
        metered = any(limit is not None for limit in limits)
        caps.append(
            CapDemand(
                CapKind.ENVELOPE, budget.name, own.name, own.flavor, (own.name,), own.gpus, metered
            )
        )
    return sorted(caps, key=lambda cap: (cap.name, cap.kind))


def find_deficit(demand: Demand, holdings: Holdings, *, apart: bool = True) -> Deficit:
    """`apart`: since version 3, a domain's nodes in the gang's location, and its others, are two
    domains: no group is divided between them."""
    locations = _Locations(demand, holdings.nodes)
    if isinstance(demand, GangDemand):
        return _for_gang(demand, holdings, locations, apart=apart)
    if isinstance(demand, CapDemand):
        over = _over(demand, holdings)
        if not over:
            return Deficit(DeficitReason.WITHIN_CAP, demand.scope)
        return _judged(holdings, demand.scope, over, locations)
    if isinstance(demand, PlaceDemand):
        return _judged(holdings, demand.scope, demand.gpus, locations)
    found = _judged(holdings, demand.scope, 0, locations)
    if not found.candidate_gpus:
        return Deficit(DeficitReason.NODE_EMPTY, demand.scope)
    return replace(found, gpus=found.candidate_gpus)


def _over(cap: CapDemand, holdings: Holdings) -> int:
    """GPUs above a cap's limit, or that its hours pay for no longer; less what is ending anyway."""
    used = unpaid = 0
    for lease in holdings.leases:
        if lease.budget == cap.budget and lease.envelope in cap.envelopes and not lease.ending:
            used += len(lease.slots)
            unpaid += 0 if lease.funded else len(lease.slots)
    above = 0 if cap.max_gpus is None else used - cap.max_gpus
    return max(0, above, unpaid if cap.metered else 0)


class _Locations:
    """Where leases are, for one demand. A lease on several nodes is where all of them are.

    `only`: the labels that decide. What is frozen holds no others.
    """

    def __init__(
        self, demand: Demand, nodes: Iterable[Node], only: Mapping[str, str] | None = None
    ) -> None:
        self._only = only
        self._nodes = {node.name: node for node in nodes}
        self._drained = demand.node if isinstance(demand, NodeDemand) else None
        self._for_gang = isinstance(demand, GangDemand)
        self._known: dict[tuple[str, ...], Mapping[str, str]] = {}

    def of(self, lease: HeldLease) -> Mapping[str, str]:
        """The labels that all its nodes have in common; one object for each set of nodes."""
        names = tuple(dict.fromkeys([slot.partition("#")[0] for slot in lease.slots]))
        found = self._known.get(names)
        if found is None:
            found = self._known[names] = self._common(names)
        return found

    def _common(self, names: tuple[str, ...]) -> Mapping[str, str]:
        if self._drained is not None:
            return {"node": self._drained} if self._drained in names else {}
        # For a gang a cordoned node is nowhere: it could not be placed on what is freed there.
        if self._for_gang and any(self._nodes[name].cordoned for name in names):
            return {}
        first, *others = (self._nodes[name].location for name in names)
        return {
            key: value
            for key, value in first.items()
            if (self._only is None or key in self._only)
            and all(other.get(key) == value for other in others)
        }


def _judged(
    holdings: Holdings,
    scope: Scope,
    gpus: int,
    locations: _Locations,
    demand: GangDemand | None = None,
) -> Deficit:
    """Every lease in or out of a scope that is short of so many GPUs."""
    runs = {run.id: run for run in holdings.runs}
    beneficiary, protected = "" if demand is None else demand.run, _protected(holdings, demand)
    out_of_scope = ScopeTest(scope).exclusion
    candidates: list[HeldLease] = []
    excluded: list[ExcludedLease] = []
    for lease in sorted(holdings.leases, key=lambda lease: lease.id):
        run = runs[lease.run]
        exclusion = out_of_scope(run.flavor, locations.of(lease), lease.budget, lease.envelope)
        if exclusion is None and run.id == beneficiary:
            exclusion = Exclusion.BENEFICIARY
        elif exclusion is None and run.ending:
            exclusion = Exclusion.ENDING
        elif exclusion is None:
            exclusion = protected.get(run.id)
        if exclusion is None:
            candidates.append(lease)
        else:
            excluded.append(ExcludedLease(lease.id, lease.run, exclusion))
    unfunded = {lease.run for lease in candidates if not lease.funded}
    tiers = {
        name: CutTier.of(unfunded=name in unfunded, nominated=runs[name].nominated)
        for name in {lease.run for lease in candidates}
    }
    rows = tuple(
        CandidateLease(lease.id, lease.run, len(lease.slots), tiers[lease.run])
        for lease in candidates
    )
    candidate_gpus = sum(row.gpus for row in rows)
    enough = candidate_gpus >= gpus
    reason = DeficitReason.RESOLVABLE if enough else DeficitReason.NOT_ENOUGH
    shortfall = max(0, gpus - candidate_gpus)
    return Deficit(reason, scope, gpus, candidate_gpus, shortfall, rows, tuple(excluded))


def _protected(holdings: Holdings, demand: GangDemand | None) -> dict[str, Exclusion]:
    """Funded runs that are no candidates for a gang, or not yet. One with an unfunded lease is."""
    rule = holdings.protection
    if demand is None or (rule is None and not demand.unfunded_only):
        return {}
    found: dict[str, Exclusion] = {}
    standings = holdings.standings()
    for run in holdings.runs:
        standing = standings[run.id]
        if demand.unfunded_only and standing is Standing.FUNDED:
            found[run.id] = Exclusion.FUNDED
            continue
        why = None if rule is None else rule.exclusion(run.started_ms, run.preempted_ms, standing)
        if why is not None:
            found[run.id] = why
    return found


def conflict_of(demand: Demand, deficit: Deficit, holdings: Holdings) -> Conflict:
    """The input of `resolve`: every run with a candidate, and all open leases of those runs."""
    scope = known(deficit.scope, "a conflict has a scope")
    involved = {row.run for row in deficit.candidates}
    locations = _Locations(demand, holdings.nodes, scope.location)
    flavors = {run.id: run.flavor for run in holdings.runs}
    return Conflict(
        scope=scope,
        deficit_gpus=deficit.gpus,
        runs=tuple(
            ConflictRun(run.id, run.owner, run.malleable, run.nominated)
            for run in holdings.runs
            if run.id in involved
        ),
        leases=tuple(
            ConflictLease(
                lease.id,
                lease.run,
                lease.role,
                lease.group,
                len(lease.slots),
                flavors[lease.run],
                locations.of(lease),
                lease.funded,
                lease.budget,
                lease.envelope,
            )
            for lease in holdings.leases
            if lease.run in involved
        ),
    )


LEFT_OUT = (
    *(Exclusion.BENEFICIARY, Exclusion.ENDING),
    *(Exclusion.MIN_RUNTIME, Exclusion.COOLDOWN, Exclusion.FUNDED),
)
"""Why a lease in scope is not in the conflict; a notice says so."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A conflict under pseudonyms, and what its commitment announces."""

    conflict: Conflict
    notice: Notice


def freeze(
    demand: Demand,
    deficit: Deficit,
    holdings: Holdings,
    names: Pseudonyms,
    *,
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS,
) -> Frozen:
    """The conflict of a deficit under the pseudonyms of its outcome, with the notice of it."""
    conflict = renamed(conflict_of(demand, deficit, holdings), names)
    owners = {run.id: run.owner for run in holdings.runs}
    left_out = [
        (names.lease(owners[row.run], row.lease), row.reason)
        for row in deficit.excluded
        if row.reason in LEFT_OUT
    ]
    return Frozen(conflict, notice_of(conflict, left_out, owner_weighting=owner_weighting))


# -- the smallest scope for a gang ------------------------------------------------------------


def _for_gang(
    demand: GangDemand, holdings: Holdings, locations: _Locations, *, apart: bool
) -> Deficit:
    """The smallest scope with enough candidates, the least deficit first; else the nearest one."""
    gang = demand.gang
    usable = [node for node in holdings.nodes if _is_usable(node, gang)]
    if place([node for node in usable if node.free], gang).placed:
        return Deficit(DeficitReason.FITS)
    promised = {(lease.budget, lease.envelope) for lease in holdings.leases if lease.promised}
    if any((payer.budget, payer.envelope) in promised for payer in demand.guest_of):
        return Deficit(DeficitReason.ENVELOPE_PROMISED)
    found = _smallest(usable, _movable(demand, holdings, locations), gang, apart=apart)
    if found is None:
        groups = gang.groups()
        gpus = sum(groups) + len(groups) * gang.spares_per_group
        return Deficit(DeficitReason.NO_DEVICES, None, gpus, 0, gpus)
    return _judged(holdings, found.scope, found.gpus, locations, demand)


def _is_usable(node: Node, gang: Gang) -> bool:
    if node.flavor != gang.flavor or node.cordoned:
        return False
    return gang.elsewhere or node.is_in(gang.location)


_Movable = list[tuple[Mapping[str, str], list[HeldLease]]]
"""Leases that could end, by place: a scope looks at places, of which there are few."""


def _movable(demand: GangDemand, holdings: Holdings, locations: _Locations) -> _Movable:
    flavor, protected = demand.gang.flavor, _protected(holdings, demand)
    runs = {
        run.id
        for run in holdings.runs
        if run.flavor == flavor
        and run.id != demand.run
        and not run.ending
        and run.id not in protected
    }
    found: dict[tuple[tuple[str, str], ...], tuple[Mapping[str, str], list[HeldLease]]] = {}
    for lease in holdings.leases:
        if lease.run in runs:
            location = locations.of(lease)
            found.setdefault(tuple(location.items()), (location, []))[1].append(lease)
    return list(found.values())


class _Short(NamedTuple):
    """A scope, the GPUs that are missing in it, and those that could be freed."""

    scope: Scope
    gpus: int
    candidate_gpus: int

    @property
    def shortfall_gpus(self) -> int:
        return max(0, self.gpus - self.candidate_gpus)


def _smallest(nodes: list[Node], movable: _Movable, gang: Gang, *, apart: bool) -> _Short | None:
    nearest: _Short | None = None
    places: dict[tuple[tuple[str, str], ...], list[Node]] = {}
    for node in nodes:
        places.setdefault(tuple(node.location.items()), []).append(node)
    for level in _levels(nodes, gang):
        every = list(places.values())
        shorts = [_short(scope, every, movable, gang, apart=apart) for scope in level]
        # A scope with room enough that still cannot hold the gang is no better with more room.
        found = [short for short in shorts if short.gpus > 0]
        enough = [short for short in found if not short.shortfall_gpus]
        if enough:
            return min(enough, key=lambda short: (short.gpus, sorted(short.scope.location.items())))
        for short in found:
            if nearest is None or short.shortfall_gpus < nearest.shortfall_gpus:
                nearest = short
    return nearest


def _levels(nodes: list[Node], gang: Gang) -> Iterator[list[Scope]]:
    """Scopes by size, the smallest first.

    First those with the labels that the gang asks for; then those without, because a lease that
    is partly elsewhere can be in the way, and is in none of the first.
    """
    fixed = {key: value for key, value in gang.location.items() if value != "*"}
    seen: set[tuple[tuple[str, str], ...]] = set()
    for wanted in ({} if gang.elsewhere else fixed, {}):
        for depth in range(len(DOMAIN_KEYS), -1, -1):
            level = {}
            for node in nodes:
                labels = {
                    key: node.location[key] for key in DOMAIN_KEYS[:depth] if key in node.location
                }
                location = {**labels, **wanted}
                key = tuple(sorted(location.items()))
                if key not in seen:
                    level[key] = Scope(gang.flavor, location)
            seen |= level.keys()
            if level:
                yield [level[key] for key in sorted(level)]


def _short(
    scope: Scope, places: list[list[Node]], movable: _Movable, gang: Gang, *, apart: bool
) -> _Short:
    labels = scope.location.items()
    inside = [node for place in places if labels <= place[0].location.items() for node in place]
    free = sum(len(node.free) for node in inside)
    candidates = [lease for place, leases in movable if labels <= place.items() for lease in leases]
    # What ends where the gang may not be placed does not help: asked for on top, to be safe.
    usable = {node.name for node in inside}
    stuck = sum(
        slot.partition("#")[0] not in usable for lease in candidates for slot in lease.slots
    )
    need = _need(inside, candidates, gang, apart=apart)
    return _Short(scope, need - free + stuck, sum(len(lease.slots) for lease in candidates))


def _need(nodes: list[Node], candidates: Iterable[HeldLease], gang: Gang, *, apart: bool) -> int:
    """Free GPUs with which the gang fits for certain, however they lie."""
    sizes = [gpus + gang.spares_per_group for gpus in gang.groups()]
    if gang.group_gpus is None and not gang.spares_per_group:
        return sum(sizes)
    # In every domain but one, a rest that is one GPU short of a group may stay unused.
    domain_of = {node.name: (*node.domain, apart and node.is_in(gang.location)) for node in nodes}
    room = dict.fromkeys(domain_of.values(), 0)
    for node in nodes:
        room[domain_of[node.name]] += len(node.free)
    for lease in candidates:
        for slot in lease.slots:
            domain = domain_of.get(slot.partition("#")[0])
            if domain is not None:
                room[domain] += 1
    rests = sorted(min(max(sizes) - 1, gpus) for gpus in room.values())
    return sum(sizes) + sum(rests[:-1])
