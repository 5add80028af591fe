"""Files appear whole or not at all; locks end with their holder."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.host import files

HOLD = """
import sys, time
from fairlead.host import files
assert files.try_lock(sys.argv[1]) is not None
print("held", flush=True)
time.sleep(600)
"""


def holder(path: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize("durable", [True, False])
def test_replace_puts_a_whole_new_version_in_place(tmp_path: Path, durable: bool) -> None:
    """A new file each time, with the wanted mode whatever the umask, and no draft left."""
    path, old = tmp_path / "a", os.umask(0o077)
    try:
        files.replace(path, b"one", durable=durable, mode=0o644)
        first = path.stat().st_ino
        keep = path.open("rb")
        files.replace(path, b"two", durable=durable, mode=0o644)
    finally:
        os.umask(old)
    with keep:
        assert keep.read() == b"one"
    assert path.read_bytes() == b"two"
    assert path.stat().st_ino != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_replace_leaves_the_old_version_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    files.replace(path, b"one")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.replace(path, b"two")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"one", ["a"])


def test_create_never_replaces(tmp_path: Path) -> None:
    files.replace(tmp_path / "a", b"one", new=True)
    with pytest.raises(FileExistsError):
        files.replace(tmp_path / "a", b"two", new=True)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_a_draft_gets_its_name_only_if_the_block_succeeds(tmp_path: Path) -> None:
    """And one that a killed process left behind is in nobody's way."""
    path = tmp_path / "a"
    (tmp_path / "a.draft").write_bytes(b"left behind")

    def fail() -> None:
        with files.draft(path) as name:
            Path(name).write_bytes(b"half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert os.listdir(tmp_path) == []
    with files.draft(path) as name:
        Path(name).write_bytes(b"whole")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"whole", ["a"])


def test_json_documents(tmp_path: Path) -> None:
    """None for a missing file, an error that names the file for a damaged one."""
    path = tmp_path / "a.json"
    assert files.read_json(path) is None
    files.replace_json(path, {"b": 1, "a": [None]})
    assert path.read_bytes() == b'{"a": [null], "b": 1}'
    assert files.read_json(path) == {"a": [None], "b": 1}
    for damage in (b"{", b"[]", b"\xff"):
        path.write_bytes(damage)
        with pytest.raises(OSError, match="is damaged") as caught:
            files.read_json(path)
        assert caught.value.errno == errno.EIO
        assert str(path) in str(caught.value.strerror)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    files.replace(tmp_path / "key", b"secret", new=True)
    assert files.read_private(tmp_path / "key") == b"secret"
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(PermissionError, match="its owner alone"):
        files.read_private(tmp_path / "key")


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_lock_ends_with_its_holder(tmp_path: Path, kind: str) -> None:
    """Killed is enough."""
    path = tmp_path / "lock"
    if kind == "directory":
        path.mkdir()
    process = holder(path)
    try:
        assert files.try_lock(path) is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    descriptor = files.try_lock(path)
    assert descriptor is not None
    os.close(descriptor)


def test_asking_does_not_take_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not files.locked(path)
    process = holder(path)
    try:
        assert files.locked(path)
    finally:
        process.kill()
        process.wait()
    assert not files.locked(path)


def test_the_lock_of_a_single_writer_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = files.lock_alone(path)
    with pytest.raises(files.LockHeld, match=f"process {os.getpid()}") as caught:
        files.lock_alone(path)
    assert caught.value.holder == str(os.getpid())
    os.close(descriptor)
    os.close(files.lock_alone(path))


def test_holding_waits_for_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = holder(path)
    began = time.monotonic()
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {process.pid}"])
    with files.holding(path):
        assert time.monotonic() - began > 0.2
        assert files.locked(path)
    process.wait()
    assert not files.locked(path)
