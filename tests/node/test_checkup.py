"""The checkup: no check stops another, the probe leaves nothing behind, cures are exact."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.host import paths
from fairlead.node.cgroup_mounts import CgroupHost
from fairlead.node.doctor import checks
from fairlead.node.doctor.checks import ALL_CHECKS
from fairlead.node.doctor.machine import (
    Check,
    CheckResult,
    CheckStatus,
    Finding,
    Governor,
    Machine,
    base_works,
    examine,
    held,
    printable,
)
from fairlead.node.doctor.quota import probe_quota
from fairlead.ports.faults import PermanentFault

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
NAMES = sorted(each.name for each in HOSTS.iterdir() if each.is_dir())


def recorded(name: str, tmp_path: Path) -> Machine:
    """A copy, because the probe makes a directory, with no programs on its PATH."""
    shutil.copytree(HOSTS / name, tmp_path / name)
    return Machine(root=tmp_path / name, search_path="")


def fake_v2(root: Path) -> CgroupHost:
    return CgroupHost(2, root, None, root)


def contents(root: Path) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in root.rglob("*"))


def check(look: object, *, required: bool = False) -> Check:
    return Check(Governor.CPU, "test", "why", look, required=required)  # type: ignore[arg-type]


def test_a_check_that_raises_is_reported_and_stops_no_other() -> None:
    """An unexpected error is `missing` with its text; a fault speaks for itself."""

    def broken(_: Machine) -> Finding:
        raise ZeroDivisionError("three\nlines\x1b[31m")

    def faulty(_: Machine) -> Finding:
        raise PermanentFault("nothing is mounted")

    fine = Finding(CheckStatus.OK, "fine")
    results = examine(Machine(), [check(broken), check(faulty), check(lambda _: fine)])
    assert [each.status for each in results] == [
        CheckStatus.MISSING,
        CheckStatus.MISSING,
        CheckStatus.OK,
    ]
    told = "could not be checked: ZeroDivisionError: three\\nlines\\x1b[31m"
    assert results[0].found == told
    assert results[1].found == "could not be checked: nothing is mounted"
    assert all(each.cure for each in results[:2])


def test_ctrl_c_is_not_swallowed() -> None:
    """A user who wants out gets out."""

    def interrupted(_: Machine) -> Finding:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(Machine(), [check(interrupted)])


def test_only_required_checks_decide_whether_the_base_works() -> None:
    """A warning never does; what is optional never does."""

    def results(status: CheckStatus, *, required: bool) -> tuple[CheckResult, ...]:
        return examine(Machine(), [check(lambda _: Finding(status, ""), required=required)])

    assert base_works(results(CheckStatus.WARN, required=True))
    assert base_works(results(CheckStatus.MISSING, required=False))
    assert not base_works(results(CheckStatus.MISSING, required=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_check_answers_on_every_recorded_host(name: str, tmp_path: Path) -> None:
    """Each with a finding and, unless ok, a cure; and the tree is as it was."""
    machine = recorded(name, tmp_path)
    before = contents(machine.root)
    results = examine(machine, ALL_CHECKS)
    assert len(results) == len(ALL_CHECKS)
    assert {each.governor for each in results} == set(Governor)
    for each in results:
        assert each.found
        assert each.why
        assert each.cure or each.status is CheckStatus.OK, each
    assert contents(machine.root) == before


def test_check_names_are_unique() -> None:
    """Scripts select by name."""
    assert len({each.name for each in ALL_CHECKS}) == len(ALL_CHECKS)


def test_the_cpu_checks_read_a_v2_host(tmp_path: Path) -> None:
    """Statistics, burst and pressure come from a cgroup below the root, which has none itself."""
    machine = recorded("v2-unified", tmp_path)
    by_name = {each.name: each for each in examine(machine, ALL_CHECKS)}
    for name in ("cgroup", "cpu usage", "throttling", "burst", "cgroup pressure"):
        assert by_name[name].status is CheckStatus.OK, by_name[name]
    assert by_name["quota"].status is CheckStatus.MISSING  # no kernel behind a recorded tree
    assert by_name["quota"].cure.startswith("echo +cpu > ")


def test_the_cpu_checks_read_a_host_without_cpu(tmp_path: Path) -> None:
    """The controller's check has the cure; those that hang on it name the reason."""
    machine = recorded("no-cpu", tmp_path)
    by_name = {each.name: each for each in examine(machine, ALL_CHECKS)}
    assert by_name["cgroup"].cure.startswith("add +cpu to cgroup.subtree_control")
    assert "has no cpu controller" in by_name["quota"].found


