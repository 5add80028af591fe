"""A conflict: GPUs are missing somewhere, and these runs hold leases there.

The frozen input of `resolve` and `forecast`. A lease is a candidate when it is in scope: the
flavor and every label of the scope are equal and, where a cap binds, one of its envelopes pays.
The digest names the conflict for good, whatever the order of its lists.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256

from fairlead.core.canonical import encoded, text
from fairlead.core.lottery import Pseudonyms
from fairlead.core.reasons import Exclusion
from fairlead.core.units import Count, Name, PositiveCount


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
        """As JSON carries it."""
        cap = self.cap
        return {
            "flavor": self.flavor,
            "location": dict(self.location),
            "cap": cap
            and {"budget": cap.budget, "name": cap.name, "envelopes": list(cap.envelopes)},
        }


@dataclass(frozen=True, slots=True)
class Malleable:
    """A run that can work with less: down to its minimum, by multiples of its step."""

    min_gpus: PositiveCount
    step_gpus: PositiveCount


@dataclass(frozen=True, slots=True)
class ConflictRun:
    """A run with leases; `nominated` by its owner to give way before the owner's others."""

    id: Name
    owner: Name
    malleable: Malleable | None = None
    nominated: bool = False

    def document(self) -> dict[str, object]:
        """As JSON carries it."""
        steps = self.malleable
        return {
            "id": self.id,
            "owner": self.owner,
            "malleable": steps and {"min_gpus": steps.min_gpus, "step_gpus": steps.step_gpus},
            "nominated": self.nominated,
        }


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

    def document(self) -> dict[str, object]:
        """As JSON carries it."""
        return {
            "id": self.id,
            "run": self.run,
            "role": self.role,
            "group": self.group,
            "gpus": self.gpus,
            "flavor": self.flavor,
            "location": dict(self.location),
            "funded": self.funded,
            "budget": self.budget,
            "envelope": self.envelope,
        }


@dataclass(frozen=True, slots=True)
class Conflict:
    """All that a resolve looks at, but for the seed. Ids are unique, every lease's run is here."""

    scope: Scope
    deficit_gpus: Count
    runs: tuple[ConflictRun, ...]
    leases: tuple[ConflictLease, ...]

    def document(self) -> dict[str, object]:
        """The input of `gpu.resolve` without a seed, runs and leases by id."""
        return {
            "scope": self.scope.document(),
            "deficit_gpus": self.deficit_gpus,
            "runs": [run.document() for run in sorted(self.runs, key=lambda run: run.id)],
            "leases": [
                lease.document() for lease in sorted(self.leases, key=lambda lease: lease.id)
            ],
        }


def conflict_digest(conflict: Conflict) -> str:
    """SHA-256, in hex, of the canonical JSON of the conflict."""
    return sha256(conflict_bytes(conflict)).hexdigest()


def conflict_bytes(conflict: Conflict) -> bytes:
    """The canonical JSON of the conflict's document, as it is kept under its digest.

    The leases are written by hand, their keys in order: a set of 100 000 takes a third of the time
    that it takes through `canonical`, which looks at every key and value anew.
    """
    quoted = _Quoted()
    places: dict[tuple[tuple[str, str], ...], str] = {}
    lines: dict[str, str] = {}  # written as they come, then sorted: memory is read in one sweep
    for lease in conflict.leases:
        place = tuple(lease.location.items())
        if place not in places:
            places[place] = text(dict(place))
        lines[lease.id] = (
            f'{{"budget":{quoted[lease.budget]},"envelope":{quoted[lease.envelope]},'
            f'"flavor":{quoted[lease.flavor]},"funded":{"true" if lease.funded else "false"},'
            f'"gpus":{text(lease.gpus)},"group":{text(lease.group)},"id":{text(lease.id)},'
            f'"location":{places[place]},"role":{quoted[lease.role]},"run":{quoted[lease.run]}}}'
        )
    runs = [run.document() for run in sorted(conflict.runs, key=lambda run: run.id)]
    leases = ",".join([lines[name] for name in sorted(lines)])
    return encoded(
        f'{{"deficit_gpus":{text(conflict.deficit_gpus)},"leases":[{leases}],'
        f'"runs":{text(runs)},"scope":{text(conflict.scope.document())}}}'
    )


class _Quoted(dict[str, str]):
    """Strings as JSON writes them; most come many times."""

    def __missing__(self, value: str) -> str:
        made = self[value] = text(value)
        return made


def candidacy(scope: Scope) -> Callable[[ConflictLease], bool]:
    """A test of leases for one scope; it is asked a hundred thousand times, so it is made once."""
    flavor, labels, cap = scope.flavor, scope.location.items(), scope.cap
    if cap is None:
        return lambda lease: lease.flavor == flavor and labels <= lease.location.items()
    budget, envelopes = cap.budget, frozenset(cap.envelopes)
    return lambda lease: (
        lease.flavor == flavor
        and labels <= lease.location.items()
        and lease.budget == budget
        and lease.envelope in envelopes
    )


def out_of_scope(scope: Scope, lease: ConflictLease) -> Exclusion | None:
    """The first thing that puts a lease out of scope; None: it is a candidate."""
    cap = scope.cap
    if lease.flavor != scope.flavor:
        return Exclusion.FLAVOR
    if not scope.location.items() <= lease.location.items():
        return Exclusion.LOCATION
    if cap is not None and (lease.budget != cap.budget or lease.envelope not in cap.envelopes):
        return Exclusion.PAYER
    return None


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
