"""Which job a process belongs to, by each confinement: children, daemons, survivors, others."""

import os
import subprocess
from pathlib import Path

import pytest

from fairlead.executor import confine, peers
from fairlead.executor.local import LocalExecutor
from tests.executor.worlds import RealWorld, exit_of, open_folder, shell, until

DAEMON = "(setsid sh -c 'echo $$ > {folder}/daemon; exec sleep 600' &) "


def local(world: RealWorld) -> LocalExecutor:
    assert isinstance(world.executor, LocalExecutor)
    return world.executor


def number(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip(), f"{path.name} is there")
    return int(path.read_text())


def test_every_process_of_a_job_is_the_jobs(real: RealWorld, shared: Path) -> None:
    """The command, its child, and a grandchild that left its session; after a restart, too."""
    (shared / "out").mkdir(mode=0o777)
    (shared / "out").chmod(0o777)
    folder = shared / "out"
    script = f"echo $$ > {folder}/command; {DAEMON.format(folder=folder)}; sleep 600"
    real.executor.start(shell("p1", script))
    pids = [number(folder / name) for name in ("command", "daemon")]
    until(lambda: confine.stat(pids[1]) is not None, "the daemon lives")
    for _ in range(2):
        assert [local(real).job_of(pid) for pid in pids] == ["p1", "p1"]
        assert local(real).job_of(os.getpid()) is None, "we are no run's process"
        real.reopen()
    real.executor.stop("lab/p1", 0, decision="d1")
    exit_of(real, "p1")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            local(real).job_of(pid)


def test_a_zombie_and_a_free_number_are_no_answer(real: RealWorld) -> None:
    """The kernel shows the root as the cgroup of a process that is ending: that is no acquittal."""
    ended = subprocess.Popen(["true"])
    until(lambda: Path(f"/proc/{ended.pid}/stat").read_text().split()[2] == "Z", "it is a zombie")
    with pytest.raises(ProcessLookupError):
        local(real).job_of(ended.pid)
    ended.wait()
    with pytest.raises(ProcessLookupError):
        local(real).job_of(ended.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the cgroup")
@pytest.mark.component("cgroup.kill")
def test_the_job_of_another_executor_is_a_job_all_the_same() -> None:
    """What survived its run, or is another control plane's run, is no user."""
    kind, point = confine.find(("cgroup2",))
    cgroup = confine.Cgroup(kind, f"{point}/0badcafe-survivor-{os.getpid()}")
    with open_folder() as folder:
        executor = LocalExecutor(folder / "executor", kinds=("cgroup2",))
        survivor = subprocess.Popen(["sleep", "600"])
        try:
            cgroup.prepare()
            cgroup.join(survivor.pid)
            assert executor.job_of(survivor.pid) == ""
        finally:
            survivor.kill()
            survivor.wait()
            until(cgroup.empty, "the cgroup is empty")
            cgroup.remove()


def test_a_tree_without_its_shim_is_known_by_its_environment(shared: Path) -> None:
    """Weaker than a cgroup, as the documentation says: another environment hides the process."""
    executor = LocalExecutor(shared / "executor", kinds=("tree",))
    marked = subprocess.Popen(["sleep", "600"], env={"FAIRLEAD_JOB": "gone", "PATH": os.defpath})
    plain = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath})
    try:
        until(lambda: peers.marked_job(marked.pid) == "gone", "it has begun")
        assert executor.job_of(marked.pid) == ""
        assert executor.job_of(plain.pid) is None
    finally:
        for process in (marked, plain):
            process.kill()
            process.wait()


def test_ancestors_end_at_the_first_process() -> None:
    """A chain whose links were each the parent of the one before at one moment."""
    found = peers.ancestors(os.getpid())
    assert [pid for pid, _ in found[:2]] == [os.getpid(), os.getppid()]
    assert all(ticks <= found[0][1] for _, ticks in found[1:])
