"""What runs on the node: pods, their requests and their loads, per scenario.

The node has 1500m, of which the default reserve leaves 1350m to govern. A request is what a careful
user asks for, the mean of the pod's want; the CPU-bound batch asks for little and takes what is
left. Requests always fit, as a scheduler sees to it.
"""

from dataclasses import dataclass, field
from typing import Any

NODE_MILLICORES = 1500
CAPACITY_MILLICORES = 1350
SLO_S = 0.1
SERVICE_CPU_S = 0.0015
SERVICE_SIGMA = 0.6


@dataclass(frozen=True, slots=True)
class Load:
    """One process: its kind and its parameters (see `workloads`), and its mean want."""

    kind: str
    want_millicores: int
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchPod:
    """A pod with its request; the container "" is the pod's own cgroup."""

    name: str
    request_millicores: int
    containers: dict[str, Load]

    @property
    def want_millicores(self) -> int:
        """Mean want of all containers."""
        return sum(load.want_millicores for load in self.containers.values())

    def paths(self) -> dict[str, str]:
        """Container name to path below the root."""
        return {name: f"{self.name}/{name}" if name else self.name for name in self.containers}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A set of pods, and which arms are compared on it."""

    name: str
    title: str
    pods: tuple[BenchPod, ...]
    arms: tuple[str, ...]

    @property
    def need_ratio(self) -> float:
        """Total mean want over the governed capacity."""
        return sum(pod.want_millicores for pod in self.pods) / CAPACITY_MILLICORES


UNLIMITED = ("no-limits", "static-weights")
PEERS = ("static-p95", "static-2x", "vpa-24h", "vpa-10min", "mbcas", "captain", *UNLIMITED)
OURS = ("demand-capped", "nash", "market")
WEIGHTED = ("nash-weights", "nash-both")
"""Ours by guarantees instead of limits."""


def service(name: str, millicores: int, request: int | None = None) -> BenchPod:
    """Latency-bound: Poisson arrivals of requests that cost 1.5 ms on average."""
    rate = millicores / 1000 / SERVICE_CPU_S
    spec = {"rate": rate, "cpu_s": SERVICE_CPU_S, "sigma": SERVICE_SIGMA}
    return BenchPod(name, request or millicores, {"": Load("service", millicores, spec)})


def paced(name: str, shape: str, **profile: float) -> BenchPod:
    """A paced pod that requests its mean."""
    load = paced_load(shape, **profile)
    return BenchPod(name, load.want_millicores, {"": load})


def paced_load(shape: str, **profile: float) -> Load:
    from bench.cpu.profiles import Profile  # noqa: PLC0415 - keeps the workloads' imports light

    values = {"shape": shape, **profile}
    mean = Profile(**values).mean(60.0)  # type: ignore[arg-type]
    return Load("paced", round(mean * 1000), {"profile": values})


def batch(name: str, want: int, request: int, *, busy: bool) -> BenchPod:
    """CPU-bound when busy, else a chunk of 15 ms and a wait."""
    spec = {} if busy else {"chunk_s": 0.015, "wait_s": 0.015 * (1000 / want - 1)}
    return BenchPod(name, request, {"": Load("batch", want, spec)})


def mixed(name: str, title: str, scale: float, batch_pod: BenchPod) -> Scenario:
    app = paced_load("bursty", high=0.060 * scale, low=0.010, on_s=2.5, off_s=2.5)
    duo = {"app": app, "sidecar": paced_load("steady", high=0.020 * scale)}
    pods = (
        service("web", round(150 * scale)),
        paced("bursty", "bursty", high=0.165 * scale, low=0.012, on_s=3.0, off_s=4.0, phase_s=1.0),
        batch_pod,
        paced("spiky", "spikes", high=0.2 * scale, low=0.01, on_s=1.0, off_s=8.0, seed=7),
        paced("ramp", "ramp", high=0.110 * scale, low=0.040 * scale, on_s=20.0),
        BenchPod("duo", sum(load.want_millicores for load in duo.values()), duo),
    )
    return Scenario(name, title, pods, (*PEERS, *OURS, *WEIGHTED))


def scenarios() -> dict[str, Scenario]:
    several = tuple(
        paced(f"bursty-{n}", "bursty", high=high, low=0.02, on_s=on_s, off_s=off_s, phase_s=n)
        for n, (high, on_s, off_s) in enumerate([(0.22, 3, 5), (0.26, 8, 10), (0.30, 12, 15)])
    )
    spiky = paced("spiky", "spikes", high=0.2, low=0.01, on_s=1.0, off_s=8.0, seed=7)
    calm = (service("web", 250), batch("honest", 1000, 200, busy=True))
    spinning = BenchPod("adversary", 200, {"": Load("adversary", 2000, {"processes": 8})})
    idle = BenchPod("adversary", 200, {"": paced_load("steady", high=0.005)})
    contested = (*UNLIMITED, "static-2x", "mbcas", "demand-capped", "nash", *WEIGHTED)
    listed = [
        mixed("mixed-60", "mixed, 60 % need", 1.0, batch("batch", 100, 100, busy=False)),
        mixed("mixed-130", "mixed, 130 % need", 1.05, batch("batch", 1000, 150, busy=True)),
        Scenario(
            "bursty",
            "bursty mix",
            (service("web", 150), *several, spiky),
            ("static-2x", "vpa-10min", "mbcas", "captain", *UNLIMITED, *OURS, *WEIGHTED),
        ),
        Scenario("adversary", "with the adversary", (*calm, spinning), contested),
        Scenario(
            "adversary-absent", "without it", (*calm, idle), ("no-limits", "nash", "nash-both")
        ),
    ]
    return {scenario.name: scenario for scenario in listed}
