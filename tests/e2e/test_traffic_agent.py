"""The traffic agent on real planes: connections move, a killed agent is not missed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.process import free_port
from tests.dataplane.backends import Backends
from tests.dataplane.clients import ThreadLoad, request
from tests.e2e.traffic_agents import TrafficProcess

PLANES = [
    pytest.param("haproxy", marks=pytest.mark.component("haproxy")),
    pytest.param("envoy", marks=pytest.mark.component("envoy")),
]
SCENARIO = """
name: e2e
duration_s: 20
backends:
  - {name: a, latency_ms: 40, concurrency: 16}
  - {name: b, latency_ms: 40, concurrency: 16}
  - {name: c, latency_ms: 40, concurrency: 16}
load: {per_s: 30, slo_ms: 1000, timeout_ms: 5000}
events:
  - {at_s: 3, backend: c, latency_factor: 10, title: c turns slow}
  - {at_s: 14, agent_dead_s: 2}
limits: {mode_changes_per_minute: 6, isolations_per_minute: 6}
expect:
  - {what: share, backend: c, most: 0.15, from_s: 12, to_s: 14}
  - {what: errors, most: 0.02}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's: the path of a socket has 107 bytes and no more.
    with tempfile.TemporaryDirectory(prefix="fairlead-") as made:
        yield Path(made)


@pytest.fixture
def backends() -> Iterator[Backends]:
    made = Backends()
    yield made
    made.close()


@pytest.mark.component("haproxy")
def test_a_brown_out_leaves_admission_open(folder: Path, backends: Backends) -> None:
    """All backends turn slow far beyond the reference, and recover: what may be inside is bounded,
    so admission stays open, and nothing is rejected afterwards."""
    names = ("a", "b")
    places = [backends.start(name) for name in names]
    port = free_port()
    agent = TrafficProcess(folder, "haproxy", port, places)
    agent.config["groups"][0]["config"] = {"l_ref_ms": 20.0}
    agent.stop()
    agent.write()
    agent.start()
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.01)

    def slower_than(least_ms: float) -> bool:
        return all((row["p95_ms"] or 0.0) > least_ms for row in agent.group()["backends"])

    try:
        with load.running(4):
            agent.until("bounded", lambda: agent.group()["inside_max"] is not None)
            for name in names:
                backends.behaviour[name].delay_s = 0.2
            agent.until("slow", lambda: slower_than(150.0))
            load.wait(100)
            assert agent.group()["conductance"] < 0.3
            for name in names:
                backends.behaviour[name].delay_s = 0.0
            agent.until("well", lambda: not slower_than(150.0))
            before = len(load.sent)
            load.wait(200)
        words = {sent.word for sent in load.sent[before:]}
        assert words <= set(names)
        assert agent.events("admission") == []
        assert agent.group()["mode"] == "normal"
    finally:
        agent.close()


@pytest.mark.parametrize("plane", PLANES)
def test_connections_move_away_from_a_slow_backend(
    plane: str, folder: Path, backends: Backends
) -> None:
    """Two backends, one turns slow by 10: it gets next to nothing; well again, it is back."""
    places = [backends.start(name) for name in ("a", "b")]
    for name in ("a", "b"):
        backends.behaviour[name].delay_s = 0.02
    port = free_port()
    agent = TrafficProcess(folder, plane, port, places, metrics_port=0)
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
    try:
        agent.until("even", lambda: agent.slots() == {"a": 128, "b": 128})
        with load.running(4):
            load.wait(100)
            backends.behaviour["b"].delay_s = 0.2
            agent.until("moved", lambda: agent.slots()["b"] <= 256 * 0.05)
            before = len(load.sent)
            load.wait(200)
            late = [sent.word for sent in load.sent[before:]]
            assert late.count("b") <= len(late) * 0.15
            backends.behaviour["b"].delay_s = 0.02
            agent.until("back", lambda: agent.slots()["b"] >= 256 * 0.1)
        words = {sent.word for sent in load.sent}
        assert words == {"a", "b"}, "nobody saw a failure or a refusal"
        assert agent.stop() == 0
        done = agent.fairlead("replay", str(agent.state / "record"))
        assert done.returncode == 0, done.stderr
        assert " 0 different, 0 unknown" in done.stdout
    finally:
        agent.close()


