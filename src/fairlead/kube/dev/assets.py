"""Finds the programs of a cluster, or builds them once: `make kube-assets`.

    programs = ensure(frozenset({AssetSet.CLUSTER}), report=print)
    programs.path("kube-apiserver")

Looked for in KUBEBUILDER_ASSETS, if all that is wanted is there, then below the user's cache. What
is missing is built with Go, one program after the other, each installed whole: an interrupted
build continues with the next one. A lock keeps two processes from building at once.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.host import files
from fairlead.host.paths import user_cache_directory
from fairlead.kube.dev import toolchain
from fairlead.kube.dev.pins import KUBERNETES, AssetSet, GoSource, sources_of
from fairlead.kube.dev.toolchain import Report
from fairlead.ports.faults import PermanentFault, faults

VARIABLE = "KUBEBUILDER_ASSETS"
BUILD = "make kube-assets"
WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder with every program that was asked for."""

    directory: Path

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def data(self, source: str) -> Path:
        """The folders that a source brings beside its programs, such as Kueue's CRDs."""
        return self.directory.parent / "share" / source


def cache() -> Path:
    """Where programs are built to; a folder for each version of Kubernetes."""
    return user_cache_directory() / "kube"


def home() -> Path:
    return cache() / KUBERNETES.version


def find(wanted: frozenset[AssetSet]) -> Programs | None:
    """Programs that are there already; None when one is missing."""
    given = _given()
    if given is not None and not lacking_in(given, wanted):
        return Programs(given)
    return None if missing(wanted) else Programs(home() / "bin")


def explain_missing(wanted: frozenset[AssetSet]) -> str | None:
    """What is missing and how to get it; None when all is there."""
    if find(wanted) is not None:
        return None
    flags = "".join(f" --{each}" for each in sorted(wanted - {AssetSet.CLUSTER}))
    build = f"fairlead kube assets{flags}" if flags else BUILD
    names = ", ".join(program for _, program in missing(wanted))
    return f"Kubernetes programs are not built: {names} ({build})"


def lacking_in(directory: Path, wanted: frozenset[AssetSet]) -> list[str]:
    """Programs that a folder of the user lacks."""
    return [
        name
        for source in sources_of(wanted)
        for name in source.programs
        if not os.access(directory / name, os.X_OK)
    ]


def missing(wanted: frozenset[AssetSet]) -> list[tuple[GoSource, str]]:
    """Programs that the cache lacks, or holds from other pins."""
    return [
        (source, name)
        for source in sources_of(wanted)
        for name in source.programs
        if not _is_built(source, name)
    ]


def ensure(wanted: frozenset[AssetSet], report: Report) -> Programs:
    """Find the programs or build what is missing; `report` takes lines of progress."""
    given = _given()
    if given is not None:
        lacking = lacking_in(given, wanted)
        if not lacking:
            return Programs(given)
        report(f"{VARIABLE} is not used: {given} lacks {', '.join(lacking)}")
    if missing(wanted):
        with faults(f"make {home()}"):
            for folder in ("bin", "stamps", "log", "share"):
                (home() / folder).mkdir(parents=True, exist_ok=True)
        with _alone(report):
            _build(missing(wanted), report)
    return Programs(home() / "bin")


def _given() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def _stamp(name: str) -> Path:
    return home() / "stamps" / name


def _is_built(source: GoSource, name: str) -> bool:
    try:
        same = _stamp(name).read_text() == source.digest()
    except FileNotFoundError:
        return False
    return same and os.access(home() / "bin" / name, os.X_OK)


@contextmanager
def _alone(report: Report) -> Iterator[None]:
    """One builder at a time: a second one waits, then finds what the first has built."""
    lock, waited = cache() / "lock", False
    with faults(f"lock {lock}"):
        while True:
            try:
                descriptor = files.lock_alone(lock)
                break
            except files.LockHeld as held:
                if not waited:
                    report(f"waiting: process {held.holder} is building")
                waited = True
                time.sleep(WAIT_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _build(rows: list[tuple[GoSource, str]], report: Report) -> None:
    if not rows:
        return
    go = toolchain.find_go(cache(), report)
    for number, (source, name) in enumerate(rows, start=1):
        title = f"[{number}/{len(rows)}] {name} ({source.name} {source.version})"
        report(f"{title}: building")
        began = time.monotonic()
        _build_one(go, source, name)
        report(f"{title}: built in {time.monotonic() - began:.0f} s")


def _build_one(go: Path, source: GoSource, name: str) -> None:
    """One program, under its name only when it is whole; its stamp comes last."""
    log = home() / "log" / f"{name}.log"
    settings = {"CGO_ENABLED": "1", **_seccomp(log)} if source.seccomp else {}
    env = toolchain.environment(**settings)
    tags = ["-tags", "seccomp netgo osusergo"] if source.seccomp else []
    package = "/".join(part for part in (source.module, source.programs[name]) if part)
    with faults(f"install {name}"):
        _stamp(name).unlink(missing_ok=True)
    for folder in source.data:
        _copy_data(go, source, folder, env)
    with faults(f"install {name}"), files.draft(home() / "bin" / name, mode=0o755) as output:
        toolchain.run(
            [str(go), "build", *tags, "-ldflags", source.linker_flags(), "-o", output, package],
            doing=f"build {name}",
            log=log,
            env=env,
            cwd=source.folder,
        )
    with faults(f"install {name}"):
        files.replace(_stamp(name), source.digest().encode(), mode=0o644)


def _copy_data(go: Path, source: GoSource, folder: str, env: dict[str, str]) -> None:
    """A folder of the module beside the programs, replaced whole."""
    command = [str(go), "mod", "download", "-json", f"{source.module}@v{source.version}"]
    done = subprocess.run(
        command, cwd=source.folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log = home() / "log" / f"{source.name}.log"
        log.write_text(done.stdout + done.stderr)
        raise toolchain.explain(f"download {source.name}", done.stdout + done.stderr, log)
    target = home() / "share" / source.name / folder
    draft = home() / "share" / f"{source.name}.draft"
    with faults(f"copy {folder} of {source.name}"):
        shutil.rmtree(draft, ignore_errors=True)
        # Modules are read-only in Go's cache; the copy is the user's.
        shutil.copytree(
            Path(json.loads(done.stdout)["Dir"]) / folder, draft, copy_function=shutil.copyfile
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)


def _seccomp(log: Path) -> dict[str, str]:
    """Where libseccomp is: installed, else unpacked from Debian's package beside the programs."""
    for program in ("cc", "pkg-config"):
        if shutil.which(program) is None:
            raise PermanentFault(f"cannot build runc: apt-get install gcc pkg-config ({program})")
    if subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False).returncode == 0:
        return {}
    root = cache() / "libseccomp"
    if not root.is_dir():
        draft = cache() / "libseccomp.draft"
        with faults("unpack libseccomp"):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
        doing = "fetch libseccomp-dev (apt-get install libseccomp-dev does as well)"
        toolchain.run(["apt-get", "download", "libseccomp-dev"], doing=doing, log=log, cwd=draft)
        (package,) = draft.glob("*.deb")
        toolchain.run(["dpkg", "-x", package.name, "."], doing=doing, log=log, cwd=draft)
        with faults("unpack libseccomp"):
            draft.rename(root)
    (folder,) = root.glob("usr/lib/*/pkgconfig")
    return {"PKG_CONFIG_PATH": str(folder), "PKG_CONFIG_SYSROOT_DIR": str(root)}
