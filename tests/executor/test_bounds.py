"""A run opens the GPUs that it leases and no others, and is held to its CPUs and memory: by real
cgroups and device nodes, of both versions."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.executor import bounds, confine, device_filter
from fairlead.executor.local import LocalExecutor
from tests.executor.worlds import open_folder, shell, until

KINDS: tuple[confine.Kind, ...] = ("cgroup2", "freezer", "tree")
MINORS = {"host#0": 3, "host#1": 4, "host#2": 5}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


@pytest.fixture(params=KINDS)
def executor(request: pytest.FixtureRequest) -> Iterator[LocalExecutor]:
    with open_folder() as folder:
        made = LocalExecutor(folder / "executor", kinds=(request.param,), minors=MINORS)
        if made.kind != request.param or "devices" not in made.controls.places:
            pytest.skip(f"no device filter with {request.param} here")
        try:
            yield made
        finally:
            for name in ("lab/a", "lab/b"):
                made.stop(name, 0, decision="p9")
            until(lambda: not made.running(), "everything ended")
            made.acknowledge(made.poll())


@pytest.fixture
def nodes() -> Iterator[Path]:
    """Device nodes as the driver makes them. There is no driver here: one that may be opened says
    that there is no such device, one that may not says that it is not permitted."""
    with open_folder() as folder:
        for minor in (3, 4, 5, 255):
            path = folder / f"nvidia{minor}"
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(device_filter.MAJOR, minor))
            path.chmod(0o666)
        try:
            os.close(os.open(folder / "nvidia3", os.O_RDONLY))
        except OSError as error:
            if error.strerror != "No such device or address":
                pytest.skip(f"device nodes do not work here: {error.strerror}")
        yield folder


OPEN = "for n in 3 4 5 255; do ( : < %s/nvidia$n ) 2>&1 | grep -q permitted && echo no $n; done"


def output(executor: LocalExecutor, run: str) -> str:
    return "".join(part.read_text() for part in executor.log_parts(run))


def test_a_run_opens_its_own_devices_and_no_others(executor: LocalExecutor, nodes: Path) -> None:
    """Control nodes and what is no GPU stay open to all."""
    tries = f"{OPEN % nodes}; : < /dev/null && : > /dev/zero && echo others"
    executor.start(shell("a", tries, devices=("host#1",)))
    executor.start(shell("b", tries, devices=("virtual#0",)))
    until(lambda: len(executor.poll()) == 2, "both ended")
    assert output(executor, "lab/a").split("\n")[:-1] == ["no 3", "no 5", "others"]
    assert output(executor, "lab/b").split("\n")[:-1] == ["no 3", "no 4", "no 5", "others"]


def test_a_later_run_changes_nothing_for_an_earlier_one(
    executor: LocalExecutor, nodes: Path
) -> None:
    """Each has a cgroup of its own, whatever confines its processes."""
    nodes.chmod(0o777)
    tries = f"until [ -e {nodes}/go ]; do sleep 0.01; done; {OPEN % nodes}"
    executor.start(shell("a", tries, devices=("host#1",)))
    until(executor.running, "the first began")
    executor.start(shell("b", f"touch {nodes}/go; sleep 1", devices=("host#2",)))
    until(lambda: len(executor.poll()) == 2, "both ended")
    assert output(executor, "lab/a").split("\n")[:-1] == ["no 3", "no 5"]


def test_the_filter_follows_the_width(executor: LocalExecutor, nodes: Path) -> None:
    """What it gets it may open at once, what it gave up no more after its grace."""
    loop = f"while :; do ( {OPEN % nodes} ) > {nodes}/now; mv {nodes}/now {nodes}/seen; done"
    nodes.chmod(0o777)
    executor.start(shell("a", loop, devices=("host#0", "host#1")))

    def closed() -> list[str]:
        seen = nodes / "seen"
        return seen.read_text().split("\n")[:-1] if seen.exists() else []

    until(lambda: closed() == ["no 5"], "its own two are open")
    executor.resize("lab/a", ("host#1", "host#2"), grace_ms=0, decision="p1")
    until(lambda: closed() == ["no 3"], "another one instead")


def test_cpus_and_memory_are_held(executor: LocalExecutor) -> None:
    if executor.controls.missing:
        pytest.skip(executor.controls.words())
    eats = "head -c 200000000 /dev/zero | tail -c 200000000 | wc -c"
    executor.start(shell("a", f"{eats}; echo survived", memory_bytes=32 * 2**20))
    place = executor.controls.places["cpu"]
    name = "cpu.max" if place == bounds.V2 else "cpu.cfs_quota_us"
    root = "/sys/fs/cgroup"
    path = f"{root}$(grep -E '^0::' /proc/self/cgroup | cut -d: -f3)"
    if place != bounds.V2:
        path = f"{place}$(grep -E ':([^:]*,)?cpu(,[^:]*)?:' /proc/self/cgroup | cut -d: -f3)"
    executor.start(shell("b", f"cat {path}/{name}", cpu_millicores=1500))
    until(lambda: len(executor.poll()) == 2, "both ended")
    assert "200000000" not in output(executor, "lab/a")
    assert output(executor, "lab/b").split()[0] == "150000"


def test_a_fork_bomb_ends_at_the_bound_of_its_run(executor: LocalExecutor) -> None:
    """A run has so many processes and threads as it asked for; one that did not ask has a bound,
    too, and the machine has processes left for others."""
    if "pids" not in executor.controls.places:
        pytest.skip(executor.controls.words())
    forks = "i=0; while [ $i -lt 500 ]; do sleep 60 & i=$((i+1)); done; echo made $i"
    executor.start(shell("a", forks, pids=64))
    place = executor.controls.places["pids"]
    path = "/sys/fs/cgroup$(grep -E '^0::' /proc/self/cgroup | cut -d: -f3)"
    if place != bounds.V2:
        path = f"{place}$(grep -E ':([^:]*,)?pids(,[^:]*)?:' /proc/self/cgroup | cut -d: -f3)"
    executor.start(shell("b", f"cat {path}/pids.max"))
    until(lambda: len(executor.poll()) == 2, "both ended")
    assert "fork" in output(executor, "lab/a")
    assert "made 500" not in output(executor, "lab/a")
    assert output(executor, "lab/b").strip() == str(bounds.PIDS_DEFAULT)


def test_what_cannot_be_held_is_said_and_not_started(executor: LocalExecutor) -> None:
    executor.controls = bounds.Controls(missing={"memory": "it takes root"})
    executor.start(shell("a", "true", memory_bytes=2**30))
    (exit,) = executor.poll()
    assert (exit.code, exit.reason) == (126, "`memory` of a run cannot be held: it takes root")


def test_no_cgroup_is_left(executor: LocalExecutor) -> None:
    executor.start(shell("a", "true", cpu_millicores=1000))
    until(executor.poll, "it ended")
    executor.acknowledge(executor.poll())
    own = executor.controls.places.values()
    for place in {point for point in own if point != bounds.V2}:
        folder = Path(place, confine.CGROUP)
        assert not folder.exists() or not any(
            each.is_dir() and "lab" in each.name for each in folder.iterdir()
        )
