"""A conflict under pseudonyms: names change, and nothing else does."""

from dataclasses import replace

from fairlead.core.canonical import canonical
from fairlead.core.gpu import conflict_bytes
from fairlead.core.gpu.conflict import renamed
from fairlead.core.lottery import Pseudonyms
from tests.core.gpu.conflicts import ELSEWHERE, conflict_of, document, lease, run

NAMES = Pseudonyms("ab" * 32, 0, lambda owner: owner.encode().ljust(32), lambda budget: "a")
RUNS = [run("m", "a", least=2, step=3), run("n", "b", nominated=True)]
LEASES = [
    lease("z", "m", 2, group=1, spare=True, funded=False),
    lease("y", "n", 4, location=ELSEWHERE, flavor="A100", envelope="east"),
    lease("x", "n", 1, location=ELSEWHERE),
    lease("w", "m", 1),
]
CAP = {"budget": "b", "name": "all", "envelopes": ["west", "east"]}


def test_only_names_change() -> None:
    made = conflict_of(document(3, RUNS, LEASES, cap=CAP))
    other = renamed(made, NAMES)
    assert (other.deficit_gpus, other.scope.flavor, other.scope.location) == (
        3,
        made.scope.flavor,
        made.scope.location,
    )
    budget, name = NAMES.cap("b", "all")
    assert other.scope.cap is not None
    assert (other.scope.cap.budget, other.scope.cap.name) == (budget, name)
    assert other.scope.cap.envelopes == tuple(
        sorted(NAMES.payer("b", each)[1] for each in ("west", "east"))
    )
    for before, after in zip(made.runs, other.runs, strict=True):
        names = {"id": NAMES.run(before.owner, before.id), "owner": NAMES.owner(before.owner)}
        assert after == replace(before, **names)
    owners = {row.id: row.owner for row in made.runs}
    for old, new in zip(made.leases, other.leases, strict=True):
        owner = owners[old.run]
        payer = NAMES.payer(old.budget, old.envelope)
        assert new == replace(
            old,
            id=NAMES.lease(owner, old.id),
            run=NAMES.run(owner, old.run),
            budget=payer[0],
            envelope=payer[1],
        )
    free = renamed(conflict_of(document(3, RUNS, LEASES)), NAMES)
    assert free.scope.cap is None


def test_the_bytes_are_of_runs_and_leases_by_id() -> None:
    """In any order, places once or several times."""
    made = conflict_of(document(3, RUNS, LEASES, cap=CAP))
    turned = replace(made, runs=made.runs[::-1], leases=made.leases[::-1])
    assert conflict_bytes(made) == canonical(made.document()) == conflict_bytes(turned)
    assert [row["id"] for row in made.document()["leases"]] == ["w", "x", "y", "z"]  # type: ignore[attr-defined]
    assert turned.document() == made.document()
