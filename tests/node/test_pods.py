"""The pods of a Kubernetes node, in the cgroups of either driver and version."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.node.cgroup_mounts import NoCpuController, host_at
from fairlead.node.pods import PodSensor, pod_cgroups
from fairlead.ports.cpu import KnownContainer, KnownPod
from tests.node.cgroup_worlds import PlainTree

UID, ID = "0b9a6b4e-8d3c-4f6e-9d7b-3c1f0f6d2a11", "ab" * 32
CGROUPFS = f"kubepods/burstable/pod{UID}", ID
SYSTEMD = (
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice",
    f"cri-containerd-{ID}.scope",
)
NESTED = (
    "lab-kubepods.slice/lab-kubepods-burstable.slice/"
    f"lab-kubepods-burstable-pod{UID.replace('-', '_')}.slice",
    f"crio-{ID}.scope",
)
LAYOUTS = {"cgroupfs": CGROUPFS, "systemd": SYSTEMD, "systemd below a root of its own": NESTED}


class Roster:
    """Pods that a test names."""

    def __init__(self, *pods: KnownPod) -> None:
        self.known = list(pods)

    def pods(self) -> list[KnownPod]:
        return self.known


def web(**more: object) -> KnownPod:
    container = KnownContainer("main", ID, 500)
    made = KnownPod("team-a/web", UID, 100, (container,), priority=1000, started_ms=7)
    return replace(made, **more)  # type: ignore[arg-type]


def limit(tree: PlainTree, path: str, millicores: int) -> None:
    quota = str(millicores * 100)
    if tree.version == 2:
        (tree.root / path / "cpu.max").write_text(f"{quota} 100000\n")
    else:
        (tree.root / path / "cpu.cfs_quota_us").write_text(f"{quota}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_container_is_found_and_its_limit_is_the_kernels(
    version: int, layout: str, tmp_path: Path
) -> None:
    """Not the sandbox beside it, and not what the API says."""
    tree, (folder, name) = PlainTree(version, tmp_path / "cgroups"), LAYOUTS[layout]
    for child in (name, name.replace(ID, "cd" * 32)):
        tree.create(f"{folder}/{child}")
    limit(tree, f"{folder}/{name}", 300)
    files = tree.files()
    assert pod_cgroups(files.cpu) == {UID: folder}
    sensor = PodSensor(files, Roster(web()))
    (seen,) = sensor.sample(0)
    (container,) = seen.containers
    assert (seen.uid, seen.identity, seen.request_millicores) == ("team-a/web", UID, 100)
    assert (seen.priority, seen.started_ms, seen.opted_out) == (1000, 7, False)
    assert (container.name, container.limit_millicores) == ("main", 300)
    assert container.counters is not None
    sensor.close()


def test_at_first_sight_the_limit_is_the_users_own(tmp_path: Path) -> None:
    """An agent that lost its state must not take our limit for the pod's ceiling."""
    tree, path = PlainTree(2, tmp_path / "cgroups"), "/".join(CGROUPFS)
    tree.create(path)
    limit(tree, path, 300)
    sensor = PodSensor(
        tree.files(), Roster(web(containers=(KnownContainer("main", ID, 300, 900),)))
    )
    limits = [sensor.sample(now)[0].containers[0].limit_millicores for now in (0, 1)]
    assert limits == [900, 300]
    sensor.close()


def test_a_container_that_restarts_is_read_again_and_a_missing_one_is_not_idle(
    tmp_path: Path,
) -> None:
    tree, (folder, _) = PlainTree(2, tmp_path / "cgroups"), CGROUPFS
    tree.create(f"{folder}/{ID}")
    roster = Roster(web())
    sensor = PodSensor(tree.files(), roster)
    sensor.sample(0)
    roster.known = [web(containers=(KnownContainer("main", None, 500),))]
    assert sensor.sample(1)[0].containers[0].is_unread
    tree.create(f"{folder}/{'ef' * 32}")
    roster.known = [web(containers=(KnownContainer("main", "ef" * 32, 500),))]
    assert sensor.sample(2)[0].containers[0].counters is not None
    roster.known = []
    assert sensor.sample(3) == []
    sensor.close()


def test_a_pod_that_is_left_alone_takes_its_limit_from_the_capacity(tmp_path: Path) -> None:
    """Without a cgroup of it: its spec says what it takes."""
    tree = PlainTree(2, tmp_path / "cgroups")
    unlimited = KnownContainer("side", None, None)
    roster = Roster(
        web(opted_out=True), web(name="team-a/b", uid="b", opted_out=True, containers=(unlimited,))
    )
    seen = PodSensor(tree.files(), roster).sample(0)
    assert [pod.reserved_millicores for pod in seen] == [100, 500]


def _v2(folder: Path) -> None:
    (folder / "cgroup.controllers").write_text("cpuset cpu io\n")


def _v1(folder: Path) -> None:
    for name in ("cpu", "cpuacct"):
        (folder / name).mkdir()
        (folder / name / "cgroup.procs").write_text("1\n")


def _v1_together(folder: Path) -> None:
    (folder / "cpu,cpuacct").mkdir()
    (folder / "cpu,cpuacct" / "cgroup.procs").write_text("1\n")
    for name in ("cpu", "cpuacct"):
        (folder / name).symlink_to("cpu,cpuacct")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_v2, (2, ".", None)),
        (_v1, (1, "cpu", "cpuacct")),
        (_v1_together, (1, "cpu,cpuacct", "cpu,cpuacct")),
    ],
)
def test_the_hosts_cgroups_are_found_where_they_are_mounted(
    make: Callable[[Path], None], expected: tuple[int, str, str | None], tmp_path: Path
) -> None:
    """For an agent in a container, whose own mounts show another part of the tree."""
    make(tmp_path)
    version, cpu, usage = expected
    host = host_at(tmp_path)
    assert (host.version, host.cpu_mount) == (version, tmp_path / cpu)
    assert host.cpuacct_mount == (usage and tmp_path / usage)


def test_a_folder_without_cgroups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCpuController, match="no cgroups with the cpu controller"):
        host_at(tmp_path)
