"""How much may be inside a group whose agent is dead: what was learned last, relaxed slowly.

A dead agent can do nothing, so every table carries the bound for the time without one, and the
dataplane goes by it from the moment it falls back. Without a bound a group at twice its capacity is
buried within seconds: of 960 requests a second none was served in time, and when the load was at
half the capacity again and the agent was back, still none.

What was learned may be out of date. So the bound is relaxed, one step a period, as long as so many
requests succeed that at this bound they would stay no longer than they are meant to (Little's law),
and goes back towards what was learned when they do not. `relax` is that rule. `memory` calls it;
`group.cfg`, `admission.lua` and `choose.h` are translations of it.
"""

from dataclasses import dataclass, field

STAY_MS = 60
RELAX_EVERY_MS, STEPS, TIMES_MOST = 5_000, 20, 4
"""A twentieth every 5 s: twice as much may be inside after 100 s of success, never more than four
times as much."""
UNLEARNED_EACH = 64
"""Per backend, before anything was learned."""
BALANCE_PERCENT = 150
"""Of an even share of what is inside: a backend that holds more is passed over. One that stalls
would hold all of the bound before long, for hashing sends it its flows whatever it does."""


@dataclass(frozen=True, slots=True)
class FallbackBound:
    """How many may be inside a group without an agent, and by what the bound is relaxed."""

    inside_max: int = UNLEARNED_EACH
    most: int = UNLEARNED_EACH * TIMES_MOST
    step: int = UNLEARNED_EACH // STEPS
    every_ms: int = RELAX_EVERY_MS
    balance_percent: int = BALANCE_PERCENT
    stay_ms: int = field(default=STAY_MS, compare=False)
    """How long requests are to stay. It is a little different in every tick: a table that differs
    in nothing else needs no flip."""


def bound_alone(
    inside_max: int | None, *, members: int, open: int, stay_ms: int = STAY_MS
) -> FallbackBound:
    """The bound that was learned. Where there is none, so many for each backend, or twice what is
    open now, as a power of two: it is not to change with every connection.
    """
    bound = inside_max
    if bound is None:
        bound = max(UNLEARNED_EACH * max(1, members), 1 << max(0, 2 * open - 1).bit_length())
    step = max(1, bound // STEPS)
    return FallbackBound(bound, TIMES_MOST * bound, step, stay_ms=max(1, stay_ms))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The bound in force, since when, and how many requests had succeeded by then."""

    inside_max: int
    since_ms: int
    successes: int


def relax(bound: FallbackBound, now: Relaxed | None, *, now_ms: int, successes: int) -> Relaxed:
    """The bound for the next request; `successes` are counted so far. Begins with what was learned,
    and changes by one step a period at the most.
    """
    if now is None:
        return Relaxed(bound.inside_max, now_ms, successes)
    elapsed_ms = now_ms - now.since_ms
    if elapsed_ms < bound.every_ms:
        return now
    enough = (successes - now.successes) * bound.stay_ms >= now.inside_max * elapsed_ms
    change = bound.step if enough else -bound.step
    inside_max = max(bound.inside_max, min(bound.most, now.inside_max + change))
    return Relaxed(inside_max, now_ms, successes)


def has_room(bound: FallbackBound, *, open: int, inside: int, members: int) -> bool:
    """Whether a backend that holds `open` may be hashed to, of so many that hold `inside` in all,
    the newcomer included. One of them always may.
    """
    return 100 * open * members < bound.balance_percent * inside
