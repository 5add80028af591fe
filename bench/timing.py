"""What every benchmark shares: interleaved timing, the machine in words, the results on disk.

Contestants take turns, so that a noisy neighbour disturbs all alike. CPU seconds of this process,
not seconds on the wall: waiting for a core that another process holds says nothing about a
contestant. All contestants run on one thread, so on an idle machine the two
are the same.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds, or a ratio: the median over the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one value per round."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def as_json(self) -> dict[str, float]:
        """Rounded to what a benchmark can know."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def interleave(
    contestants: Mapping[str, Callable[[], object]], *, repetitions: int, slice_s: float = 0.02
) -> dict[str, list[float]]:
    """CPU seconds per call of each contestant, one value per round, the order turning every round.

    A call shorter than `slice_s` is repeated inside the round until it fills that time. A first,
    unmeasured round warms up and finds out how often.
    """
    names = list(contestants)
    calls = {name: max(1, round(slice_s / _seconds(contestants[name], 1))) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repetitions):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(_seconds(contestants[name], calls[name]))
    return taken


def ratios(slow: Sequence[float], fast: Sequence[float]) -> Spread:
    """How many times faster, round by round: both sides of a quotient met the same neighbours."""
    return Spread.of([a / b for a, b in zip(slow, fast, strict=True)])


def _seconds(call: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return max((time.process_time() - began) / times, 1e-9)


def machine() -> dict[str, object]:
    """What a reader needs to know of the machine, and nothing that names it."""
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "clock": "CPU seconds of the process",
    }


def results_folder(*, quick: bool) -> Path:
    """Where results go: a rough run must not replace the published one."""
    folder = ROOT / ("out/bench" if quick else "bench/results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_results(
    name: str,
    report: Mapping[str, Any],
    *,
    quick: bool = False,
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Write NAME.json, and NAME.png where there is something to draw; say where."""
    folder = results_folder(quick=quick)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    if draw is not None:
        draw(dict(report), folder / f"{name}.png")
    print(f"written: {name}.json in {folder.relative_to(ROOT)}")
