"""The units for systemd, as `systemd-analyze` reads them: nothing unknown, nothing ignored."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.s*"))
SYSTEM = Path("/lib/systemd/system")
PROGRAMS = ("fairlead", "kill")
"""What the units call; a program that they call and that is not here is found."""
pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH"
)


def verify(root: Path, *units: str) -> tuple[int, str]:
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", *units],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with systemd's own units, ours, and the programs that these call."""
    shutil.copytree(SYSTEM, tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr/bin").mkdir()
    for name in PROGRAMS:
        (tmp_path / "usr/bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "usr/bin" / name).chmod(0o755)
    for unit in UNITS:
        shutil.copy(unit, tmp_path / "usr/lib/systemd/system")
    return tmp_path


def test_every_unit_is_as_systemd_reads_it(root: Path) -> None:
    """Keys that systemd does not know are only warned of: a unit is verified without a word."""
    names = [unit.name for unit in UNITS]
    assert {"fairlead-up.service", "fairlead-up.socket"} < set(names)
    assert verify(root, *names) == (0, "")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("KillMode=process", "KillModee=process", "Unknown key"),
        ("ExecStart=fairlead", "ExecStart=fairleed", "is not executable"),
    ],
)
def test_a_unit_that_is_wrong_is_found(root: Path, was: str, now: str, said: str) -> None:
    unit = root / "usr/lib/systemd/system/fairlead-up.service"
    unit.write_text(unit.read_text().replace(was, now))
    assert said in verify(root, unit.name)[1]
