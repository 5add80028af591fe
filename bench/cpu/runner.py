"""One run of one arm on one scenario: start everything, apply the arm, watch from outside.

The watcher reads every container ten times a second, independently of what writes limits. The
peers' rules run here, on the same samples; our arms are the real agent as a subprocess.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cpu import peers
from bench.cpu.processes import (
    Running,
    cpu_seconds,
    machine_cpu_seconds,
    now,
    resident_bytes,
    start_agent,
    start_pods,
)
from bench.cpu.scenarios import CAPACITY_MILLICORES, Scenario
from bench.cpu.tree import BenchTree
from fairlead.core.cpu import Counters
from fairlead.node.cgroups import ContainerFiles

TICK_S = 0.1
START_IN_S = 0.3


class Timing(NamedTuple):
    """How long a run takes and how much of it counts."""

    warmup_s: float
    measure_s: float

    @property
    def until_s(self) -> float:
        return self.warmup_s + self.measure_s


class Point(NamedTuple):
    """One container at one moment."""

    limit_millicores: int | None
    counters: Counters
    guarantee_millicores: int = 0
    """What its weight stands for."""


@dataclass(slots=True)
class Costs:
    """What deciding cost over the measured window."""

    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(slots=True)
class Run:
    """Everything seen of one run. `points[i]` belongs to `times[i]`."""

    scenario: Scenario
    arm: str
    timing: Timing
    times: list[float] = field(default_factory=list)
    points: list[dict[str, Point]] = field(default_factory=list)
    requests: list[tuple[float, float, float, bool]] = field(default_factory=list)
    work: dict[str, int] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    outside_cores: float = 0.0
    stolen_cores: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """Our agent with other settings, to try out: a policy, a configuration, the kernel's burst."""

    policy: str
    config: dict[str, Any] = field(default_factory=dict)
    burst: float = 0.0


class Watcher:
    """Reads all containers of a scenario through kept descriptors."""

    def __init__(self, tree: BenchTree, scenario: Scenario) -> None:
        self._scenario, self._tree = scenario, tree
        self._files: dict[str, ContainerFiles] = {}
        for pod in scenario.pods:
            for path in {pod.name, *pod.paths().values()}:
                self._files[path] = tree.files.container(f"{scenario.name}/{path}")
        self._containers = [path for pod in scenario.pods for path in pod.paths().values()]

    def close(self) -> None:
        for files in self._files.values():
            files.close()

    def limits(self) -> dict[str, int | None]:
        """All limits at one moment: read again until two readings agree.

        A writer that lowers one limit and then raises another between our reads would otherwise
        look as if it had overcommitted.
        """
        seen = self._limits()
        while (again := self._limits()) != seen:
            seen = again
        return seen

    def _limits(self) -> dict[str, int | None]:
        return {path: self._quota(path) for path in self._containers}

    def _quota(self, path: str) -> int | None:
        quota = self._files[path].quota()
        if quota is None:
            raise RuntimeError(f"{path}: its limit cannot be read")
        return quota.millicores

    def counters(self, path: str) -> Counters:
        counters = self._files[path].counters()
        if counters is None:
            raise RuntimeError(f"{path}: its counters cannot be read")
        return counters

    def points(self) -> dict[str, Point]:
        limits = self.limits()
        return {
            path: Point(limits[path], self.counters(path), self._guarantee(path))
            for path in self._containers
        }

    def _guarantee(self, path: str) -> int:
        """Of the pod: among the containers of one, weights say nothing about other pods."""
        pod, _, container = path.partition("/")
        weight = self._tree.files.weight(f"{self._scenario.name}/{pod}") or 0
        others = sum(name.startswith(f"{pod}/") for name in self._containers)
        return self._tree.files.weights.millicores(weight) // (others if container else 1)

    def pods(self, points: Mapping[str, Point]) -> list[peers.PodSeen]:
        seen = []
        for pod in self._scenario.pods:
            containers = tuple(
                peers.ContainerSeen(path, points[path].counters, points[path].limit_millicores)
                for path in pod.paths().values()
            )
            single = list(pod.containers) == [""]
            own = containers[0].counters if single else self.counters(pod.name)
            seen.append(peers.PodSeen(pod.name, pod.request_millicores, own, containers))
        return seen


def run_arm(
    tree: BenchTree,
    scenario: Scenario,
    arm: str,
    *,
    rule: peers.Rule | None,
    seed: int,
    timing: Timing,
    variant: Variant | None = None,
) -> Run:
    """Run one arm; `rule` None for our agent and for no limits at all."""
    tree.unlimit()
    tree.share(scenario.name, by_request=arm != "no-limits")
    run = Run(scenario, arm, timing)
    watcher = Watcher(tree, scenario)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as place:
        directory = Path(place)
        try:
            with start_pods(
                tree, scenario, directory, seed=seed, until_s=timing.until_s
            ) as running:
                if variant is not None:
                    running.agent = start_agent(
                        tree, scenario, directory, variant.policy, variant.config
                    )
                    if variant.burst:
                        rule = Burst(tree, scenario.name, variant.burst)
                _watch(run, running, watcher, tree, rule)
        finally:
            watcher.close()
        if running.generator_result is not None and running.generator_result.exists():
            run.requests = [tuple(row) for row in json.loads(running.generator_result.read_text())]
        if running.agent is not None:
            run.log = (directory / "agent.log").read_text()
            _require_alive(running, run)
    return run


