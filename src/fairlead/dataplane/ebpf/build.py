"""Compiles the eBPF programs: `build()`, which is `fairlead traffic build-ebpf`.

The object's name holds a digest of its sources, so that a new release never loads an old object.
Compiled once on a machine, or elsewhere: the object is the same for every kernel, because it uses
nothing but the kernel's stable interface.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from fairlead.ports.faults import PermanentFault

SOURCES = Path(__file__).with_name("bpf")
MAIN = "fairlead.bpf.c"
HEADER = Path("/usr/include/bpf/bpf_helpers.h")
_CLANG_SECONDS_MAX = 120
# -g: the maps are described in BTF. -mcpu=v3: atomic operations that return the old value.
_OPTIONS = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra")


def object_file() -> Path:
    """Where the compiled programs of this release are, or will be."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in {".c", ".h"}:
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return _cache_directory() / f"ebpf-{digest.hexdigest()[:16]}.bpf.o"


def _cache_directory() -> Path:
    """Root loads what it finds there, so root's is a directory that only root writes to."""
    if os.geteuid() == 0:
        return Path("/var/cache/fairlead")
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "fairlead"


def tools_missing() -> list[str]:
    """What stands between the sources and an object, each with its cure."""
    missing = []
    if shutil.which("clang") is None:
        missing.append("clang is not on PATH (apt-get install clang)")
    if not HEADER.is_file():
        missing.append(f"{HEADER} is missing (apt-get install libbpf-dev)")
    return missing


def build(target: Path | None = None) -> Path:
    """Compile the programs and return where they are; PermanentFault says what is missing."""
    missing = tools_missing()
    if missing:
        raise PermanentFault("the eBPF programs cannot be compiled: " + "; ".join(missing))
    target = target or object_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as place:
            fresh = Path(place) / target.name
            _compile(fresh)
            os.replace(fresh, target)
    except OSError as error:
        raise PermanentFault(f"{target}: cannot be written ({error.strerror})") from error
    return target


def _compile(target: Path) -> None:
    # Debian keeps asm/types.h in a folder that clang looks into for no target but the host's.
    machine = Path("/usr/include") / f"{platform.machine()}-linux-gnu"
    command = ["clang", *_OPTIONS, f"-I{machine}", "-c", str(SOURCES / MAIN), "-o", str(target)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_CLANG_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        raise PermanentFault(f"clang took longer than {_CLANG_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise PermanentFault(f"clang failed:\n{done.stderr.strip()}")
