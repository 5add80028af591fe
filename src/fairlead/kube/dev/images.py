"""Container images made from static programs: nothing can be pulled where only registries of
packages are reachable.

`real_node` and tests call it; `ctr images import` reads the result.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_FOLDERS = {"tmp": 0o1777, "etc": 0o755}


def write_image(
    target: Path, reference: str, *, entrypoint: Sequence[str], programs: Mapping[str, Path]
) -> None:
    """A docker archive with these programs at the top of its file system, and nothing else.

    The same programs give the same bytes.
    """
    layer = _layer(programs)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "fairlead"}],
    }
    data = json.dumps(config, sort_keys=True).encode()
    name = f"{hashlib.sha256(data).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, name, data)
        _add(archive, f"{digest}/layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(programs: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in _FOLDERS.items():
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for name, path in sorted(programs.items()):
            _add(archive, name, path.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