def test_pressure_that_is_partly_there_is_a_warning(tmp_path: Path) -> None:
    """The recorded hybrid host kept only one of the three files."""
    finding = checks.pressure(recorded("v1-hybrid", tmp_path))
    assert finding.status is CheckStatus.WARN
    assert finding.found == "cannot read /proc/pressure/{io,memory}"


@pytest.mark.component("cgroups")
def test_the_probe_really_writes_here() -> None:
    """On the machine that runs the tests; afterwards its cgroup is gone."""
    machine = Machine()
    probe = machine.probe
    assert not probe.group.exists()
    assert not probe.left_behind
    assert probe.worked
    assert probe.stat is not None
    assert "nr_periods" in probe.stat
    assert checks.quota(machine).status is CheckStatus.OK
    assert checks.statistics(machine).status is CheckStatus.OK


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_worst_moment_leaves_nothing_behind(
    stop: signal.Signals, tmp_path: Path
) -> None:
    """It arrives the instant the cgroup exists; the process ends by it, the cgroup is gone."""
    script = f"""
import os
from pathlib import Path
from fairlead.node.cgroup_mounts import CgroupHost
from fairlead.node.doctor.quota import probe_quota
make = os.mkdir
def make_and_stop(path, mode=0o777):
    make(path, mode)
    os.kill(os.getpid(), {int(stop)})
    print("made", path, flush=True)
os.mkdir = make_and_stop
probe_quota(CgroupHost(2, Path({str(tmp_path)!r}), None, None), capabilities=frozenset())
print("went on", flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
    )
    assert result.stdout.startswith("made ")
    assert "went on" not in result.stdout
    assert result.returncode == -stop
    assert contents(tmp_path) == []


def test_a_cgroup_of_the_same_name_is_not_touched(tmp_path: Path) -> None:
    """It may belong to somebody else."""
    theirs = tmp_path / f"fairlead-doctor-{os.getpid()}"
    theirs.mkdir()
    probe = probe_quota(fake_v2(tmp_path), capabilities=frozenset())
    assert (probe.refused, probe.cure) == (f"{theirs} exists already", f"rmdir {theirs}")
    assert theirs.is_dir()


def test_a_missing_privilege_is_named(tmp_path: Path) -> None:
    """As an ordinary user: which capability is missing, and the way without it."""
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    script = f"""
import os, sys
from pathlib import Path
from fairlead.node.doctor.machine import held
from fairlead.node.cgroup_mounts import CgroupHost
from fairlead.node.doctor.quota import probe_quota
descriptor = os.open({str(tmp_path)!r}, os.O_RDONLY)
os.fchdir(descriptor)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
may = held(Path("/proc/self/status").read_text())
probe = probe_quota(CgroupHost(1, Path("."), None, None), capabilities=may)
print(probe.refused)
print(probe.cure)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    refused, cure = result.stdout.splitlines()
    assert refused == "cannot make a cgroup in . (Permission denied)"
    assert cure.startswith("run as root (CAP_DAC_OVERRIDE is missing), or delegate")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tx\nCapEff:\t000001fffeffffff\n", {"CAP_BPF", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"}),
        ("CapEff:\t0000008000000000\n", {"CAP_BPF"}),
        ("CapEff:\t0000000000000000\n", set()),
        ("CapEff:\t-1\n", set()),
        ("CapEff:\t0x10\n", set()),
        ("CapEff:\n", set()),
        ("CapPrm:\t000001ffffffffff\n", set()),
        ("", set()),
    ],
)
def test_capabilities_are_decoded_from_the_effective_mask(status: str, expected: set[str]) -> None:
    """Rubbish grants nothing."""
    assert held(status) - {"CAP_DAC_OVERRIDE"} == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("ID=debian\n", "apt-get install libbpf-dev"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt-get install libbpf-dev"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install libbpf-devel"),
        ("ID=alpine\n", "apk add libbpf-devel"),
        ("ID=plan9\n", "install the package libbpf-dev"),
        ("", "install the package libbpf-dev"),
    ],
)
def test_the_cure_speaks_the_distributions_language(
    release: str, expected: str, tmp_path: Path
) -> None:
    """From /etc/os-release."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release)
    assert Machine(root=tmp_path).install("libbpf-dev", elsewhere="libbpf-devel") == expected


def test_a_port_in_use_is_a_warning_and_a_free_one_is_released() -> None:
    """It may be a running Fairlead, so it is not a reason to fail."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        finding = checks.port(port)(Machine())
        assert finding.status is CheckStatus.WARN
        assert f":{port}" in finding.cure
    assert checks.port(port)(Machine()).status is CheckStatus.OK
    assert checks.port(port)(Machine()).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("release", "status"),
    [
        ("6.18.44-fc", CheckStatus.OK),
        ("6.1.0-18-amd64", CheckStatus.OK),
        ("5.15.0-100-generic", CheckStatus.WARN),
        ("5.10.0", CheckStatus.MISSING),
        ("10.0", CheckStatus.OK),
        ("next-20260101", CheckStatus.MISSING),
    ],
)
def test_kernels_are_judged_by_number(release: str, status: CheckStatus, tmp_path: Path) -> None:
    """5.15 for the hooks, 6.1 for their error number; ten is more than six."""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(release + "\n")
    assert checks.kernel(Machine(root=tmp_path)).status is status


