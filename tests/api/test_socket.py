"""Who can reach the Unix socket: its mode and its group, set before anybody can connect."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.api.server import Listen, Listeners, _unix
from fairlead.ports.faults import PermanentFault
from tests.api.servers import short_folder

CONNECT = """
import os, socket, sys
path, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
peer = socket.socket(socket.AF_UNIX)
sys.exit(0 if peer.connect_ex(path) == 0 else 1)
"""
GROUP, OTHERS, USER = 54_321, 54_322, 54_323


def can_connect(path: Path, uid: int, gid: int) -> bool:
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONNECT, str(path), str(uid), str(gid)], check=False
    )
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_only_the_group_reaches_the_socket() -> None:
    """0660 and a group: its members knock, others do not; by default everybody may."""
    with short_folder() as folder:
        path = folder / "a.sock"
        with _unix(Listen(path, None, 0o660, GROUP)):
            found = path.stat()
            assert (found.st_mode & 0o777, found.st_gid) == (0o660, GROUP)
            assert can_connect(path, USER, GROUP)
            assert not can_connect(path, USER, OTHERS)
        path.unlink()
        with _unix(Listen(path, None)):
            assert can_connect(path, USER, OTHERS)


def test_a_taken_port_leaves_no_socket_behind() -> None:
    """A command that found it would look for a server that never was."""
    with short_folder() as folder, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        path = folder / "a.sock"
        with pytest.raises(PermanentFault, match="choose another with --port"):
            Listeners(Listen(path, other.getsockname()[1]))
        assert not path.exists()


def test_up_takes_a_group_and_a_mode() -> None:
    """Bad ones are refused before anything starts."""

    def up(*arguments: str) -> subprocess.CompletedProcess[str]:
        with short_folder() as folder:
            return subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "fairlead",
                    "up",
                    "--data",
                    str(folder),
                    "--no-http",
                    *arguments,
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

    for arguments, said in (
        (("--socket-group", "no-such-group-here"), "unknown group 'no-such-group-here'"),
        (("--socket-mode", "rw"), "must be a mode such as 0660"),
        (("--socket-mode", "0060"), "lets the owner read and write"),
        (("--socket-mode", "7777"), "must be a mode such as 0660"),
        (("--socket-mode", "0689"), "must be a mode such as 0660"),
    ):
        done = up(*arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_file_that_is_no_socket_is_left_alone() -> None:
    """A path that was mistyped costs nobody a file."""
    with short_folder() as folder:
        path = folder / "thesis.txt"
        path.write_text("precious")
        with pytest.raises(PermanentFault, match="is not a socket"):
            _unix(Listen(path, None))
        assert path.read_text() == "precious"


def _up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", "up", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("whole", [("--user", "root"), ()])
def test_a_port_that_is_taken_leaves_no_directory(whole: tuple[str, ...]) -> None:
    """It left a ledger and its keys; one that was there stays as it is."""
    if whole and os.geteuid() != 0:
        pytest.skip("--user needs root")
    with short_folder() as folder, socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = _up("--data", str(folder / "new"), "--port", port, *whole)
        assert (done.returncode, "choose another with --port" in done.stderr) == (3, True)
        assert not (folder / "new").exists()
        (folder / "old").mkdir()
        _up("--data", str(folder / "old"), "--port", port, *whole)
        assert (folder / "old").exists()
        assert not (folder / "old" / "ledger.db").exists()


def test_a_data_directory_is_made_only_where_its_parent_is() -> None:
    """`--data /typo/x/y` made all three."""
    with short_folder() as folder:
        done = _up("--data", str(folder / "typo" / "data"), "--no-http")
        assert done.returncode == 2
        assert f"there is no directory {folder / 'typo'}" in " ".join(done.stderr.split())
        assert list(folder.iterdir()) == []
