"""Where the cpu controller lives: recorded hosts, forged mount tables, this machine."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.node.cgroup_mounts import (
    CgroupController,
    NoCpuController,
    carrying,
    locate,
    parse_mountinfo,
    parse_proc_cgroups,
    read_cgroup_host,
    unescape,
    unified,
    visible,
)
from fairlead.ports.faults import PermanentFault

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
CGROUP = Path("sys/fs/cgroup")
RECORDED = {
    "v1-hybrid": (1, CGROUP / "cpu", CGROUP / "cpuacct", CGROUP / "unified"),
    "v1-comounted": (1, CGROUP / "cpu,cpuacct", CGROUP / "cpu,cpuacct", CGROUP / "unified"),
    "v2-unified": (2, CGROUP, None, CGROUP),
}
HYBRID = (HOSTS / "v1-hybrid/proc/self/mountinfo").read_text()
ROOT_LINE = "27 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"
V1 = "{0} {1} 0:40 {2} {3} rw,relatime - cgroup cgroup rw,{4}\n"


def cpu_point(mountinfo: str) -> str | None:
    mount = carrying(parse_mountinfo(mountinfo), "cpu")
    return mount.point if mount else None


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_hosts_are_recognised(name: str) -> None:
    """Version and mounts, as paths that can be opened below the recorded root."""
    version, cpu, cpuacct, cgroup2 = RECORDED[name]
    root = HOSTS / name
    host = read_cgroup_host(root)
    assert host.version == version
    assert host.cpu_mount == root / cpu
    assert host.cpuacct_mount == (root / cpuacct if cpuacct else None)
    assert host.unified_mount == root / cgroup2
    assert host.cpu_mount.is_dir()


def test_a_container_without_cpu_is_told_so() -> None:
    """The fault names the mount, what it does have, and what would help."""
    with pytest.raises(NoCpuController) as told:
        read_cgroup_host(HOSTS / "no-cpu")
    assert isinstance(told.value, PermanentFault)
    assert str(told.value) == (
        "the cgroup2 mount /sys/fs/cgroup has no cpu controller (it has: memory, pids): "
        "add +cpu to cgroup.subtree_control of its parent (in a container: on the host)"
    )


def test_a_machine_without_mountinfo_is_told_which_file_is_missing(tmp_path: Path) -> None:
    """Not Linux, or /proc is not mounted."""
    with pytest.raises(PermanentFault, match=r"cannot read .*/proc/self/mountinfo: No such file"):
        read_cgroup_host(tmp_path)


@pytest.mark.parametrize(
    ("mountinfo", "known", "said"),
    [
        (ROOT_LINE, {}, "no cgroup file system is mounted"),
        (ROOT_LINE, {"cpu": CgroupController(0, enabled=False)}, "the cpu controller is disabled"),
        (ROOT_LINE, {"cpu": CgroupController(4, enabled=True)}, "bound to v1 hierarchy 4"),
        (
            ROOT_LINE,
            {"pids": CgroupController(0, enabled=True)},
            "this kernel offers no cpu controller",
        ),
        (V1.format(33, 27, "/", "/cg", "cpuset"), {}, "no cgroup file system is mounted"),
        (V1.format(33, 27, "/", "/cg", "name=cpu"), {}, "no cgroup file system is mounted"),
    ],
)
def test_every_way_of_having_no_cpu_has_its_own_sentence(
    mountinfo: str, known: dict[str, CgroupController], said: str
) -> None:
    """`cpuset` and a hierarchy named cpu do not count as `cpu`."""
    with pytest.raises(NoCpuController, match=said) as told:
        locate(parse_mountinfo(mountinfo), unified_controllers=frozenset(), known=known)
    assert told.value.cure


def test_files_beside_mountinfo_may_be_missing(tmp_path: Path) -> None:
    """v1 is recognised from mountinfo alone; v2 needs cgroup.controllers."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(HYBRID)
    assert read_cgroup_host(tmp_path).version == 1
    (tmp_path / "proc/self/mountinfo").write_text(
        (HOSTS / "v2-unified/proc/self/mountinfo").read_text()
    )
    with pytest.raises(NoCpuController, match="it has: none"):
        read_cgroup_host(tmp_path)


def test_octal_escapes_are_undone_once() -> None:
    """Blank, tab, newline, hash, backslash; an escaped escape stays an escape."""
    assert unescape(r"/a\040b\011c\012d\043e\134f") == "/a b\tc\nd#e\\f"
    assert unescape(r"/a\134040b") == r"/a\040b"
    assert unescape(r"/a\04\8b" + "\\") == r"/a\04\8b" + "\\"
    line = V1.format(33, 27, "/", r"/c\040g", "cpu")
    assert cpu_point(ROOT_LINE + line) == "/c g"


def test_a_mount_point_may_hold_any_byte(tmp_path: Path) -> None:
    """A path that is not UTF-8 is found and can be opened."""
    point = os.fsdecode(b"/c\xffg")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(
        os.fsencode(V1.format(33, 27, "/", point, "cpu"))
    )
    (tmp_path / point[1:]).mkdir()
    assert read_cgroup_host(tmp_path).cpu_mount.is_dir()


@pytest.mark.parametrize("backwards", [False, True])
def test_the_whole_hierarchy_in_its_usual_place_is_preferred(*, backwards: bool) -> None:
    """Over a bind-mounted part, a read-only view, another place: in any order of lines."""
    lines = [
        V1.format(33, 27, "/docker/4f5e", "/a", "cpu"),
        V1.format(34, 27, "/", "/b", "cpu").replace("rw,relatime", "ro,relatime"),
        V1.format(35, 27, "/", "/c", "cpu"),
        V1.format(36, 27, "/", "/sys/fs/cgroup/cpu", "cpu"),
    ]
    expected = ["/sys/fs/cgroup/cpu", "/c", "/b", "/a"]
    for place in expected:
        assert cpu_point(ROOT_LINE + "".join(lines[::-1] if backwards else lines)) == place
        lines.pop()


