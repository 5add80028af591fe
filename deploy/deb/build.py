"""Builds the Debian package from the environment that `make venv` installed: `make deb`.

The package is self-contained and needs no network when it is installed: a virtual environment under
/usr/lib/fairlead with the distributions that `requirements/run.txt` pins, run by Debian's python3.
They are copied file by file from this environment, where pip checked their hashes. What only
plots and `sim whatif` need is left out. The core is compiled where a C compiler is present.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "compiled"))
import compile_core

PREFIX, EXTRAS = Path("usr/lib/fairlead"), ("gpu", "postgres")
PROGRAMS = {"fairlead": "fairlead.cli.main:run"}
SCRIPT = """#!/usr/lib/fairlead/bin/python3 -I
import sys
from {module} import {function}

sys.exit({function}())
"""
CONTROL = """Package: fairlead
Version: {version}
Section: admin
Priority: optional
Architecture: {architecture}
Depends: python3 (>= {minor}), python3 (<< {after}~), libc6
Maintainer: Fairlead maintainers <maintainers@fairlead.invalid>
Description: GPU budgets, fair sharing and preemption for a shared machine
 One control plane that shares GPUs between teams by budgets, explains every
 decision and records it in a tamper-evident ledger.
"""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")


def wanted(name: str, extras: tuple[str, ...], found: dict[str, str]) -> dict[str, str]:
    """The distributions that one needs, and their versions, itself included."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found and not extras:
        return found
    try:
        one = distribution(name)
    except PackageNotFoundError:
        return found  # for another platform or Python
    found[key] = one.version
    for line in one.requires or ():
        match = _REQUIREMENT.fullmatch(line)
        assert match is not None, line
        marker = match[3] or ""
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if extra is not None and extra[1] not in extras:
            continue
        inner = tuple(filter(None, re.split(r"\s*,\s*", match[2] or "")))
        wanted(match[1], inner, found)
    return found


def copy_distribution(name: str, site: Path) -> None:
    one = distribution(name)
    for file in one.files or ():
        source = Path(str(one.locate_file(file)))
        if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
            continue  # programs in bin/, and what Python made
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, site / file)


def put_compiled_core(site: Path) -> None:
    """Extension modules beside their sources; without a C compiler the sources do."""
    missing = compile_core.why_not()
    if missing is not None:
        sys.stderr.write(f"the core stays interpreted: {missing}\n")
        return
    folder = compile_core.build()
    for path in compile_core.extensions(folder):
        shutil.copyfile(folder / path, site / path)


def fill(root: Path, minor: str, extras: tuple[str, ...], *, compiled: bool) -> None:
    """All files of the package below `root`."""
    home = root / PREFIX
    site = home / "lib" / f"python{minor}" / "site-packages"
    for name in wanted("fairlead", extras, {}):
        if name != "fairlead":
            copy_distribution(name, site)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "src" / "fairlead", site / "fairlead", ignore=ignored)
    for name, place in (("fairlead_verify.py", "cli/kubectl"), ("verify.mjs", "api/web")):
        shutil.copyfile(ROOT / "verify" / name, site / "fairlead" / place / name)
    if compiled:
        put_compiled_core(site)
    # Users cannot write there: without this every command would compile its modules again.
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(
        [*compiled, "-s", str(root), "-p", "/", str(site)],
        check=False,  # a file of a dependency for another Python
        stdout=subprocess.DEVNULL,
    )
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {minor}\n"
    )
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to(f"/usr/bin/python{minor}")
    (root / "usr" / "bin").mkdir()
    for program, place in PROGRAMS.items():
        module, function = place.split(":")
        script = home / "bin" / program
        script.write_text(SCRIPT.format(module=module, function=function))
        script.chmod(0o755)
        (root / "usr" / "bin" / program).symlink_to(f"../lib/fairlead/bin/{program}")
    units = root / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in sorted((ROOT / "deploy" / "systemd").glob("*.s*")):
        shutil.copyfile(unit, units / unit.name)
    for folder in ("sysusers", "tmpfiles"):
        place = root / "usr" / "lib" / f"{folder}.d"
        place.mkdir()
        shutil.copyfile(ROOT / "deploy" / "deb" / f"{folder}.conf", place / "fairlead.conf")
    (root / "etc" / "fairlead").mkdir(parents=True)
    shutil.copyfile(ROOT / "deploy" / "deb" / "up.env", root / "etc" / "fairlead" / "up.env")
    about = root / "usr" / "share" / "doc" / "fairlead"
    about.mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", about / "copyright")
    shutil.copyfile(ROOT / "CHANGELOG.md", about / "NEWS.md")
    for bill in sorted((ROOT / "dist").glob("fairlead-*.cdx.json")):  # `make sbom`
        shutil.copyfile(bill, about / "sbom.cdx.json")


def build(
    out: Path,
    python: str,
    *,
    extras: tuple[str, ...] = EXTRAS,
    pack: str = "xz",
    compiled: bool = True,
) -> Path:
    """The package; its name says version and architecture."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    minor = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    theirs, ours = minor.stdout.strip(), "{}.{}".format(*sys.version_info[:2])
    if theirs != ours:
        raise SystemExit(
            f"{python} is Python {theirs} and this environment has {ours}: compiled modules would "
            f"not fit (make clean, then make deb PYTHON={python})"
        )
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    version = distribution("fairlead").version
    with tempfile.TemporaryDirectory(prefix="fairlead-deb-") as made:
        root = Path(made) / "root"
        (root / PREFIX).mkdir(parents=True)
        root.chmod(0o755)
        fill(root, theirs, extras, compiled=compiled)
        control = root / "DEBIAN"
        control.mkdir()
        after = f"3.{int(theirs.split('.')[1]) + 1}"
        words = {"version": version, "architecture": architecture, "minor": theirs, "after": after}
        (control / "control").write_text(CONTROL.format(**words))
        (control / "conffiles").write_text("/etc/fairlead/up.env\n")
        for script in ("postinst", "prerm", "postrm"):
            shutil.copyfile(ROOT / "deploy" / "deb" / script, control / script)
            (control / script).chmod(0o755)
        for path in root.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
            elif path.is_file() and not path.is_symlink() and not path.stat().st_mode & 0o100:
                path.chmod(0o644)
        out.mkdir(parents=True, exist_ok=True)
        package = out / f"fairlead_{version}_{architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", f"-Z{pack}", "--build"]
        subprocess.run([*command, str(root), str(package)], check=True, stdout=subprocess.DEVNULL)
    return package


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--python", default="/usr/bin/python3", help="which Debian runs it with")
    given = parser.parse_args()
    sys.stdout.write(f"{build(given.out, given.python)}\n")
