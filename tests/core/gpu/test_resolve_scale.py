"""Sizes at which a walk over what is left after every cut would take minutes."""

import time

from fairlead.core.gpu import (
    Conflict,
    ConflictLease,
    ConflictRun,
    Malleable,
    Resolution,
    Role,
    Scope,
    resolve,
)

COUNT = 20_000
LIMIT_S = 20.0  # takes a fraction of a second; what is quadratic takes minutes


def held(number: int, run: str, role: Role = Role.ACTIVE) -> ConflictLease:
    return ConflictLease(f"l{number:06}", run, role, number, 1, "H100", {}, True, "b", "e")


def timed(deficit: int, runs: list[ConflictRun], leases: list[ConflictLease]) -> Resolution:
    """Resolve within the limit of CPU time."""
    conflict = Conflict(Scope("H100"), deficit, tuple(runs), tuple(leases))
    began = time.process_time()
    done = resolve(conflict, bytes(32))
    assert time.process_time() - began < LIMIT_S
    assert done.freed_gpus == deficit
    return done


def test_a_run_of_thousands_of_steps() -> None:
    """One run, a group per GPU, shrunk to one GPU."""
    runs = [ConflictRun("r", "o", Malleable(1, 1))]
    done = timed(COUNT - 1, runs, [held(number, "r") for number in range(COUNT)])
    assert len(done.actions) == COUNT - 1


def test_thousands_of_spares() -> None:
    """All of one run."""
    spares = [held(number, "r", Role.SPARE) for number in range(COUNT)]
    assert len(timed(COUNT - 1, [ConflictRun("r", "o")], spares).actions) == COUNT - 1


def test_thousands_of_draws_from_one_owner_and_from_many() -> None:
    """Tokens of one owner, then owners with one token each."""
    leases = [held(number, f"r{number}") for number in range(COUNT)]
    for owners in (1, COUNT):
        runs = [ConflictRun(f"r{number}", f"o{number % owners}") for number in range(COUNT)]
        (only,) = timed(COUNT - 1, runs, leases).rounds
        assert len({draw.token for draw in only.draws}) == COUNT - 1


def test_thousands_of_runs_that_cannot_shrink() -> None:
    """Each is asked once."""
    runs = [ConflictRun(f"r{number}", "o", Malleable(1, 7)) for number in range(COUNT)]
    timed(5, runs, [held(number, f"r{number}") for number in range(COUNT)])
