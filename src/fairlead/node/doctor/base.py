"""Checks of what every governor needs, and of the optional parts around it."""

import os
import platform
import shutil
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fairlead.host.paths import default_state_directory
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

PYTHON_MIN = (3, 11)
CONTROL_PORT = 8470
# An hour of flight recorder at the fastest tick is about 50 MB; a gigabyte is room for a day.
FREE_WARN_BYTES = 2**30
FREE_MIN_BYTES = 64 * 2**20
# Clock sources that cost microseconds a reading or tick in milliseconds.
POOR_CLOCKS = frozenset({"acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit"})
# A wall clock before this has lost its battery: this code did not exist then (2024-01-01 UTC).
WALL_CLOCK_MIN_SECONDS = 1_704_067_200
_CLOCK_FOLDER = "/sys/devices/system/clocksource/clocksource0"


def python(machine: Machine) -> Finding:
    """The interpreter that runs us."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        return missing(found, machine.install("python3.11"))
    return ok(found)


def clock(machine: Machine) -> Finding:
    """Does time pass, forwards and finely enough, and is the date believable?"""
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
        cure = (
            f"echo {better[0]} > {_CLOCK_FOLDER}/current_clocksource"
            if better
            else "the kernel offers no better source: ask the operator of the virtual machine"
        )
        return warn(f"{found}: slow to read", cure)
    return ok(found)


def state_directory(machine: Machine) -> Finding:
    """Room and permission where the ledger and the recorder will live."""
    wanted = default_state_directory()
    # os.path.exists, unlike Path.exists, also says no where a parent may not be entered.
    place = next((path for path in (wanted, *wanted.parents) if os.path.exists(path)), Path("/"))
    free = shutil.disk_usage(place).free
    found = f"{wanted}: {free / 2**30:.1f} GiB free"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return missing(
            f"{wanted}: {place} is not a directory this user may write to",
            f"make {place} a writable directory"
            if os.geteuid() == 0
            else "export XDG_STATE_HOME=DIRECTORY with a directory of your own",
        )
    if free < FREE_WARN_BYTES:
        status = CheckStatus.MISSING if free < FREE_MIN_BYTES else CheckStatus.WARN
        return Finding(status, found, f"free some space on the file system of {place}")
    return ok(found)


def port_free(port: int) -> Finding:
    """Bind to `port` on loopback and let go again."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As servers do: a connection that is still winding down must not look like a listener.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
        except OSError as error:
            return warn(
                f"127.0.0.1:{port} cannot be bound ({error.strerror})",
                f"ss -ltnp 'sport = :{port}' shows who holds it (a running Fairlead is fine)",
            )
    return ok(f"127.0.0.1:{port} is free")


def privileges(machine: Machine) -> Finding:
    """Root, or the capabilities that the governors ask for."""
    wanted = ("CAP_SYS_ADMIN", "CAP_BPF", "CAP_NET_ADMIN")
    lacking = [name for name in wanted if name not in machine.capabilities]
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    if not lacking:
        return ok(f"{who} with {', '.join(wanted)}")
    return warn(
        f"{who} without {', '.join(lacking)}",
        "run the node and traffic agents as root, or with AmbientCapabilities= in their units",
    )


def systemd(machine: Machine) -> Finding:
    """Is systemd in charge, so that units can be installed?"""
    # sd_booted(3): this folder exists exactly when systemd is process 1.
    if machine.path("/run/systemd/system").is_dir():
        return ok("in charge of this machine")
    installed = "installed, but not running" if machine.program("systemctl") else "not installed"
    return missing(installed, "start the agents from your own init, as deploy/systemd does")


def module(name: str, extra: str) -> Finding:
    """An optional Python package; found, not imported: numpy takes 100 ms."""
    cure = f"pip install 'fairlead[{extra}]'"
    if find_spec(name) is None:
        return missing("not installed", cure)
    try:
        return ok(f"{name} {version(name)}")
    except PackageNotFoundError:
        return warn(f"{name} is there without its package's record", cure)


def program(machine: Machine, *names: str, cure: str) -> Finding:
    """A program that some optional part runs."""
    place = machine.program(*names)
    return ok(place) if place else missing("not on PATH", cure)


def postgres(machine: Machine) -> Finding:
    """A PostgreSQL server, also where Debian keeps it: off the PATH."""
    kept = sorted(machine.path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if kept and not machine.program("postgres"):
        return ok(str(kept[-1]))
    return program(
        machine, "postgres", cure=machine.install("postgresql", elsewhere="postgresql-server")
    )


_BASE = Governor.BASE
CHECKS = (
    Check(_BASE, "python", "everything is written in it (3.11 or later)", python, required=True),
    Check(_BASE, "clock", "leases, cooldowns and ticks are counted on it", clock, required=True),
    Check(
        _BASE,
        "state directory",
        "ledger, recorder and original limits are kept here",
        state_directory,
        required=True,
    ),
    Check(
        _BASE,
        "port 8470",
        "the control plane's API and web page listen here",
        lambda machine: port_free(CONTROL_PORT),
    ),
    Check(
        _BASE,
        "privileges",
        "cpu writes limits, traffic loads eBPF; the rest needs none",
        privileges,
    ),
    Check(_BASE, "systemd", "keeps the agents running across reboots (optional)", systemd),
    Check(
        _BASE,
        "numpy",
        "cpu and gpu decide for large fleets with it (optional)",
        lambda machine: module("numpy", "fleet"),
    ),
    Check(
        _BASE,
        "matplotlib",
        "simulation reports draw their plots with it (optional)",
        lambda machine: module("matplotlib", "plots"),
    ),
    Check(
        _BASE,
        "postgres",
        "the ledger of several replicas; one machine uses SQLite (optional)",
        postgres,
    ),
    Check(
        _BASE,
        "chromium",
        "tests of the web page run in it (development only)",
        lambda machine: program(
            machine,
            "chromium",
            "chromium-browser",
            "google-chrome",
            cure=machine.install("chromium"),
        ),
    ),
)
