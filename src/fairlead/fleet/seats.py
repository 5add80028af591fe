"""A table of pods at the table: need, bounds and wants, as `core.cpu.need` and `core.cpu.market`
compute them, with the same doubles in the same order.
"""

from dataclasses import dataclass, fields

import numpy as np

from fairlead.core.cpu.need import USAGE_ROOM, USAGE_SUSPICIOUS
from fairlead.core.reasons import CpuReason
from fairlead.fleet.columns import REASON_BIT, Bits, Bools, Floats, Ints
from fairlead.fleet.table import Table


@dataclass(slots=True, eq=False)
class Seats:
    """The pods of a table. Padding has all sizes zero: it owns nothing and wants nothing."""

    live: Bools
    floor: Ints
    top: Ints
    need: Ints
    low: Ints
    high: Ints
    want: Ints
    weight: Floats
    demand: Floats
    reasons: Bits

    def rows(self, mask: Bools) -> "Seats":
        """Some of the nodes."""
        if mask.all():
            return self
        return Seats(**{item.name: getattr(self, item.name)[mask] for item in fields(self)})

    def relax(self, mask: Bools, low: Ints) -> None:
        """Put lowered lower bounds in force."""
        self.low[mask] = low
        self.want[mask] = np.minimum(np.maximum(self.need[mask], low), self.high[mask])


def seat(table: Table) -> Seats:
    """Everybody's need inside its bounds."""
    fleet, live = table.fleet, table.live
    top = table.gather(fleet.max_millicores) * live
    lowest = table.gather(fleet.min_millicores) * live
    floor = np.minimum(lowest, top)
    demand = table.gather(fleet.demand)
    value, reasons = _value(table, floor=floor, top=top, demand=demand)
    reasons |= (lowest > top) * np.uint8(REASON_BIT[CpuReason.MIN_ABOVE_MAX])
    need = np.minimum(np.maximum(value, floor), top)
    upper, lower = table.gather(fleet.upper_millicores), table.gather(fleet.lower_millicores)
    # An unknown lower bound is -1 and so the floor; an unknown upper bound is the top.
    high = np.where(upper < 0, top, np.minimum(np.maximum(upper, floor), top))
    low = np.minimum(np.maximum(lower, floor), high)
    want = np.minimum(np.maximum(need, low), high)
    weight = table.gather(fleet.weight) * live
    return Seats(live, floor, top, need, low, high, want, weight, demand, reasons)


def _value(table: Table, *, floor: Ints, top: Ints, demand: Floats) -> tuple[Ints, Bits]:
    """The need before it is clamped, and the one reason where it comes from."""
    fleet = table.fleet
    value = _driven(table, floor=floor, top=top, demand=demand)
    reasons = np.full(table.shape, REASON_BIT[CpuReason.DEMAND_DRIVEN], dtype=np.uint8)
    usage, known = _usage(table)
    quiet = (demand == 0) & known & (usage > USAGE_SUSPICIOUS * floor)
    lost = ~table.gather(fleet.signal_ok)
    current = table.gather(fleet.current_millicores)
    by_usage = (usage * USAGE_ROOM).astype(np.int64)
    _replace(value, reasons, quiet & ~lost, by_usage, CpuReason.USAGE_FALLBACK)
    _replace(value, reasons, lost & known, by_usage, CpuReason.SIGNAL_MISSING_USAGE)
    held = lost & ~known & (current >= 0)
    _replace(value, reasons, held, current, CpuReason.SIGNAL_MISSING_HOLD)
    blind = lost & ~known & (current < 0)
    _replace(value, reasons, blind, floor, CpuReason.SIGNAL_MISSING_MIN)
    return value, reasons


def _usage(table: Table) -> tuple[Ints, Bools]:
    usage = table.gather(table.fleet.usage_millicores)
    return usage, usage >= 0


def _driven(table: Table, *, floor: Ints, top: Ints, demand: Floats) -> Ints:
    """The need that follows demand. Casting to int64 truncates towards zero, as `int` does."""
    base, per_demand, per_miss, cap = table.fleet.headroom[table.nodes].T[:, :, None]
    misses = table.gather(table.fleet.headroom_misses)
    raw = floor + ((top - floor) * demand).astype(np.int64)
    factor = np.minimum(cap, base + per_demand * demand + per_miss * misses)
    need: Ints = raw + (raw * factor).astype(np.int64)
    return need


def _replace(value: Ints, reasons: Bits, mask: Bools, by: Ints, reason: CpuReason) -> None:
    """Overwrite the need and its reason where `mask` says so (mostly nowhere)."""
    if mask.any():
        value[mask] = by[mask]
        reasons[mask] = REASON_BIT[reason]
