"""The image of deploy/Dockerfile, built where no image can be pulled.

Its base is made by debootstrap, once, in the user's cache; buildah keeps the layers there, so that
a change of our sources builds the last layers only.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fairlead.dataplane.ebpf.toolchain import build as compile_programs
from fairlead.dataplane.ebpf.toolchain import object_file, tools_missing
from fairlead.host import files
from fairlead.kube.dev.assets import cache
from tests.kube.charts import ROOT

REFERENCE = "fairlead.dev/fairlead:test"
BASE = "localhost/fairlead-base"
PACKAGES = ("buildah", "debootstrap")
DOCKERFILE = "FROM scratch\nADD base.tar /\n"
# As buildah sees them in the build, and the image does not have them afterwards.
SETTINGS = "/run/build"
_PASSED = ("index-url", "extra-index-url", "trusted-host", "timeout", "proxy")


def missing_image() -> str | None:
    """What is missing to build it, and how to get it."""
    if os.geteuid() != 0:
        return "building an image needs root"
    for name in PACKAGES:
        if shutil.which(name) is None:
            return f"{name} is missing (apt-get install {' '.join(PACKAGES)})"
    return "; ".join(tools_missing()) or None


def build() -> Path:
    """The image as an archive that containerd imports."""
    folder = cache() / "image"
    folder.mkdir(parents=True, exist_ok=True)
    with files.holding(folder / "lock"):
        _make_base(folder)
        _make_programs(ROOT / "build" / "ebpf")
        _buildah(folder, *_build(folder), "-t", REFERENCE, str(ROOT))
        name = _buildah(folder, "images", "-q", "--no-trunc", REFERENCE).strip().split(":")[-1]
        archive = folder / f"{name}.tar"
        if not archive.exists():
            for older in folder.glob("*.tar"):
                older.unlink()
            draft = folder / "draft"
            draft.unlink(missing_ok=True)
            _buildah(folder, "push", "-q", REFERENCE, f"docker-archive:{draft}:{REFERENCE}")
            draft.rename(archive)
    return archive


def _build(folder: Path) -> list[str]:
    settings = folder / "settings"
    _write_settings(settings)
    volumes = [f"{settings}:{SETTINGS}:ro", f"{settings / 'pip.conf'}:/etc/pip.conf:ro"]
    mounted = [part for row in volumes for part in ("--volume", row)]
    file = str(ROOT / "deploy" / "Dockerfile")
    flags = ["build", "--layers", "--isolation=chroot", "--network=host", f"--file={file}"]
    return [*flags, *mounted, f"--build-arg=BASE={BASE}"]


def _make_base(folder: Path) -> None:
    if _buildah(folder, "images", "-q", "--filter", f"reference={BASE}"):
        return
    context = folder / "base"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    _run("debootstrap", "--variant=minbase", "bookworm", str(context / "root"))
    _run("tar", "-C", str(context / "root"), "-cf", str(context / "base.tar"), ".")
    shutil.rmtree(context / "root")
    (context / "Dockerfile").write_text(DOCKERFILE)
    _buildah(folder, "build", "-q", "--isolation=chroot", "-t", BASE, str(context))
    shutil.rmtree(context)


def _make_programs(folder: Path) -> None:
    """As `make image` does; an object that is there is kept, with the layer that holds it."""
    wanted = folder / object_file().name
    if not wanted.exists():
        shutil.rmtree(folder, ignore_errors=True)
        compile_programs(wanted)


def _write_settings(folder: Path) -> None:
    """How this machine reaches its package registry: pip's settings, and its authorities."""
    folder.mkdir(exist_ok=True)
    listed = _run(sys.executable, "-m", "pip", "config", "list")
    rows = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        rows[name.rpartition(".")[2]] = value.strip("'\"")
    lines = [f"{name} = {value}" for name, value in rows.items() if name in _PASSED]
    if "cert" in rows:
        shutil.copyfile(rows["cert"], folder / "ca.crt")
        lines.append(f"cert = {SETTINGS}/ca.crt")
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))


def _buildah(folder: Path, *arguments: str) -> str:
    kind = _run("stat", "-f", "-c", "%T", str(folder)).strip()
    driver = "vfs" if kind == "overlayfs" else "overlay"  # overlay on overlay does not work
    where = (f"--root={folder / 'store'}", f"--runroot={folder / 'run'}")
    return _run("buildah", *where, f"--storage-driver={driver}", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}"
    return done.stdout
