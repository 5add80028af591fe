"""The five conditions of a budget: caps near, used up or exceeded, unused lending entries."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fairlead.core.gpu import Budget, aggregate
from fairlead.engine.gpu.entries import BudgetCondition, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Condition, Stored
from fairlead.engine.gpu.values import NEAR_LIMIT_PERCENT

CONDITIONS = ("Healthy", "NearLimit", "Exhausted", "Overcommitted", "UnusedLendingEntry")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One cap of a budget and what counts against it; hours in GPU-milliseconds."""

    kind: str
    name: str
    limit: int
    used: int
    held: int
    hours: bool

    @property
    def taken(self) -> int:
        return self.used + self.held

    def text(self) -> str:
        unit = "GPU-hours" if self.hours else "GPUs"
        taken, limit = (
            (f"{self.taken / 3_600_000:.2f}", f"{self.limit / 3_600_000:.2f}")
            if self.hours
            else (str(self.taken), str(self.limit))
        )
        return f"{self.kind} {self.name}: {taken} of {limit} {unit}"


def gauges(projection: Projection, budget: Budget, now_ms: int) -> Iterator[Gauge]:
    """Every cap of a budget that has a limit."""
    usage = projection.accounts.at(now_ms)
    for envelope in budget.envelopes:
        used, lending = usage[budget.name, envelope.name], envelope.lending
        yield from _pair(
            "envelope",
            envelope.name,
            (envelope.gpus, envelope.max_hours_ms),
            (used.gpus, used.used_ms, used.held_ms),
        )
        if lending.allow:
            yield from _pair(
                "lending",
                envelope.name,
                (lending.max_gpus, lending.max_hours_ms),
                (used.lent_gpus, used.lent_used_ms, used.lent_held_ms),
            )
    for cap in budget.aggregate_caps:
        used = aggregate(usage, budget.name, cap.envelopes)
        yield from _pair(
            "aggregate",
            cap.name,
            (cap.max_gpus, cap.max_hours_ms),
            (used.gpus, used.used_ms, used.held_ms),
        )


def _pair(
    kind: str, name: str, limits: tuple[int | None, int | None], used: tuple[int, int, int]
) -> Iterator[Gauge]:
    """GPUs and hours of one thing; `used` is GPUs, hours used, hours held."""
    max_gpus, max_ms = limits
    if max_gpus is not None:
        yield Gauge(kind, name, max_gpus, used[0], 0, hours=False)
    if max_ms is not None:
        yield Gauge(kind, name, max_ms, used[1], used[2], hours=True)


def conditions(
    projection: Projection,
    stored: Stored,
    now_ms: int,
    near_limit_percent: int = NEAR_LIMIT_PERCENT,
) -> list[Condition]:
    """The five conditions of a budget; `since_ms` moves only with the status."""
    budget = projection.budgets[stored.name]
    caps = list(gauges(projection, budget, now_ms))
    near = [c for c in caps if c.limit and c.taken * 100 >= c.limit * near_limit_percent]
    out = [c for c in caps if c.hours and c.taken >= c.limit]
    over = [c for c in caps if c.taken > c.limit]
    unused = list(_unused_entries(projection, budget))

    def condition(name: str, texts: list[str], bad: str, good: str) -> Condition:
        status = bool(texts) != (name == "Healthy")
        before = projection.conditions.get((stored.name, name))
        since_ms = now_ms if before is None or before.status != status else before.since_ms
        reason, message = bad if texts else good, "; ".join(texts)
        return Condition(name, status, reason, message, stored.generation, since_ms)

    def of_caps(name: str, about: list[Gauge], bad: str, good: str) -> Condition:
        return condition(name, [cap.text() for cap in about], bad, good)

    return [
        of_caps("Healthy", out or over, "CapExceeded" if over else "HoursUsedUp", "WithinCaps"),
        of_caps("NearLimit", near, "AboveThreshold", "BelowThreshold"),
        of_caps("Exhausted", out, "HoursUsedUp", "HoursLeft"),
        of_caps("Overcommitted", over, "CapExceeded", "WithinCaps"),
        condition("UnusedLendingEntry", unused, "NoSuchOwner", "AllEntriesMatch"),
    ]


def condition_entries(
    projection: Projection, now_ms: int, near_limit_percent: int
) -> list[NewEntry]:
    """Conditions that changed since they were last recorded."""
    made = []
    for stored in projection.of_kind("Budget"):
        for condition in conditions(projection, stored, now_ms, near_limit_percent):
            before = projection.conditions.get((stored.name, condition.type))
            new = (condition.status, condition.generation)
            if before is not None and (before.status, before.generation) == new:
                continue
            facts = msgspec.structs.asdict(condition)
            del facts["since_ms"]  # the time of the entry
            made.append(NewEntry(BudgetCondition(stored.name, **facts), now_ms))
    return made


def _unused_entries(projection: Projection, budget: Budget) -> Iterator[str]:
    """Lending entries that match no owner of a budget or a run: most often a typing error."""
    if not any(envelope.lending.to for envelope in budget.envelopes):
        return
    owners = {other.owner for other in projection.budgets.values() if other.name != budget.name}
    owners |= projection.run_owners.keys()
    owners.discard(budget.owner)
    for envelope in budget.envelopes:
        for entry in envelope.lending.to:
            matches = any(
                owner.startswith(entry[:-1]) if entry.endswith("*") else owner == entry
                for owner in owners
            )
            if not matches or not envelope.lending.allow:
                why = "matches no owner" if envelope.lending.allow else "is off: allow is false"
                yield f"{envelope.name}: {entry!r} {why}"
