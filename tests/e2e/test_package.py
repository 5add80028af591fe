"""The Debian package: built, installed, used as installed, removed; the ledger stays."""

import json
import os
import pwd
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploy.deb.build import build

DATA, PROGRAM = Path("/var/lib/fairlead"), Path("/usr/bin/fairlead")
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "NO_COLOR": "1"}
CLEAN["FAIRLEAD_HEADS"] = str(DATA / "heads.json")  # not among root's own
UNIT = "/lib/systemd/system/fairlead-up.service"
SOCKET = DATA / "fairlead.sock"
# systemd where it is not installed: the socket is open before the process begins.
ACTIVATE = """
import os, socket, sys
given = socket.socket(socket.AF_UNIX)
given.bind(sys.argv[1])
given.listen()
os.dup2(given.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def missing() -> str:
    if os.geteuid() != 0 or shutil.which("dpkg-deb") is None:
        return "only root on Debian installs packages"
    if not Path("/usr/bin/python3").exists():
        return "Debian's python3 is not installed"
    here = DATA.exists() or PROGRAM.exists()
    return "an installation of Fairlead is here, and is left alone" if here else ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def call(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**CLEAN, **environment},
        timeout=300,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # The compiled core has a lane of its own (tests/compiled.py); here it would only take time.
    package = build(
        tmp_path_factory.mktemp("deb"), "/usr/bin/python3", extras=(), pack="none", compiled=False
    )
    call("dpkg", "--force-unsafe-io", "-i", str(package))
    try:
        yield package
    finally:
        call("dpkg", "--purge", "fairlead", FAIRLEAD_PURGE_LEDGER="yes")
        shutil.rmtree(DATA, ignore_errors=True)  # of a package that was gone before
        for command in (["userdel", "fairlead-up"], ["groupdel", "fairlead"]):
            subprocess.run(command, check=False, capture_output=True)


def test_the_package_runs_alone_and_leaves_the_ledger(installed: Path) -> None:
    """No file of this checkout is used; a socket that systemd opened is; purge keeps the ledger."""
    assert call("fairlead", "--version").startswith("fairlead, version")
    assert call("/usr/lib/fairlead/bin/python3", "-Ic", "import fairlead; print(fairlead.__file__)")
    units = [f"/lib/systemd/system/fairlead-up.{kind}" for kind in ("service", "socket")]
    if shutil.which("systemd-analyze"):
        call("systemd-analyze", "verify", *units)
    server = subprocess.Popen(as_the_unit_starts_it(), env=CLEAN, cwd="/", umask=0o022)
    try:
        _until(SOCKET.exists)
        SOCKET.chmod(0o666)  # SocketMode
        envelope = {"name": "e", "flavor": "H100", "concurrency": 1}
        lab = (
            _manifest("Node", "box", flavor="H100", devices=1, virtual=True),
            _manifest("Budget", "a", owner="a", envelopes=[envelope]),
        )
        Path("/var/lib/fairlead/lab.yaml").write_text("\n---\n".join(map(json.dumps, lab)))
        call("fairlead", "apply", "-f", "/var/lib/fairlead/lab.yaml")
        call("fairlead", "users", "bind", "nobody", "--owner", "a")
        words = ("fairlead", "run", "--chdir", "/", "--", "id", "-un")
        out = call("runuser", "-u", "nobody", "--", *words, HOME="/nonexistent")
        assert out.startswith("nobody\n"), out
        control = pwd.getpwnam("fairlead-up").pw_uid
        owners = [(DATA / name).stat().st_uid for name in ("", "ledger.db", "runs")]
        assert owners == [0, control, 0], "the control plane is not root, the launcher is"
    finally:
        server.terminate()
        server.wait(timeout=60)
    assert (DATA / "fairlead.sock").exists(), "a socket of systemd's is not ours to remove"
    call("dpkg", "--remove", "fairlead")
    assert not PROGRAM.exists()
    assert Path("/etc/fairlead/up.env").exists()
    told = call("dpkg", "--purge", "fairlead")
    assert "stay in /var/lib/fairlead" in told
    assert (DATA / "ledger.db").exists()
    assert not Path("/etc/fairlead").exists()


def as_the_unit_starts_it() -> list[str]:
    """ExecStart of the installed unit with its EnvironmentFile, behind a socket that is open."""
    keys = dict(
        line.split("=", 1)
        for line in Path(UNIT).read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert "StateDirectory" not in keys, "it would take the folder from fairlead-up at every start"
    assert DATA.is_dir(), "the package made it"
    given = Path(keys["EnvironmentFile"].removeprefix("-")).read_text().splitlines()
    options = dict(line.split("=", 1) for line in given if line and not line.startswith("#"))
    command = shlex.split(keys["ExecStart"].replace("$FAIRLEAD_UP_OPTIONS", "--no-http"))
    assert options == {"FAIRLEAD_UP_OPTIONS": '""'}, "--no-http: a port may be taken here"
    if shutil.which("systemd-socket-activate"):
        return ["systemd-socket-activate", "-E", "PATH", "-E", "HOME", "-l", str(SOCKET), *command]
    return ["/usr/bin/python3", "-c", ACTIVATE, str(SOCKET), *command]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.05)


def _manifest(kind: str, name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
