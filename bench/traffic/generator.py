"""The load of `bench.traffic`, as a process: `python -m bench.traffic.generator '{...}'`.

Poisson arrivals and lognormal work, all drawn before the start, sent by
`fairlead.sim.traffic.generator`. Runs pinned and in the real-time class, so that it is never late;
it says how late it was. A client may try again after a pause: the outcome is that of its last try,
the latency counts from its first. Writes [intended, worst lag, latency, outcome, backend, tries]
per request.
"""

import contextlib
import gc
import json
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cpu.generator import become_punctual, draw_work
from bench.cpu.workloads import die_with_parent, wait_for_go
from bench.traffic.backends import allow_many_files
from fairlead.sim.traffic.generator import Attempt, LoadGenerator, PlannedRequest, arrivals
from fairlead.sim.traffic.result import AnswerKind

OK, ERROR, REFUSED, TIMEOUT, BROKEN = "ok", "error", "refused", "timeout", "broken"
OUTCOMES = {
    AnswerKind.OK: OK,
    AnswerKind.ERROR: ERROR,
    AnswerKind.SOFT: REFUSED,
    AnswerKind.HARD: REFUSED,
    AnswerKind.TIMEOUT: TIMEOUT,
}
PAUSES_S = (0.05, 0.15)


@dataclass(frozen=True, slots=True)
class Request:
    """When it is due, how much work it is, whether it is to fail wherever it goes."""

    at_s: float
    work_s: float
    fails: bool
    pause_s: float = 0.0
    """Before it is tried again."""


def draw_requests(
    *,
    seed: int | str,
    rates: Sequence[Sequence[float]],
    mean_s: float,
    sigma: float,
    failing_share: float = 0.0,
) -> list[Request]:
    """All requests of a run; `rates` are (until when, per second), in order."""
    chance, pauses, drawn = random.Random(seed), random.Random(f"pauses/{seed}"), []
    for at_s in arrivals(chance.expovariate, rates):
        work_s = draw_work(chance, mean_s, sigma)
        fails = chance.random() < failing_share
        drawn.append(Request(at_s, work_s, fails, pauses.uniform(*PAUSES_S)))
    return drawn


class Generator:
    """The shared generator, with this benchmark's requests, retries and rows."""

    def __init__(
        self, target: tuple[str, int], requests: list[Request], patience_s: float, tries: int = 1
    ) -> None:
        self._requests, self._tries = requests, tries
        planned = [
            PlannedRequest(r.at_s, f"/work?ms={r.work_s * 1000:.3f}&fail={int(r.fails)}")
            for r in requests
        ]
        timeout_s = patience_s / tries
        self._load = LoadGenerator(target, planned, timeout_s=timeout_s, again=self._again)

    def _again(self, number: int, retry: int, kind: AnswerKind, _: float) -> float | None:
        again = kind is not AnswerKind.OK and retry + 1 < self._tries
        return self._requests[number].pause_s if again else None

    def run(self, start: float) -> None:
        """From the common start until every request is answered or given up."""
        self._load.run(start)

    @property
    def rows(self) -> list[list[Any]]:
        """One per request, by number."""
        attempts: dict[int, list[Attempt]] = {}
        for attempt in self._load.attempts:
            attempts.setdefault(attempt.number, []).append(attempt)
        return [row_of(self._requests[n].at_s, attempts[n]) for n in sorted(attempts)]


def row_of(intended_s: float, attempts: Sequence[Attempt]) -> list[Any]:
    """[intended, worst lag, latency, outcome, backend, tries] of a request."""
    last = attempts[-1]
    took_s = last.due_s + last.took_s - intended_s
    lag_s = max(attempt.lag_s for attempt in attempts)
    return [intended_s, lag_s, took_s, outcome_of(last), last.backend, len(attempts)]


def outcome_of(attempt: Attempt) -> str:
    """In this benchmark's words: an answer without a backend is an error, no answer is broken."""
    unknown = BROKEN if attempt.status is None else ERROR
    return OUTCOMES.get(attempt.kind, unknown)


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: dict[str, Any] = json.loads(sys.argv[1])
    requests = draw_requests(
        seed=spec["seed"],
        rates=spec["rates"],
        mean_s=spec["mean_s"],
        sigma=spec["sigma"],
        failing_share=spec["failing_share"],
    )
    allow_many_files()
    host, port = spec["target"]
    generator = Generator((host, port), requests, spec["patience_s"], spec["tries"])
    gc.disable()  # a collection is a pause; the run is short
    with contextlib.suppress(PermissionError):  # without the right to it: late, and discarded
        become_punctual(spec["cpu"])
    generator.run(wait_for_go())
    Path(spec["result"]).write_text(json.dumps(generator.rows))


if __name__ == "__main__":
    main()
