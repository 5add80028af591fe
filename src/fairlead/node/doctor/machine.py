"""What a check of `fairlead doctor` is, the machine it looks at, and the runner.

A check is a small function from a `Machine` to a `Finding`. None may change the machine: the only
trace of an examination is the probe's cgroup, and that is removed again (see `quota`).
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fairlead.node.cgroup_mounts import CgroupHost, Mount, below, read_cgroup_host, read_mounts
from fairlead.node.doctor.quota import QuotaProbe, probe_quota
from fairlead.ports.faults import Fault

_FILE_BYTES_MAX = 65_536
# Where administrators' programs live; an ordinary user's PATH often leaves these out.
_SYSTEM_FOLDERS = ("usr/local/sbin", "usr/sbin", "sbin")
# Bits of include/uapi/linux/capability.h that some governor asks for.
_CAPABILITIES = {1: "CAP_DAC_OVERRIDE", 12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN", 39: "CAP_BPF"}
_INSTALLERS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}


class CheckStatus(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"  # it is there, with restrictions
    MISSING = "missing"  # it is not there, or could not be looked at


class Governor(StrEnum):
    """Which part needs what a check looks for, in the order of the report."""

    BASE = "base"
    CPU = "cpu"
    GPU = "gpu"
    TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at the machine found, and how to put it right."""

    status: CheckStatus
    found: str
    cure: str = ""


def ok(found: str) -> Finding:
    return Finding(CheckStatus.OK, found)


def warn(found: str, cure: str) -> Finding:
    return Finding(CheckStatus.WARN, found, cure)


def missing(found: str, cure: str) -> Finding:
    return Finding(CheckStatus.MISSING, found, cure)


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the machine. `why` says which governor's work depends on the answer."""

    governor: Governor
    name: str
    why: str
    look: "Look"
    required: bool = False  # the embedded control plane does not run without it


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check together with its finding: one row of the report."""

    governor: Governor
    name: str
    status: CheckStatus
    found: str
    why: str
    cure: str
    required: bool


@dataclass
class Machine:
    """The machine under examination: this one, or a recorded tree below `root`.

    What several checks need is looked up once. A failing look-up raises again in each check that
    asks, so that each is reported.
    """

    root: Path = Path("/")
    search_path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))

    def path(self, absolute: str) -> Path:
        return below(self.root, absolute)

    def text(self, absolute: str) -> str | None:
        try:
            with self.path(absolute).open("rb") as file:
                return os.fsdecode(file.read(_FILE_BYTES_MAX)).strip()
        except OSError:
            return None

    def program(self, *names: str) -> str | None:
        """Where the first of `names` is installed, looking beyond a user's short PATH."""
        # Programs from PyPI are beside the interpreter, also of an environment not activated.
        folders = [self.search_path, os.path.dirname(sys.executable)]
        folders += [str(self.root / folder) for folder in _SYSTEM_FOLDERS]
        places = (shutil.which(name, path=os.pathsep.join(folders)) for name in names)
        return next((place for place in places if place), None)

    def install(self, debian: str, elsewhere: str | None = None) -> str:
        """The command that installs a package, as this distribution spells it."""
        release = self.text("/etc/os-release") or ""
        pairs = (line.partition("=") for line in release.splitlines())
        fields = {key: value.strip("\"'") for key, _, value in pairs}
        families = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
        command = next((_INSTALLERS[name] for name in families if name in _INSTALLERS), None)
        package = debian if command in {None, "apt-get install"} else elsewhere or debian
        return f"{command} {package}" if command else f"install the package {package}"

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        return read_mounts(self.root)

    @cached_property
    def cgroups(self) -> CgroupHost:
        return read_cgroup_host(self.root)

    @cached_property
    def capabilities(self) -> frozenset[str]:
        return held(self.text("/proc/self/status") or "")

    @cached_property
    def probe(self) -> QuotaProbe:
        """Whether a quota can really be written: tried once, in a cgroup of our own."""
        return probe_quota(self.cgroups, capabilities=self.capabilities)


Look = Callable[[Machine], Finding]


def held(status: str) -> frozenset[str]:
    """Capabilities in the effective set of `/proc/self/status`; none when it does not say."""
    for line in status.split("\n"):
        key, _, value = line.partition(":")
        digits = value.strip()
        # int() alone would also take signs, underscores, 0x and other scripts' digits.
        if key == "CapEff" and digits and set(digits.lower()) <= set("0123456789abcdef"):
            mask = int(digits[-16:], 16)
            return frozenset(name for bit, name in _CAPABILITIES.items() if mask >> bit & 1)
    return frozenset()


def examine(machine: Machine, checks: Iterable[Check]) -> tuple[CheckResult, ...]:
    """Run every check; one that breaks is reported as missing and stops no other."""
    return tuple(_result(check, machine) for check in checks)


def _result(check: Check, machine: Machine) -> CheckResult:
    try:
        finding = check.look(machine)
    except Exception as error:  # noqa: BLE001 - one surprise must not hide the other checks
        text = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
        cure = "put right what the error names, then run `fairlead doctor` again"
        finding = missing(f"could not be checked: {text}", cure)
    found, cure = printable(finding.found), printable(finding.cure)
    return CheckResult(
        check.governor, check.name, finding.status, found, check.why, cure, check.required
    )


def printable(text: str) -> str:
    """One line that any terminal can show: paths and error texts may hold any byte."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def base_works(results: Sequence[CheckResult]) -> bool:
    return not any(result.required and result.status is CheckStatus.MISSING for result in results)
