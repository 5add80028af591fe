"""A conflict frozen for good: every run with something in scope, under pseudonyms.

What is frozen is all that the decision will look at. Who would be in scope and is left out is
named with the reason, so that nobody is spared in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.gpu import Conflict, ConflictLease, ConflictRun, Malleable, Role, Scope, forecast
from fairlead.core.lottery import OwnerWeighting
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.resolver.names import Names
from fairlead.engine.gpu.state import LeaseFact, Phase


@dataclass(frozen=True, slots=True)
class Frozen:
    """A conflict under pseudonyms, and what its commitment announces."""

    conflict: Conflict
    notice: dict[str, Any]


class Places:
    """Where leases are. One on several nodes is where all of them are."""

    def __init__(
        self, projection: Projection, node: str | None = None, *, for_winner: bool = True
    ) -> None:
        self._nodes = {stored.name: node_spec(stored) for stored in projection.of_kind("Node")}
        self._node, self._for_winner = node, for_winner
        self._known: dict[tuple[str, ...], Mapping[str, str]] = {}
        self._of: dict[str, Mapping[str, str]] = {}

    def of(self, lease: LeaseFact) -> Mapping[str, str]:
        """The labels that all its nodes have in common.

        For a winner, a cordoned node is nowhere: what is freed there helps nobody. When a node is
        drained, every lease that touches it is at `node`, whatever else it touches.
        """
        found = self._of.get(lease.id)
        if found is None:
            found = self._of[lease.id] = self._place(lease)
        return found

    def _place(self, lease: LeaseFact) -> Mapping[str, str]:
        names = tuple(dict.fromkeys(slot.partition("#")[0] for slot in lease.slots))
        known = self._known.get(names)
        if known is None:
            if self._node is not None:
                known = {"node": self._node} if self._node in names else {}
            elif self._for_winner and any(self._nodes[name].cordoned for name in names):
                known = {}
            else:
                first, *others = (self._nodes[name].location for name in sorted(names))
                known = {
                    key: value
                    for key, value in first.items()
                    if all(other.get(key) == value for other in others)
                }
            self._known[names] = known
        return known


def in_scope(projection: Projection, scope: Scope, places: Places) -> dict[str, list[LeaseFact]]:
    """Open leases in a scope, by run."""
    labels, cap, found = scope.location.items(), scope.cap, dict[str, list[LeaseFact]]()
    envelopes = frozenset(() if cap is None else cap.envelopes)
    flavors = {name: projection.run_spec(name).flavor for name in projection.runs}
    for lease in projection.leases.values():
        if flavors[lease.run] != scope.flavor or not labels <= places.of(lease).items():
            continue
        if cap is not None and (lease.budget != cap.budget or lease.envelope not in envelopes):
            continue
        found.setdefault(lease.run, []).append(lease)
    return found


def spared(projection: Projection, run: str, beneficiary: str | None) -> str | None:
    """Why a run's leases are not candidates, whatever the scope; None: they are."""
    state = projection.runs[run]
    if run == beneficiary:
        return "beneficiary"
    if state.stopping or state.cut is not None or state.phase is not Phase.RUNNING:
        return "ending"
    return None


def freeze(
    projection: Projection,
    names: Names,
    scope: Scope,
    deficit_gpus: int,
    *,
    beneficiary: str | None = None,
    node: str | None = None,
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS,
) -> Frozen:
    """The conflict of a scope as it is now."""
    # Without one, a place is to be emptied, and cordoned before, so that nobody moves in.
    places = Places(projection, node, for_winner=beneficiary is not None)
    runs: list[ConflictRun] = []
    leases: list[ConflictLease] = []
    left_out: list[dict[str, str]] = []
    candidates: list[str] = []
    for run, inside in in_scope(projection, scope, places).items():
        reason = spared(projection, run, beneficiary)
        if reason is not None:
            left_out += [{"lease": names.lease(lease), "reason": reason} for lease in inside]
            continue
        spec, state = projection.run_spec(run), projection.runs[run]
        hidden, steps = names.run(spec.owner, run), spec.malleable
        malleable = None if steps is None else Malleable(steps.min_gpus, steps.step_gpus)
        runs.append(ConflictRun(hidden, names.owner(spec.owner), malleable, state.nominated))
        chosen = {lease.id for lease in inside}
        for lease in state.leases.values():
            frozen = ConflictLease(
                names.lease(lease),
                hidden,
                Role.ACTIVE if lease.is_active else Role.SPARE,
                lease.group,
                lease.gpus,
                spec.flavor,
                places.of(lease),
                projection.is_funded(lease.id),
                *names.payer(lease.budget, lease.envelope),
            )
            leases.append(frozen)
            if lease.id in chosen:
                candidates.append(frozen.id)
            else:
                left_out.append({"lease": frozen.id, "reason": _differs(scope, frozen)})
    conflict = Conflict(names.scope(scope), deficit_gpus, tuple(runs), tuple(leases))
    odds = forecast(conflict, owner_weighting=owner_weighting).first_odds
    notice = {
        "candidates": sorted(candidates),
        "exclusions": sorted(left_out, key=lambda each: each["lease"]),
        "tokens": [
            {"one_in": each.chance.denominator, "owner": each.owner, "token": each.token}
            for each in sorted(odds, key=lambda each: each.token)
        ],
    }
    return Frozen(conflict, notice)


def _differs(scope: Scope, lease: ConflictLease) -> str:
    """The first thing that puts a lease out of scope."""
    if lease.flavor != scope.flavor:
        return "flavor"
    return "location" if not scope.location.items() <= lease.location.items() else "payer"