class Burst:
    """For trying out: lets every container save up a share of its quota, whatever it is."""

    interval_s = TICK_S

    def __init__(self, tree: BenchTree, scenario: str, share: float) -> None:
        self._tree, self._scenario, self._share = tree, scenario, share
        self._known: dict[str, int] = {}

    def decide(self, now_s: float, pods: Sequence[peers.PodSeen]) -> dict[str, int]:
        """Follows the limits; decides none."""
        for container in (c for pod in pods for c in pod.containers):
            limit = container.limit_millicores or 0
            if self._known.get(container.path) != limit:
                self._known[container.path] = limit
                self._tree.burst(f"{self._scenario}/{container.path}", int(limit * self._share))
        return {}


def _watch(
    run: Run, running: Running, watcher: Watcher, tree: BenchTree, rule: peers.Rule | None
) -> None:
    """The loop: ten looks a second, the rule's decisions in between."""
    start = now() + START_IN_S
    running.go(start)
    begun: dict[str, float] = {}
    due_s, tick = 0.0, 0
    while (at_s := now() - start) < run.timing.until_s:
        if at_s >= run.timing.warmup_s and not begun:
            begun = _meters(running)
        before = time.thread_time()
        points = watcher.points()
        run.times.append(at_s)
        run.points.append(points)
        if rule is not None and at_s >= due_s - TICK_S / 2:
            due_s += rule.interval_s
            for path, millicores in rule.decide(at_s, watcher.pods(points)).items():
                tree.limit(f"{run.scenario.name}/{path}", millicores)
            if begun:
                run.costs.cpu_s += time.thread_time() - before
        tick += 1
        time.sleep(max(0.0, start + tick * TICK_S - now()))
    _read_meters(run, running, begun)


def _meters(running: Running) -> dict[str, float]:
    """All that is counted from the end of the warm-up to the end of the run."""
    busy, stolen = machine_cpu_seconds()
    meters = {"at": now(), "busy": busy, "stolen": stolen, "self": time.process_time()}
    meters["agent"] = cpu_seconds(running.agent.pid) if running.agent else 0.0
    meters["generator"] = cpu_seconds(running.generator.pid) if running.generator else 0.0
    for path, file in running.counters.items():
        meters[f"work {path}"] = int.from_bytes(file.read_bytes(), "little")
    return meters


def _read_meters(run: Run, running: Running, begun: dict[str, float]) -> None:
    ended = _meters(running)
    grown = {name: value - begun[name] for name, value in ended.items()}
    if running.agent is not None:
        run.costs = Costs(grown["agent"], resident_bytes(running.agent.pid))
    for name, value in grown.items():
        if name.startswith("work "):
            run.work[name.removeprefix(f"work {run.scenario.name}/")] = int(value)
    first = next(i for i, at_s in enumerate(run.times) if at_s >= run.timing.warmup_s)
    governed = sum(
        point.counters.usage_us - run.points[first][path].counters.usage_us
        for path, point in run.points[-1].items()
    )
    ours = governed / 1e6 + grown["agent"] + grown["generator"] + grown["self"]
    run.outside_cores = max(0.0, grown["busy"] - ours) / grown["at"]
    run.stolen_cores = grown["stolen"] / grown["at"]


def _require_alive(running: Running, run: Run) -> None:
    assert running.agent is not None
    if running.agent.returncode not in (0, -15):
        raise RuntimeError(f"the agent ended with {running.agent.returncode}:\n{run.log[-2000:]}")


def make_rule(
    arm: str, scenario: Scenario, usage: Mapping[str, Sequence[float]]
) -> peers.Rule | None:
    """An arm's rule; `usage` is what profiling saw, per container and second."""
    rules: dict[str, Callable[[], peers.Rule]] = {
        "static-p95": lambda: peers.Static(_p95(usage)),
        "static-2x": lambda: peers.Static(static_double(scenario)),
        "vpa-24h": lambda: peers.VpaLike(24 * 3600, usage),
        "vpa-10min": lambda: peers.VpaLike(600, usage),
        "mbcas": lambda: peers.Mbcas(CAPACITY_MILLICORES),
        "captain": lambda: peers.Captain(CAPACITY_MILLICORES),
    }
    return rules[arm]() if arm in rules else None


def _p95(usage: Mapping[str, Sequence[float]]) -> dict[str, int]:
    return {path: max(10, int(peers.percentile(seen, 0.95))) for path, seen in usage.items()}


def static_double(scenario: Scenario) -> dict[str, int]:
    """Twice the request; a pod of several containers splits it by their wants."""
    limits = {}
    for pod in scenario.pods:
        for name, path in pod.paths().items():
            share = pod.containers[name].want_millicores / pod.want_millicores
            limits[path] = max(10, round(2 * pod.request_millicores * share))
    return limits


def usage_per_second(run: Run) -> dict[str, list[float]]:
    """Millicores used in each measured second, per container."""
    seconds: dict[str, list[float]] = {path: [] for path in run.points[0]}
    last: dict[str, Counters] = {}
    next_s = run.timing.warmup_s
    for at_s, points in zip(run.times, run.points, strict=True):
        if at_s < next_s:
            continue
        next_s += 1.0
        for path, point in points.items():
            if path in last:
                seconds[path].append(peers.used(last[path], point.counters))
            last[path] = point.counters
    return seconds
