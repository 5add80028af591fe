"""The checkup behind `fairlead doctor`: what a check is, the machine it looks at, the runner.

A check is a small function from a `Machine` to a `Finding`; the checks themselves live in
`checks_base`, `checks_cpu`, `checks_gpu` and `checks_traffic`. None may change the machine: the
only trace a checkup leaves is the probe cgroup, and that is removed again (see `quota_probe`).
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fairlead.node.capabilities import held
from fairlead.node.host import CgroupHost, below, read_cgroup_host, read_mounts
from fairlead.node.mounts import Mount
from fairlead.node.quota_probe import QuotaProbe, probe_quota
from fairlead.ports.faults import Fault

_FILE_BYTES_MAX = 65_536
# Where administrators' programs live; an ordinary user's PATH often leaves these out.
_SYSTEM_FOLDERS = ("usr/local/sbin", "usr/sbin", "sbin")
_INSTALLERS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}


class Status(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"  # it is there, with restrictions
    MISSING = "missing"  # it is not there, or could not be looked at


class Governor(StrEnum):
    """Who needs what a check looks for, in the order of the report."""

    BASE = "base"
    CPU = "cpu"
    GPU = "gpu"
    TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at the machine found, and how to put it right."""

    status: Status
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the machine. `why` says which governor's work hangs on the answer."""

    governor: Governor
    name: str
    why: str
    look: Callable[["Machine"], Finding]
    required: bool = False  # the embedded control plane does not run without it


@dataclass(frozen=True, slots=True)
class Result:
    """A check together with its finding: one row of the report."""

    governor: Governor
    name: str
    status: Status
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
        """The file to open for an absolute path of the machine."""
        return below(self.root, absolute)

    def text(self, absolute: str) -> str | None:
        """The beginning of a small file; None if it cannot be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return os.fsdecode(file.read(_FILE_BYTES_MAX)).strip()
        except OSError:
            return None

    def program(self, *names: str) -> str | None:
        """Where the first of `names` is installed, looking beyond a user's short PATH."""
        # Programs that come from PyPI stand beside the interpreter of a virtual environment
        # that nobody activated.
        folders = [self.search_path, os.path.dirname(sys.executable)]
        folders += [str(self.root / folder) for folder in _SYSTEM_FOLDERS]
        places = (shutil.which(name, path=os.pathsep.join(folders)) for name in names)
        return next((place for place in places if place), None)

    def install(self, debian: str, elsewhere: str | None = None) -> str:
        """The command that installs a package, as this distribution spells it."""
        release = self.text("/etc/os-release") or ""
        pairs = (line.partition("=") for line in release.splitlines())
        told = {key: value.strip("\"'") for key, _, value in pairs}
        families = [told.get("ID", ""), *told.get("ID_LIKE", "").split()]
        command = next((_INSTALLERS[each] for each in families if each in _INSTALLERS), None)
        name = debian if command in {None, "apt-get install"} else elsewhere or debian
        return f"{command} {name}" if command else f"install the package {name}"

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """What is mounted; PermanentFault where that cannot be read."""
        return read_mounts(self.root)

    @cached_property
    def cgroups(self) -> CgroupHost:
        """Where the cpu controller lives; PermanentFault where there is none."""
        return read_cgroup_host(self.root)

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """What this process may do beyond an ordinary user."""
        return held(self.text("/proc/self/status") or "")

    @cached_property
    def probe(self) -> QuotaProbe:
        """Whether a quota can really be written: tried once, in a cgroup of our own."""
        return probe_quota(self.cgroups, capabilities=self.capabilities)


def examine(machine: Machine, checks: Iterable[Check]) -> tuple[Result, ...]:
    """Run every check; one that breaks is reported as missing and stops no other."""
    return tuple(_result(check, _look(check, machine)) for check in checks)


def _look(check: Check, machine: Machine) -> Finding:
    try:
        return check.look(machine)
    except Fault as error:
        return _unchecked(str(error))
    except Exception as error:  # noqa: BLE001 - a checkup that stops at the first surprise is none
        return _unchecked(f"{type(error).__name__}: {error}")


def _unchecked(told: str) -> Finding:
    return Finding(
        Status.MISSING,
        f"could not be checked: {told}",
        "put right what the error names, then run `fairlead doctor` again",
    )


def _result(check: Check, finding: Finding) -> Result:
    return Result(
        governor=check.governor,
        name=check.name,
        status=finding.status,
        found=printable(finding.found),
        why=check.why,
        cure=printable(finding.cure),
        required=check.required,
    )


def printable(text: str) -> str:
    """One line that any terminal can show: paths and error texts may hold any byte."""
    shown = (char if char.isprintable() else repr(char)[1:-1] for char in text)
    return "".join(shown)


def base_works(results: Sequence[Result]) -> bool:
    """Whether the embedded control plane can run here."""
    return not any(each.required and each.status is Status.MISSING for each in results)
