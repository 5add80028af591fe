"""The PSI stall gate (section 6): when a busy node is a sick node.

Full CPUs are fine until tasks wait for them. A node stalls in a sample when any kind of stall is
strictly above its threshold, and for good when at least p of the last m distinct samples did,
the current one included. A sample that is absent counts as not stalled.

The averages that the kernel prints move only every 2 s, so sensors difference its counters of
stalled microseconds over the last 10 s: `observe_totals`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.core.traffic.config import Config, Theta
from fairlead.core.traffic.model import Psi
from fairlead.core.traffic.state import NodeMemory

WINDOW_US = 10_000_000
# 7 of 100 samples are 0.07 of them, although 100*0.07 is a little above 7 in binary: by less than
# this, and this is less than the smallest p, so that without a stalled sample nothing is sustained.
ROUNDING = 1e-12


def stalls(psi: Psi | None, theta: Theta) -> bool:
    """Is any stall above its threshold? `io some` never is: waiting for a disk is no sickness."""
    if psi is None:
        return False
    return (
        _above(psi.cpu_some, theta.cpu_some)
        or _above(psi.mem_some, theta.mem_some)
        or _above(psi.mem_full, theta.mem_full)
        or _above(psi.io_full, theta.io_full)
    )


def _above(value: float | None, threshold: float) -> bool:
    return value is not None and value > threshold


def stall_score(psi: Psi | None, theta: Theta) -> float | None:
    """How far above its threshold the worst stall is: 1 at the threshold; None: unknown."""
    if psi is None:
        return None
    pairs = (
        (psi.cpu_some, theta.cpu_some),
        (psi.mem_some, theta.mem_some),
        (psi.mem_full, theta.mem_full),
        (psi.io_full, theta.io_full),
    )
    scores = [value / max(limit, 1e-9) for value, limit in pairs if value is not None]
    return max(scores, default=None)


def recent_stalls(
    memory: NodeMemory, *, stalled_now: bool, sample: int | None, samples: int, config: Config
) -> tuple[int, ...]:
    """The ordinals of stalled samples among the last m. `sample` is None when none was taken."""
    kept = tuple(ordinal for ordinal in memory.stalled if ordinal > samples - config.stall_m)
    return (*kept, sample) if stalled_now and sample is not None else kept


def sustained(stalled: Sequence[int], config: Config) -> bool:
    """At least p of the last m samples."""
    return len(stalled) + ROUNDING >= config.stall_m * config.stall_p


@dataclass(frozen=True, slots=True)
class StallTotals:
    """The kernel's counters of stalled microseconds at one moment, by kind of stall."""

    time_us: int
    stalled_us: Mapping[str, int]


def observe_totals(
    window: Sequence[StallTotals], sample: StallTotals
) -> tuple[tuple[StallTotals, ...], Psi | None]:
    """Add a reading of the counters; shares of the last 10 s, None with less than two readings.

    A counter or a clock that goes back is another boot: the window starts anew.
    """
    if window and (window[-1].time_us >= sample.time_us or _fell(window[-1], sample)):
        return (sample,), None
    reach = sample.time_us - WINDOW_US
    # The newest reading that is old enough, so that the window covers 10 s and not less.
    old = [index for index, each in enumerate(window) if each.time_us <= reach]
    kept = (*window[old[-1] if old else 0 :], sample)
    if len(kept) == 1:
        return kept, None
    first, elapsed_us = kept[0], sample.time_us - kept[0].time_us
    shares = {
        kind: min((sample.stalled_us[kind] - before) / elapsed_us, 1.0)
        for kind, before in first.stalled_us.items()
    }
    return kept, Psi(**shares)


def _fell(before: StallTotals, after: StallTotals) -> bool:
    return any(after.stalled_us.get(kind, -1) < total for kind, total in before.stalled_us.items())
