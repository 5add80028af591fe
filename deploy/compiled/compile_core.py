"""Compiles the modules of core that only decide, with mypyc, from the source as it is.

    python deploy/compiled/compile_core.py     # prints a folder for PYTHONPATH: build/compiled/KEY

A folder holds a copy of core with an extension module beside each compiled `.py`, and links to the
other packages. KEY is the hash of all that the build depends on: a folder is never stale, and what
was built once is found again. The wheel (`wheel_hook.py`) and the Debian package take the
extension modules from there, and the tests and benchmarks run on it.

Modules with a dataclass stay interpreted: documents are derived from the annotations of their
fields (`fairlead.schema.derive`), which mypyc erases. So do those of `INTERPRETED`. Those of
`NATIVE`, whose values are read or made thousands of times in a decision, are compiled from a copy
that says more (`native_values.py`).
"""

import ast
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from native_values import with_constructors, without_collection

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CORE = SOURCE / "fairlead" / "core"
BUILDS = ROOT / "build" / "compiled"
INTERPRETED = ("canonical.py", "sighting.py")
"""The first has a subclass of a built-in type, which mypyc does not compile; sightings become
documents like dataclasses."""
NATIVE = (
    "gpu/conflict.py",
    "lottery/model.py",
    "reasons.py",
    "traffic/model.py",
    "traffic/state.py",
)
ACYCLIC = ("claims.py", "gpu/resolve.py")
"""Their objects live as long as a decision and hold no reference back: the garbage collector need
not look at them."""
TOOLS = ("mypy", "setuptools")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
GROUP = "fairlead_core"
"""mypyc puts all modules into one library of this name, beside the package."""

# Beside core itself, which sees only the types of what it imports.
SETUP = """\
import sys
from setuptools import setup
from mypyc.build import mypycify

out, *modules = sys.argv[1:]
options = ["--strict", "--python-version", "{python}", "--no-warn-unused-configs"]
setup(
    name="fairlead-core",
    packages=[],
    ext_modules=mypycify(
        [*options, *modules], opt_level="3", debug_level="0", group_name="{group}"
    ),
    script_args=["--quiet", "build_ext", "--build-lib", out, "--build-temp", "objects"],
)
"""


def why_not() -> str | None:
    """What is missing for a build here; None: nothing."""
    for tool in TOOLS:
        try:
            version(tool)
        except PackageNotFoundError:
            return f"{tool} is not installed (make dev)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler, {compiler}"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.exists() else f"the headers of Python are missing, {header.name}"


def compiled_modules() -> list[Path]:
    """Relative to the source: the modules that define functions or methods, and no dataclass."""
    return [
        path.relative_to(SOURCE)
        for path in sorted(CORE.rglob("*.py"))
        if str(path.relative_to(CORE)) in NATIVE or _is_plain(path)
    ]


def _is_plain(path: Path) -> bool:
    if path.name in ("__init__.py", *INTERPRETED):
        return False
    module = ast.parse(path.read_text())
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    marks = [ast.unparse(mark) for each in classes for mark in each.decorator_list]
    functions = any(isinstance(node, ast.FunctionDef) for node in ast.walk(module))
    return functions and not any(mark.startswith("dataclass") for mark in marks)


def key() -> str:
    """The hash of the sources of core, of this file, of the tools and of this Python."""
    whole = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *sorted(CORE.rglob("*.py"))]:
        whole.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    for tool in TOOLS:
        whole.update(f"{tool} {version(tool)}\0".encode())
    whole.update(f"{sys.version}\0{SUFFIX}".encode())
    return whole.hexdigest()[:16]


def build() -> Path:
    """The folder of this source's build; builds it unless it is there."""
    folder = BUILDS / key()
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two lanes of the gate may ask at once
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=BUILDS) as made:
                _fill(Path(made) / "whole", Path(made) / "work")
                (Path(made) / "whole").rename(folder)
        _link(folder)
    return folder


def _fill(whole: Path, work: Path) -> None:
    source = work / "fairlead"
    source.mkdir(parents=True)
    shutil.copyfile(SOURCE / "fairlead" / "__init__.py", source / "__init__.py")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CORE, source / "core", ignore=ignored)
    shutil.copytree(CORE, whole / "fairlead" / "core", ignore=ignored)
    for name in NATIVE:
        values = source / "core" / name
        values.write_text(with_constructors(values.read_text()))
    for name in ACYCLIC:
        module = source / "core" / name
        module.write_text(without_collection(module.read_text()))
    python = "{}.{}".format(*sys.version_info[:2])
    modules = [str(path) for path in compiled_modules()]
    command = [sys.executable, "-c", SETUP.format(python=python, group=GROUP), str(whole), *modules]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"mypyc failed:\n{done.stdout}{done.stderr}")
    inexact = inexact_divisions((work / "build" / f"__native_{GROUP}.c").read_text())
    if inexact:
        raise SystemExit(f"integers are divided as doubles, use units.quotient: {inexact}")


def inexact_divisions(c_source: str) -> list[str]:
    """The compiled functions that divide an integer by an integer.

    mypyc divides them as doubles up to 2^62; Python rounds once, whatever their size. A digit of a
    recorded decision hangs on that beyond 2^53.
    """
    found, function = set[str](), ""
    for line in c_source.splitlines():
        if line and not line[0].isspace() and "CPyDef_" in line and line.endswith("{"):
            function = line.split("CPyDef_", 1)[1].split("(", 1)[0]
        if "CPyTagged_TrueDivide(" in line:
            found.add(function)
    return sorted(found)


def _link(folder: Path) -> None:
    """Everything but core as it is now: it is not compiled and not part of the key."""
    for path in (SOURCE / "fairlead").iterdir():
        link = folder / "fairlead" / path.name
        if path.name not in ("core", "__pycache__") and not link.exists():
            link.symlink_to(path)


def extensions(folder: Path) -> list[Path]:
    """The extension modules of a build, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob(f"*{SUFFIX}"))


if __name__ == "__main__":
    missing = why_not()
    if missing is not None:
        raise SystemExit(f"not compiled: {missing}")
    sys.stdout.write(f"{build()}\n")
