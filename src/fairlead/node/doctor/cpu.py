"""Checks of what the CPU governor senses and writes on a node."""

from collections.abc import Iterator
from pathlib import Path

from fairlead.node.cgroup_mounts import NoCpuController
from fairlead.node.doctor.base import port_free
from fairlead.node.doctor.machine import (
    Check,
    CheckStatus,
    Finding,
    Governor,
    Machine,
    missing,
    ok,
    warn,
)

METRICS_PORT = 8471
_STATISTICS = frozenset({"nr_periods", "nr_throttled"})
_PRESSURES = ("cpu", "io", "memory")


def cgroup(machine: Machine) -> Finding:
    """Which hierarchy carries the cpu controller."""
    try:
        host = machine.cgroups
    except NoCpuController as none:
        return missing(none.missing, none.cure)
    if host.version == 2:
        return ok(f"cgroup v2, cpu in {host.cpu_mount}")
    hybrid = f"; cgroup2 without cpu in {host.unified_mount}" if host.unified_mount else ""
    return ok(f"cgroup v1, cpu in {host.cpu_mount}{hybrid}")


def usage(machine: Machine) -> Finding:
    """Where the CPU time used by a container can be read."""
    host = machine.cgroups
    if host.version == 2:
        return ok("cpu.stat carries usage_usec (cgroup v2)")
    if host.cpuacct_mount is None:
        return missing(
            "no v1 hierarchy with cpuacct is mounted",
            "mkdir -p /sys/fs/cgroup/cpuacct && "
            "mount -t cgroup -o cpuacct cgroup /sys/fs/cgroup/cpuacct",
        )
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
    """Do cgroups count their throttled periods?"""
    for place, stat in _stats(machine):
        if {line.partition(" ")[0] for line in stat.split("\n")} >= _STATISTICS:
            return ok(f"nr_periods and nr_throttled in {place}")
    return missing(
        "no cpu.stat with nr_periods was found",
        "boot a kernel with CONFIG_CFS_BANDWIDTH, or let the quota check pass first",
    )


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
    """Can unused quota be saved up for a burst?"""
    host = machine.cgroups
    name = "cpu.cfs_burst_us" if host.version == 1 else "cpu.max.burst"
    if machine.probe.has_burst or _exist(host.cpu_mount, name):
        return ok(name)
    return warn(f"no {name}", "boot Linux 5.14 or later")


def _exist(mount: Path, name: str) -> bool:
    """Whether the hierarchy's root or any cgroup directly below it has such a file."""
    return (mount / name).exists() or any(mount.glob(f"*/{name}"))


def pressure(machine: Machine) -> Finding:
    """Pressure stall information of the whole machine."""
    # With PSI compiled in but switched off the files exist and refuse to be read.
    lacking = [name for name in _PRESSURES if not machine.text(f"/proc/pressure/{name}")]
    if not lacking:
        return ok(f"/proc/pressure/{{{','.join(_PRESSURES)}}}")
    status = CheckStatus.MISSING if len(lacking) == len(_PRESSURES) else CheckStatus.WARN
    return Finding(
        status,
        f"cannot read /proc/pressure/{{{','.join(lacking)}}}",
        "boot with psi=1 (the kernel needs CONFIG_PSI)",
    )


def cgroup_pressure(machine: Machine) -> Finding:
    """Pressure stall information per container."""
    host = machine.cgroups
    if host.version == 1:
        return warn(
            "a v1 hierarchy has none: need is read from throttling and usage alone",
            "boot with systemd.unified_cgroup_hierarchy=1 for cgroup v2",
        )
    if machine.probe.has_pressure or _exist(host.cpu_mount, "cpu.pressure"):
        return ok("cpu.pressure in every cgroup")
    return warn("no cpu.pressure", "boot with psi=1 (the kernel needs CONFIG_PSI)")


_CPU = Governor.CPU
CHECKS = (
    Check(_CPU, "cgroup", "limits are read and written where the controller lives", cgroup),
    Check(_CPU, "cpu usage", "need falls back to usage when demand is unknown", usage),
    Check(_CPU, "quota", "a grant is written as a CFS quota", quota),
    Check(_CPU, "throttling", "demand is read from throttled periods", statistics),
    Check(_CPU, "burst", "short bursts within a quota go unthrottled (optional)", burst),
    Check(_CPU, "pressure", "node-wide stalls, shown beside need", pressure),
    Check(_CPU, "cgroup pressure", "stalls per container (cgroup v2 only)", cgroup_pressure),
    Check(
        _CPU,
        "port 8471",
        "the node agent's metrics are scraped here",
        lambda machine: port_free(METRICS_PORT),
    ),
)
