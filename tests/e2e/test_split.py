"""`fairlead up` as root is two processes: an unprivileged control plane and a launcher."""

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.up import _control_user
from fairlead.compose import split
from tests.api.servers import budget, node, run, short_folder
from tests.e2e.planes import CONTROL, Plane, split_plane, wrapper

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
ADA, BOB = 54_411, 54_412
SYSTEM = 987
"""A uid that Debian gives to services, and that no service here has."""


@pytest.fixture
def plane() -> Iterator[Plane]:
    with short_folder() as folder:
        found = split_plane(folder).up()
        try:
            found.apply(node(), budget("team-a"))
            found.ok("users", "bind", str(ADA), "--owner", "team-a")
            yield found
        finally:
            assert found.process is not None
            if found.process.poll() is None:
                for name in _running(found):
                    found.run("cancel", name)
                found.until("idle", lambda: not _running(found))
                found.down()


def test_a_link_in_place_of_the_keys_gives_away_nothing_of_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a control plane left behind puts it there while root gives it the keys, whose
    names it has chosen."""
    data, roots = tmp_path / "data", tmp_path / "roots"
    for folder in (data, data / "keys", roots):
        folder.mkdir()
        (folder / "shadow").touch()
    give, given = split._give, list[str]()

    def watched(path: Path | str, *more: Any, **named: Any) -> None:
        if Path(path).name == "shadow" and not given:
            (data / "keys").rename(data / "moved")
            (data / "keys").symlink_to(roots)
        given.append(str(path))
        give(path, *more, **named)

    monkeypatch.setattr(split, "_give", watched)
    split.prepare_directory(data, data / "runs", split.ControlUser(CONTROL, CONTROL, "control"))
    assert (roots / "shadow").stat().st_uid == 0
    assert roots.stat().st_uid == 0
    assert (data / "moved" / "shadow").stat().st_uid == CONTROL


def _running(plane: Plane) -> list[str]:
    items = plane.ask("/v1/objects/Run")["items"]
    return [
        item["metadata"]["name"]
        for item in items
        if item["status"]["phase"] not in ("Completed", "Failed")
    ]


def submit(plane: Plane, name: str, *command: str, uid: int = ADA) -> None:
    """As this user, over the socket."""
    manifest = json.dumps(run(name, command=list(command)))
    script = f"""
import os, socket, sys
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
peer = socket.socket(socket.AF_UNIX); peer.connect({str(plane.socket)!r})
body = sys.argv[1].encode()
head = f"PUT /v1/objects/Run/{name} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
peer.sendall(head.encode() + f"Content-Length: {{len(body)}}\\r\\n\\r\\n".encode() + body)
data = b"".join(iter(lambda: peer.recv(65536), b""))
sys.exit(0 if data.startswith(b"HTTP/1.1 200") else data.decode())
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, manifest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def uids(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:]}


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


def launcher_of(plane: Plane) -> int:
    assert plane.process is not None
    found = children(plane.process.pid)
    (launcher,) = [pid for pid in found if b"launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return launcher


def phase(plane: Plane, name: str, wanted: str) -> None:
    plane.until(f"{name} is {wanted}", lambda: plane.phase(name) == wanted)


def test_the_control_plane_has_no_rights_and_runs_are_their_users(plane: Plane) -> None:
    """No uid, group or capability of root is left; runs, output and exits are as ever."""
    assert plane.process is not None
    assert uids(plane.process.pid) == {CONTROL}
    status = Path(f"/proc/{plane.process.pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {facts[name] for name in ("CapPrm", "CapEff", "CapInh")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Groups"].strip()) == ("1", "")
    assert uids(launcher_of(plane)) == {0}
    submit(plane, "who", "sh", "-c", "id -u; cat /proc/1/environ; exit 3")
    phase(plane, "who", "Failed")
    assert plane.ok("logs", "who").splitlines()[0] == str(ADA)
    data = plane.socket.parent
    assert (data.stat().st_uid, data.stat().st_mode & 0o7777) == (0, 0o1775)
    assert data.joinpath("ledger.db").stat().st_uid == CONTROL
    assert data.joinpath("runs").stat().st_uid == 0
    (key, *_) = sorted(data.joinpath("keys").iterdir())
    submit(plane, "thief", "cat", str(key), str(data / "ledger.db"))
    phase(plane, "thief", "Failed")
    assert "PRIVATE" not in plane.ok("logs", "thief")
    assert "fault" not in plane.log.read_text(), plane.log.read_text()


