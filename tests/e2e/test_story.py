"""Three teams on one box, as their members use it: twenty short jobs of three Unix users, sharing
and lending, kill -9 of the control plane in the middle, and every second accounted.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.servers import manifest, short_folder
from tests.e2e.planes import Plane

TEAMS = ("vision", "speech", "robots")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="only root makes users"
)


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, str]]:
    """A Unix user for each team, for this test only."""
    names = {team: f"fl-{team}-{os.getpid() % 10_000}" for team in TEAMS}
    try:
        for name in names.values():
            subprocess.run(["useradd", "--no-create-home", name], check=True, capture_output=True)
        yield names
    finally:
        for name in names.values():
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True)


def _interpreter(uid: int) -> str:
    """A Python that the user may run: ours may lie in root's home."""
    same = f"sys.version_info[:2] == {tuple(sys.version_info[:2])}"
    ask = ["-c", f"import sys; sys.exit(not {same})"]
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([python, *ask], user=uid, check=False).returncode == 0:
                return python
        except OSError:
            continue
    return pytest.skip("other users can run no Python of this version")


class Member:
    """A user at a shell: the real command, as that user."""

    def __init__(self, plane: Plane, name: str, home: Path) -> None:
        self.name, self.home = name, home
        self._who = pwd.getpwnam(name)
        home.mkdir()
        os.chown(home, self._who.pw_uid, self._who.pw_gid)
        heads = str(home / "heads.json")
        keep = {"PATH": os.environ["PATH"], "FAIRLEAD_SERVER": str(plane.socket), "HOME": str(home)}
        more = {"FAIRLEAD_HEADS": heads, "NO_COLOR": "1"}
        self._python, self._env = _interpreter(self._who.pw_uid), {**keep, **more}
        if self._python != sys.executable:
            self._env["PYTHONPATH"] = os.pathsep.join(filter(os.path.isdir, sys.path))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [self._python, "-m", "fairlead", *arguments],
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=self._env,
            cwd=self.home,
            user=self._who.pw_uid,
            group=self._who.pw_gid,
            extra_groups=[],
        )

    def call(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        out, error = process.communicate(timeout=180)
        return process.returncode, out + error


def envelope(concurrency: int, **more: Any) -> dict[str, Any]:
    return {"name": "main", "flavor": "H100", "concurrency": concurrency, **more}


LAB = (
    manifest("Node", "box", flavor="H100", devices=8),
    manifest("Budget", "lab", owner="lab", envelopes=[]),
    manifest("Budget", "vision", owner="vision", parents=["lab"], envelopes=[envelope(4)]),
    manifest("Budget", "speech", owner="speech", parents=["lab"], envelopes=[envelope(2)]),
    manifest(
        "Budget",
        "robots",
        owner="robots",
        envelopes=[envelope(2, lending={"allow": True, "to": ["vision"]})],
    ),
)


def test_three_teams_share_a_box(users: dict[str, str]) -> None:
    """Jobs run as their users, share and borrow, outlive the control plane, and are all charged."""
    with short_folder() as folder:
        plane = Plane(folder, "--no-http").up()
        plane.apply(*LAB)
        for team, user in users.items():
            plane.ok("users", "bind", user, "--owner", team)
        members = {team: Member(plane, user, folder / team) for team, user in users.items()}
        vision, speech, robots = (members[team] for team in TEAMS)
        try:
            _story(plane, vision, speech, robots)
        finally:
            plane.down(signal.SIGKILL)


def _story(plane: Plane, vision: Member, speech: Member, robots: Member) -> None:
    gate = plane.folder / "gate"
    # Long jobs of each team: vision's fills its budget, its sibling's share and what robots lend.
    wait = f"echo begin $(id -un); while [ ! -e {gate} ]; do sleep 0.1; done; echo end; exit 3"
    long = ("--", "sh", "-c", wait)
    borrower = vision.start("run", "-G", "7", "-J", "wide", "--borrow", "robots", *long)
    plane.until("wide runs", lambda: plane.ask("/v1/leases"))
    paid = {row["budget"] for row in plane.ask("/v1/leases") if row["run"] == "wide"}
    assert paid == {"vision", "speech", "robots"}, "its own, its family's, and what robots lend"
    follower = vision.start("logs", "-f", "wide", "--exit-code")
    # Fifteen short ones in the background, an array and a chain among them.
    for member, owner in ((vision, "v"), (speech, "s"), (robots, "r")):
        code, said = member.call(
            *("submit", "--array", "1-5%2", "-J", owner, "--"),
            *("sh", "-c", "echo $SLURM_ARRAY_TASK_ID $(id -un) in $(pwd)"),
        )
        assert (code, said.count("created")) == (0, 5), said
    code, said = robots.call("submit", "-J", "bad", "--", "sh", "-c", "exit 9")
    assert code == 0, said
    assert robots.call("submit", "-J", "never", "--after", "bad", "--", "true")[0] == 0
    assert robots.call("submit", "-J", "always", "--after", "bad:any", "--", "true")[0] == 0
    # Another team's run is not yours to read, to type into, or to cancel.
    theirs = ("submit", "--owner", "vision", "--flavor", "H100", "--", "id")
    for words in (("logs", "wide"), ("cancel", "wide"), theirs):
        code, said = robots.call(*words)
        assert (code, "may not" in said) == (1, True), (words, said)
    assert plane.process is not None
    plane.process.send_signal(signal.SIGKILL)
    plane.process.wait(timeout=30)
    gate.touch()  # the wide job ends while no control plane is there
    plane.up()
    out, error = borrower.communicate(timeout=180)
    assert (borrower.returncode, out) == (3, f"begin {vision.name}\nend\n"), error
    out, error = follower.communicate(timeout=180)
    assert (follower.returncode, out) == (3, f"begin {vision.name}\nend\n"), error
    names = [f"{owner}-{index}" for owner in "vsr" for index in range(1, 6)]
    everything = [f"run/{name}" for name in (*names, "always", "never", "bad", "wide")]
    plane.ok("wait", *everything, "--for=ended", "--timeout", "50s")
    _account(plane, names, {"v": vision, "s": speech, "r": robots})


def _account(plane: Plane, names: list[str], members: dict[str, Member]) -> None:
    """Phases, exit codes, output, users; no lease open, all charged, and the ledger replays."""
    found = {run["metadata"]["name"]: run["status"] for run in plane.json("get", "runs")}
    assert {found[name]["phase"] for name in (*names, "always")} == {"Completed"}
    assert (found["bad"]["exitCode"], found["wide"]["exitCode"]) == (9, 3)
    assert (found["never"]["phase"], found["never"]["reason"]) == ("Failed", "DependencyFailed")
    for owner, member in members.items():
        code, said = member.call("logs", f"{owner}-4", "--exit-code")
        assert (code, said) == (0, f"4 {member.name} in {member.home}\n")
    assert plane.ask("/v1/leases") == []
    ended = _closed(plane)
    assert {lease["run"] for lease in ended} == {*names, "always", "bad", "wide"}
    used = sum(row["gpu_hours"] for row in plane.json("report", "--by", "owner") if row["owner"])
    spent = sum(lease["gpu_ms"] for lease in ended) / 3_600_000
    assert used == pytest.approx(spent, abs=0.001)
    ledger = str(plane.folder / "data" / "ledger.db")
    plane.ok("audit", "verify", "--ledger", ledger)
    plane.ok("replay", "--ledger", ledger)


def _closed(plane: Plane) -> list[dict[str, Any]]:
    """Every lease that ended, with what it used, from the ledger itself."""
    opened, ended = dict[str, Any](), list[dict[str, Any]]()
    log = plane.ok("audit", "log", "-o", "json", "--after", "0", "--limit", "5000")
    for line in log.splitlines():
        entry = json.loads(line)
        body = entry["body"]
        if entry["kind"] == "lease.open":
            opened[body["lease"]] = body
        elif entry["kind"] == "charge.post":
            ended.append({"run": opened[body["lease"]]["run"], "gpu_ms": body["used_ms"]})
    return ended