def test_a_bind_mounted_part_is_better_than_nothing() -> None:
    """A v1 container sees only its own part, through the host's path."""
    assert cpu_point(V1.format(33, 27, "/docker/4f5e", "/sys/fs/cgroup/cpu", "cpu")) is not None


def test_covered_and_hidden_mounts_do_not_count() -> None:
    """Stacked over, hidden below a later tmpfs, and below a parent that is hidden itself."""
    table = (
        ROOT_LINE
        + "30 27 0:20 / /sys rw - sysfs sysfs rw\n"
        + V1.format(31, 30, "/", "/sys/fs/cgroup/cpu", "cpu")
    )
    assert cpu_point(table) == "/sys/fs/cgroup/cpu"
    stacked = table + "32 31 0:21 / /sys/fs/cgroup/cpu rw - tmpfs tmpfs rw\n"
    assert cpu_point(stacked) is None
    hidden = table + "32 30 0:21 / /sys/fs rw - tmpfs tmpfs rw\n"
    assert cpu_point(hidden) is None
    parent_hidden = table + "32 27 0:21 / /sys rw - tmpfs tmpfs rw\n"
    assert cpu_point(parent_hidden.replace("32 27", "32 30")) is None
    neighbour = table + "32 30 0:21 / /sys/fs/cgroup/cp rw - tmpfs tmpfs rw\n"
    assert cpu_point(neighbour) == "/sys/fs/cgroup/cpu"


def test_the_first_root_file_system_hides_nothing() -> None:
    """An initramfs is its own parent and lies below everything."""
    table = "1 1 0:1 / / rw - rootfs rootfs rw\n" + ROOT_LINE
    assert cpu_point(table + V1.format(31, 27, "/", "/cg", "cpu")) == "/cg"
    assert cpu_point(table + V1.format(31, 1, "/", "/cg", "cpu")) is None
    alone = "1 1 0:1 / / rw - rootfs rootfs rw\n" + V1.format(31, 1, "/", "/cg", "cpu")
    assert cpu_point(alone) == "/cg"


GARBAGE = [
    "",
    " - ",
    "- - -",
    "33 27 0:40 / /cg rw,relatime",
    "33 27 0:40 / /cg rw,relatime - cgroup",
    "33 27 0:40 / /cg - cgroup cgroup rw,cpu",
    "-33 27 0:40 / /cg rw - cgroup cgroup rw,cpu",
    "٣٣ 27 0:40 / /cg rw - cgroup cgroup rw,cpu",
    "3_3 27 0:40 / /cg rw - cgroup cgroup rw,cpu",
    "9" * 5000 + " 27 0:40 / /cg rw - cgroup cgroup rw,cpu",
    "33 27 0:40 / cg rw - cgroup cgroup rw,cpu",
    "33 27 0:40 / /c\\000g rw - cgroup cgroup rw,cpu",
    "\0" * 100,
]


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_lines_are_left_out(line: str) -> None:
    """Alone they give nothing; among good lines they change nothing."""
    assert parse_mountinfo(line) == ()
    mixed = "\n".join(f"{good}\n{line}" for good in HYBRID.splitlines())
    assert parse_mountinfo(mixed) == parse_mountinfo(HYBRID)


def test_a_cycle_of_parents_ends() -> None:
    """A forged table cannot hang the agent."""
    table = V1.format(31, 32, "/", "/a/b", "cpu") + "32 31 0:1 / /c rw - tmpfs tmpfs rw\n"
    assert cpu_point(table) == "/a/b"


TOKENS = st.sampled_from(
    ["1", "2", "31", "0:40", "/", "/sys", "/sys/fs", "rw", "rw,cpu", "-", "cgroup", "cgroup2", "\\"]
)
LINES = st.lists(TOKENS, max_size=12).map(" ".join) | st.binary(max_size=40).map(os.fsdecode)


@given(lines=st.lists(LINES, max_size=12), cgroups=LINES)
def test_no_mountinfo_raises_anything_but_the_fault(lines: list[str], cgroups: str) -> None:
    """Any bytes give a host or NoCpuController."""
    mounts = parse_mountinfo("\n".join(lines))
    known = parse_proc_cgroups(cgroups)
    try:
        host = locate(mounts, unified_controllers=frozenset({"cpu"}), known=known)
    except NoCpuController:
        assert carrying(mounts, "cpu") is None
        assert unified(mounts) is None
    else:
        assert host.version == (1 if carrying(mounts, "cpu") else 2)
    assert set(visible(mounts, fstype="cgroup")) <= set(mounts)


@given(order=st.permutations(HYBRID.splitlines()))
def test_the_order_of_lines_does_not_matter(order: list[str]) -> None:
    """The kernel promises none."""
    assert cpu_point("\n".join(order)) == "/sys/fs/cgroup/cpu"


def test_proc_cgroups_skips_what_it_does_not_know() -> None:
    """Comments, short lines, numbers that are none."""
    text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\nmemory\tx\t1\t1\npids\t0\n"
    assert parse_proc_cgroups(text) == {"cpu": CgroupController(3, enabled=True)}


@pytest.mark.component("cgroups")
def test_this_machine_is_recognised() -> None:
    """Wherever the tests run: a mount that really has cpu files."""
    host = read_cgroup_host()
    # A v1 cgroup has shares at its root too; the root of v2 has no cpu file but its statistics.
    assert (host.cpu_mount / ("cpu.shares" if host.version == 1 else "cpu.stat")).is_file()