def test_runs_outlive_either_process_and_are_adopted(plane: Plane) -> None:
    """kill -9 of the control plane ends the launcher, and the other way round; runs go on, and the
    next start has them and ends them."""
    submit(plane, "long", "sh", "-c", "echo begun; while :; do sleep 0.1; done")
    phase(plane, "long", "Running")
    plane.until("spoke", lambda: "begun" in plane.run("logs", "long").stdout)
    assert plane.process is not None
    launcher = launcher_of(plane)
    plane.process.kill()
    plane.process.wait()
    gone = Path(f"/proc/{launcher}")
    plane.process = None
    plane.until("the launcher ended", lambda: not gone.exists() or "Z" in _state(launcher))
    plane.up()
    phase(plane, "long", "Running")
    os.kill(launcher_of(plane), signal.SIGKILL)
    assert plane.process is not None
    assert plane.process.wait(60) != 0
    assert "launcher is gone" in plane.log.read_text()
    plane.process = None
    plane.up()
    phase(plane, "long", "Running")
    plane.ok("cancel", "long")
    phase(plane, "long", "Failed")
    assert plane.ok("logs", "long").startswith("begun")


def test_kills_under_load_start_nothing_twice(plane: Plane) -> None:
    """kill -9 of either process while runs start and end: each command has run once."""
    mark = plane.folder / "marks"
    mark.mkdir()
    os.chown(mark, ADA, ADA)
    names = [f"short-{number}" for number in range(12)]
    for number, name in enumerate(names):
        submit(plane, name, "sh", "-c", f"echo {name} >> {mark}/{name}; sleep 0.2")
        if number % 4 == 3:
            assert plane.process is not None
            victim = launcher_of(plane) if number == 7 else plane.process.pid
            os.kill(victim, signal.SIGKILL)
            plane.process.wait(60)
            plane.process = None
            plane.up()
    plane.until("idle", lambda: not _running(plane))
    assert {path.name: path.read_text() for path in mark.iterdir()} == {
        name: f"{name}\n" for name in names
    }
    phases = {plane.phase(name) for name in names}
    assert phases == {"Completed"}, plane.log.read_text()[-3000:]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_no_run_becomes_root_or_the_holder_of_the_keys(plane: Plane) -> None:
    """Refused by the launcher, whatever the control plane says; the run ends with the reason."""
    accounts = {CONTROL: "holds the ledger's keys", SYSTEM: "is a system account"}
    for uid, why in accounts.items():
        plane.ok("users", "bind", str(uid), "--owner", "team-a")
        submit(plane, f"insider-{uid}", "id", uid=uid)
        phase(plane, f"insider-{uid}", "Failed")
        assert why in plane.ask(f"/v1/objects/Run/insider-{uid}")["status"]["message"]


def test_the_operator_says_whose_commands_run() -> None:
    """--run-users: an admin binds whom it likes, and the launcher starts members of the group. One
    process has nobody to see to it, and refuses the option."""
    with short_folder() as folder:
        plane = split_plane(folder, "--port", "0", "--run-users", str(ADA)).up()
        plane.apply(node(), budget("team-a"))
        for uid in (ADA, BOB):
            plane.ok("users", "bind", str(uid), "--owner", "team-a")
            submit(plane, f"of-{uid}", "true", uid=uid)
        phase(plane, f"of-{ADA}", "Completed")
        phase(plane, f"of-{BOB}", "Failed")
        message = plane.ask(f"/v1/objects/Run/of-{BOB}")["status"]["message"]
        assert "is not in the group that --run-users names" in message
        plane.down()
        whole = ("--data", str(folder / "other"), "--no-http", "--user", "root")
        done = plane.run("up", *whole, "--run-users", str(ADA))
        assert (done.returncode, "--run-users needs root" in done.stderr) == (2, True)


def test_without_an_account_it_is_a_number_of_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default as root is two processes on every machine. One process needs `--user root`, or is
    the demo, whose directory is removed; each says so."""
    monkeypatch.setattr(split, "USER", "no-such-user")
    found = split.control_user(None)
    assert found is not None
    assert (found.uid, found.gid) == (split.NUMBER, split.NUMBER)
    said: list[str] = []
    ask = partial(_control_user, directory=Path("/"), say=said.append)
    assert ask("root", demo=False) is None
    assert ask(None, demo=True) is None
    assert [line.rpartition(": ")[2] for line in said] == ["--user root", "--demo"]


def test_one_process_says_why_it_cannot_be_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but root can enter the data directory: what is not protected, and the cure."""
    monkeypatch.setattr(split, "USER", "no-such-user")
    said: list[str] = []
    with short_folder() as folder:
        folder.chmod(0o700)
        assert _control_user(None, folder / "data", said.append, demo=False) is None
    (line,) = said
    assert "runs as root and reads what users send" in line
    assert "useradd --system" in line


def test_a_folder_that_only_root_can_enter_is_found_however_deep_the_data_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is below such a folder cannot even be looked at."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK or real(path, mode))
    user = split.ControlUser(split.NUMBER, split.NUMBER, "user")
    with short_folder() as folder:
        (folder / "locked" / "inner").mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "locked").chmod(0o700)
        found = split.obstacle(user, folder / "locked" / "inner" / "data")
        assert found == f"user cannot enter {folder / 'locked'}"
        (folder / "locked").chmod(0o755)
        assert split.obstacle(user, folder / "locked" / "inner" / "data") is None