def test_bpffs_and_the_attach_point_are_read_from_the_mounts(tmp_path: Path) -> None:
    """Mounted on the co-mounted host, not on the hybrid one; cgroup2 on both."""
    with_bpffs, without = recorded("v1-comounted", tmp_path), recorded("v1-hybrid", tmp_path)
    assert checks.bpffs(with_bpffs) == Finding(CheckStatus.OK, "/sys/fs/bpf")
    assert checks.bpffs(without).cure == "mount -t bpf bpf /sys/fs/bpf"
    for machine in (with_bpffs, without):
        assert checks.attach_point(machine).found == "cgroup2 in /sys/fs/cgroup/unified"


def test_bpf_permission_names_the_missing_capability(tmp_path: Path) -> None:
    """CAP_BPF alone is not enough to attach."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("CapEff:\t0000008000000000\n")
    finding = checks.permission(Machine(root=tmp_path))
    assert finding.status is CheckStatus.MISSING
    assert finding.found.startswith("CAP_NET_ADMIN missing")


def test_devices_are_counted(tmp_path: Path) -> None:
    """GPUs, not the control files beside them; the user's right to open them counts."""
    (tmp_path / "dev").mkdir()
    machine = Machine(root=tmp_path)
    assert checks.devices(machine).status is CheckStatus.MISSING
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert checks.devices(machine) == Finding(CheckStatus.OK, "2 NVIDIA devices in /dev")
    (tmp_path / "dev/nvidiactl").unlink()
    assert checks.devices(machine).status is CheckStatus.WARN


def test_the_state_directory_follows_user_and_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """/var/lib for root; for others what XDG says, and a relative path is ignored."""
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_STATE_HOME", "/data")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.default_state_directory() == Path("/var/lib/fairlead")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert paths.default_state_directory() == Path("/data/fairlead")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert paths.default_state_directory() == Path("/home/ada/.local/state/fairlead")


def test_the_state_directory_is_judged_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is measured where it will be made; a file in its way is found."""
    wanted = tmp_path / "not" / "yet" / "fairlead"
    monkeypatch.setattr(checks.paths, "state_directory", lambda: wanted)
    assert checks.state_directory(Machine()).found.startswith(f"{wanted}: ")
    assert contents(tmp_path) == []
    (tmp_path / "not").touch()
    finding = checks.state_directory(Machine())
    assert finding.status is CheckStatus.MISSING
    assert finding.cure


def test_a_user_of_the_machines_control_plane_needs_no_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user without a place for it: a warning where a control plane serves the machine,
    and what is true and what to do in either case."""
    (tmp_path / "home").touch()
    monkeypatch.setattr(checks.paths, "state_directory", lambda: tmp_path / "home" / "fairlead")
    monkeypatch.setattr(checks.os, "geteuid", lambda: 1000)
    alone = checks.state_directory(Machine(root=tmp_path))
    assert alone.status is CheckStatus.MISSING
    assert alone.found.endswith("may write to, and no control plane serves this machine")
    assert alone.cure == "export XDG_STATE_HOME=DIRECTORY with a directory of your own"
    socket = tmp_path / "var/lib/fairlead/fairlead.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    served = checks.state_directory(Machine(root=tmp_path))
    assert served.status is CheckStatus.WARN
    assert f"you need none to use the control plane of this machine, at {socket}" in served.found
    assert served.cure.startswith("only to run a control plane or an agent of your own: ")


def test_a_slow_clock_is_a_warning_with_the_better_one(tmp_path: Path) -> None:
    """The cure names a source that the kernel offers."""
    folder = tmp_path / "sys/devices/system/clocksource/clocksource0"
    folder.mkdir(parents=True)
    (folder / "current_clocksource").write_text("hpet\n")
    (folder / "available_clocksource").write_text("hpet acpi_pm kvm-clock\n")
    finding = checks.clock(Machine(root=tmp_path))
    assert finding.status is CheckStatus.WARN
    assert finding.cure.startswith("echo kvm-clock > ")


def test_found_texts_are_one_printable_line() -> None:
    """Escape sequences and undecodable bytes are shown, not sent."""
    shown = printable(os.fsdecode(b"a\xff\x1b[0m\nb") + "é")
    assert shown == "a\\udcff\\x1b[0m\\nbé"
    shown.encode()
