"""Small file systems of our own, for tests that are marked `component("mount")`."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """`place` as a file system of this size, such as 64k."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "small", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def missing_mount() -> str | None:
    """Why nothing can be mounted here; None when it can."""
    try:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "probe", "64k"):
            return None
    except FileNotFoundError:
        return "mount is not on PATH (apt-get install mount)"
    except subprocess.CalledProcessError as error:
        return f"mounting a small tmpfs is not allowed: {error.stderr.decode().strip()}"