def test_a_launcher_that_cannot_be_started_is_found_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fairlead on PYTHONPATH alone: the isolated launcher would not find it."""
    user = split.ControlUser(split.NUMBER, split.NUMBER, "user")
    monkeypatch.setattr(split, "_cannot_become", lambda _user, _data: None)
    assert split.obstacle(user, Path("/")) is None
    bare = (sys.executable, "-I", "-S")  # without the packages that are installed
    monkeypatch.setattr(split, "_ISOLATED", bare)
    assert "does not find Fairlead" in (split.obstacle(user, Path("/")) or "")


def test_a_number_without_an_account_runs_the_control_plane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It can enter the directory, and is neither root nor an account of this machine."""
    user = split.ControlUser(split.NUMBER, split.NUMBER, "user")
    monkeypatch.setattr(os, "access", lambda _path, mode: mode == os.R_OK)
    assert split.obstacle(user, Path("/nowhere/data")) == "user cannot enter /"
    with pytest.raises(KeyError):
        pwd.getpwuid(split.NUMBER)
    with short_folder() as folder:
        plane = split_plane(folder, "--port", "0", user=split.NUMBER).up()
        assert plane.process is not None
        assert uids(plane.process.pid) == {split.NUMBER}
        plane.down()


def test_a_directory_of_one_process_is_taken_over_and_given_back() -> None:
    """Files that root made before are the control plane's from then on, and root reads them all
    the same."""
    with short_folder() as folder:
        before = Plane(folder, "--port", "0").up()
        before.apply(node(), budget("team-a"))
        before.ok("users", "bind", str(ADA), "--owner", "team-a")
        submit(before, "early", "sh", "-c", "echo early; while :; do sleep 0.1; done")
        phase(before, "early", "Running")
        before.down()
        after = split_plane(folder).up()
        phase(after, "early", "Running")
        after.until("read", lambda: "early" in after.run("logs", "early").stdout)
        after.ok("cancel", "early")
        phase(after, "early", "Failed")
        after.down()
        again = Plane(folder, "--port", "0").up()
        assert again.phase("early") == "Failed"
        again.down()
        assert (
            again.run("audit", "verify", "--ledger", str(folder / "data/ledger.db")).returncode == 0
        )


def test_a_ledger_that_was_replaced_is_refused() -> None:
    """The control plane's user can write its own files: the launcher remembers what it followed."""
    with short_folder() as folder:
        plane = split_plane(folder).up()
        plane.apply(node(), budget("team-a"))
        plane.down()
        data = folder / "data"
        for path in (*data.glob("ledger.*"), *data.glob("keys/*")):
            path.unlink()
        command = [*plane.wrapper, sys.executable, "-m", "fairlead", "up", *plane.flags]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=plane.environment, timeout=120
        )
        assert done.returncode not in (0, 70), done.stderr
        assert f"remove {data / 'runs/followed.json'} as root" in done.stderr
        (data / "runs/followed.json").unlink()
        plane.up()
        plane.down()


def test_a_directory_that_is_not_roots_is_refused() -> None:
    """Its owner could move the launcher's folder away."""
    with short_folder() as folder:
        (folder / "data").mkdir()
        os.chown(folder / "data", ADA, ADA)
        done = Plane(folder, "--no-http", "--user", str(CONTROL)).run(
            "up", "--data", str(folder / "data"), "--no-http", "--user", str(CONTROL)
        )
        assert done.returncode != 0
        assert "must be a directory of root's" in done.stderr


def test_without_root_it_says_what_it_cannot_protect() -> None:
    """Runs could read its keys: a second owner is refused, at once and at the next start, unless
    the owners trust each other."""
    with short_folder() as folder:
        os.chown(folder, ADA, ADA)
        plane = Plane(folder, "--port", "0")
        ours = ("--trusting", "--user", "root")
        plane.flags = tuple(flag for flag in plane.flags if flag not in ours)
        become = ("setpriv", f"--reuid={ADA}", f"--regid={ADA}", "--clear-groups")
        plane.wrapper = (*wrapper(folder), *become)
        plane.up()
        assert "can read the ledger's keys" in plane.log.read_text()
        plane.apply(node(), budget("team-a"))
        refused = plane.run("apply", "-f", "-", input=json.dumps(budget("team-b")))
        assert (refused.returncode, "--trusting" in refused.stderr) == (1, True), refused.stderr
        plane.down()
        plane.flags = (*plane.flags, "--trusting")
        plane.up()
        plane.apply(budget("team-b"))
        plane.down()
        plane.flags = plane.flags[:-1]
        command = [*plane.wrapper, sys.executable, "-m", "fairlead", "up", *plane.flags]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=plane.environment, timeout=60
        )
        assert done.returncode not in (0, 70), done.stderr
        assert "team-a, team-b" in done.stderr
