"""An agent that dies under overload does not take the service with it, on any dataplane."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fairlead.host.process import free_port

GOODPUT, RECOVERED_S = 0.9, 20.0


def drill(
    plane: dict[str, str], target: tuple[str, int], inside: Path | None = None
) -> dict[str, Any]:
    """The drill as a process, in a cgroup if need be."""

    def enter() -> None:
        if inside is not None:
            (inside / "cgroup.procs").write_text(str(os.getpid()))

    spec = json.dumps({"plane": plane, "target": target})
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.death_drill", spec],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        preexec_fn=enter,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judge(found: dict[str, Any]) -> None:
    """Twice the capacity, kill -9: 30 s later goodput is at least nine tenths of that of a proxy
    whose limits were set by hand, in the same run; the agent comes back, and so does the service.
    """
    ours, peer = found["ours"], found["peer"]
    assert ours["alone_per_s"] >= GOODPUT * peer["alone_per_s"], found
    assert ours["recovered_after_s"] is not None, found
    assert ours["recovered_after_s"] <= RECOVERED_S, found


@pytest.mark.parametrize(
    "plane",
    [
        pytest.param("haproxy", marks=pytest.mark.component("haproxy")),
        pytest.param(
            "envoy", marks=[pytest.mark.component("envoy"), pytest.mark.component("haproxy")]
        ),
    ],
)
def test_a_proxy_keeps_its_bound_when_the_agent_is_killed(plane: str) -> None:
    """The proxy's own rules carry it."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as made:
        judge(drill({"kind": plane, "folder": f"{made}/plane"}, ("127.0.0.1", free_port())))


@pytest.mark.component("ebpf")
@pytest.mark.component("haproxy")
def test_the_kernel_keeps_its_bound_when_the_agent_is_killed() -> None:
    """The kernel's maps carry it."""
    from tests.dataplane.ebpf.places import own_bpffs, own_cgroup  # noqa: PLC0415 - component

    with own_bpffs() as bpffs, own_cgroup() as cgroup:
        plane = {"kind": "ebpf", "pins": str(bpffs / "fairlead"), "cgroup": str(cgroup)}
        judge(drill(plane, ("127.99.0.1", 80), cgroup))