@pytest.mark.parametrize("plane", PLANES)
def test_kill_9_in_normal_and_in_hard(plane: str, folder: Path, backends: Backends) -> None:
    """Killed in normal nobody notices; killed in hard the door opens to its budget by itself."""
    places = [backends.start(name) for name in ("a", "b")]
    port = free_port()
    agent = TrafficProcess(folder, plane, port, places, config={"bucket_rate": 50})
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
    try:
        agent.until("even", lambda: agent.slots() == {"a": 128, "b": 128})
        with load.running(2):
            load.wait(20)
            agent.kill()
            load.wait(100)
            agent.start()
            agent.until("back", lambda: agent.group()["mode"] == "normal")
            load.wait(20)
            assert {sent.word for sent in load.sent} == {"a", "b"}
        for name in ("a", "b"):
            done = agent.fairlead("traffic", "isolate", "web", name)
            assert done.returncode == 0, done.stderr
        agent.until("shut", lambda: agent.group()["mode"] == "hard")
        assert "all_isolated" in agent.group()["reasons"]
        agent.until("refused", lambda: request("127.0.0.1", port) == "hard")
        agent.kill()
        open_again(port)  # 15 s without a heartbeat, by the plane's own clock
        agent.start()
        agent.until("shut again", lambda: agent.group()["mode"] == "hard")
        told = ["fallback", "normal"]
        agent.until("told", lambda: [e["after"] for e in agent.events("failsafe")][-2:] == told)
        status = agent.fairlead("traffic", "status", "-o", "json")
        assert status.returncode == 0
        assert agent.fairlead("traffic", "restore", "web", "a").returncode == 0
        agent.until("open", lambda: agent.slots()["a"] == 256)
    finally:
        agent.close()


def open_again(port: int) -> None:
    """Ask until several in a row are served: a drip of hard lets one through now and then."""
    served: list[str] = []
    deadline = time.monotonic() + 120
    while not (len(served) >= 5 and all(word in ("a", "b") for word in served[-5:])):
        assert time.monotonic() < deadline, f"the door stays closed: {served[-10:]}"
        served.append(request("127.0.0.1", port))
        time.sleep(0.1)  # slower than the budget of soft, faster than the drip of hard


@pytest.mark.component("haproxy")
def test_orders_reach_a_running_agent_and_reloads_too(folder: Path, backends: Backends) -> None:
    """Drain, restore, a new backend by SIGHUP, a bad file that changes nothing."""
    places = [backends.start(name) for name in ("a", "b", "c")]
    port = free_port()
    agent = TrafficProcess(folder, "haproxy", port, places[:2])
    try:
        agent.until("even", lambda: agent.slots() == {"a": 128, "b": 128})
        done = agent.fairlead("traffic", "drain", "web", "b")
        assert (done.returncode, done.stdout) == (0, "web/b is drained\n")
        assert agent.slots() == {"a": 256, "b": 0}
        assert {request("127.0.0.1", port) for _ in range(8)} == {"a"}
        assert agent.fairlead("traffic", "drain", "web", "x").returncode == 2
        assert "draining" in agent.fairlead("traffic", "status").stdout
        assert (
            "draining: 0 connections left"
            in agent.fairlead("traffic", "explain", "web", "b").stdout
        )
        assert agent.fairlead("traffic", "restore", "web", "b").stdout == "web/b is restored\n"
        agent.until("back", lambda: agent.slots()["b"] > 0)
        good = agent.config["groups"][0]["backends"]
        agent.config["groups"][0]["backends"] = [
            *good,
            {"id": "c", "host": places[2].host, "port": places[2].port},
        ]
        agent.write()
        agent.process.send_signal(signal.SIGHUP)
        agent.until("three", lambda: set(agent.slots()) == {"a", "b", "c"})
        agent.file.write_text("plane: [")
        agent.process.send_signal(signal.SIGHUP)
        agent.until("said", lambda: agent.events("notice"))
        assert "not reloaded" in agent.events("notice")[-1]["reason"]
        agent.write()
    finally:
        agent.close()


@pytest.mark.component("ebpf")
def test_the_harness_on_ebpf_in_real_time(folder: Path) -> None:
    """Connections move in the kernel, go on while the agent is dead, and the record replays."""
    from tests.dataplane.ebpf.places import own_bpffs, own_cgroup  # noqa: PLC0415 - component

    with own_bpffs() as bpffs, own_cgroup() as cgroup:
        done = harness(
            folder,
            "ebpf",
            "--pins",
            str(bpffs / "fairlead"),
            "--cgroup",
            str(cgroup),
            inside=cgroup,
        )
        assert not any((bpffs / "fairlead").glob("*")), "the plane is removed"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept    every tick replays byte for byte" in done.stdout


@pytest.mark.component("haproxy")
def test_the_harness_on_haproxy_in_real_time(folder: Path) -> None:
    """The same on a proxy."""
    done = harness(folder, "haproxy")
    assert done.returncode == 0, done.stdout + done.stderr


def harness(
    folder: Path, plane: str, *options: str, inside: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Play the scenario, as a process that may have to be in a cgroup."""
    (folder / "e2e.yaml").write_text(SCENARIO)

    def enter() -> None:
        if inside is not None:
            (inside / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(
        [
            sys.executable,
            "-m",
            "fairlead",
            "traffic",
            "harness",
            str(folder / "e2e.yaml"),
            "--plane",
            plane,
            "--real-time",
            "--no-plots",
            "--out",
            str(folder / "out"),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        preexec_fn=enter,
    )
