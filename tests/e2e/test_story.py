"""Three teams on one box, as their members use it: twenty short jobs of three Unix users, sharing
and lending, kill -9 of the control plane in the middle, and every second accounted. Then the
machine restarts under a job, an owner recalls its envelope, a reservation preempts, and the ledger
comes back from a backup that is older than a job.
"""

import contextlib
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
            _reboot(plane, vision)
            _recall(plane, vision, speech)
            _reservation(plane, robots)
            _restore(plane, vision)
            _audit(plane)
        finally:
            plane.down(signal.SIGKILL)
            _kill_jobs(plane)


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


def _audit(plane: Plane) -> None:
    """Whatever happened: the ledger verifies, and every decision of it replays."""
    ledger = str(plane.folder / "data" / "ledger.db")
    plane.ok("audit", "verify", "--ledger", ledger)
    plane.ok("replay", "--ledger", ledger)


ENFORCED = (
    "--resolver",
    "enforce",
    "--min-notice",
    "0s",
    "--min-runtime",
    "0s",
    "--cooldown",
    "0s",
)
"""Preemption as a lab would have it, but without the waiting."""


def _until(plane: Plane, run: str, **status: Any) -> dict[str, Any]:
    """A run once its status is so."""

    def found() -> Any:
        now = plane.ask(f"/v1/objects/Run/{run}")["status"]
        return now if status.items() <= now.items() else None

    return dict(plane.until(f"{run} is {status}", found))


def _submit(member: Member, gpus: int, name: str, *words: str, until: Path | None = None) -> None:
    """A job that ends when a file is there; without one it does not end by itself."""
    wait = "exec sleep 600" if until is None else f"while [ ! -e {until} ]; do sleep 0.1; done"
    given = ("-G", str(gpus), "-J", name, *words, "--", "sh", "-c", wait)
    code, said = member.call("submit", *given)
    assert code == 0, said


def _kill_jobs(plane: Plane, *, boot: str | None = None) -> None:
    """End the shims of all jobs and their commands, as a power cut does; `boot`: the one that they
    are of then."""
    for folder in sorted((plane.folder / "data" / "runs" / "jobs").glob("*")):
        for file in (folder / "shim.json", folder / "command.json"):
            if not file.exists():
                continue
            identity = json.loads(file.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity["pid"], signal.SIGKILL)
            if boot is not None:
                file.write_text(json.dumps({**identity, "boot": boot}))


def _reboot(plane: Plane, vision: Member) -> None:
    """A job is in the ledger and has no process: its lease ends when it was last seen, and it
    starts again. The operator turns preemption on with this start."""
    _submit(vision, 1, "steady", until=plane.folder / "steady")
    _until(plane, "steady", phase="Running")
    jobs = plane.folder / "data" / "runs" / "jobs"
    plane.until("steady begins", lambda: list(jobs.glob("steady*/command.json")))
    plane.down(signal.SIGKILL)
    _kill_jobs(plane, boot="the one before")
    plane.flags += ENFORCED
    plane.process = None
    plane.up()
    _until(plane, "steady", phase="Running", attempts=2, restarts=1)
    (before, now) = sorted(
        plane.ask("/v1/runs/steady/history")["attempts"], key=lambda row: row["attempt"]
    )
    assert [lease["reason"] for lease in before["leases"]] == ["Interrupted"]
    assert before["end"] <= now["start"]
    (plane.folder / "steady").touch()
    _until(plane, "steady", phase="Completed", exitCode=0)


def _recall(plane: Plane, vision: Member, speech: Member) -> None:
    """A sibling uses what speech has, and the box is full: the owner gets it back, as the first."""
    _submit(vision, 8, "guest", "--borrow", "robots")
    _until(plane, "guest", phase="Running", funded=True)
    _submit(speech, 2, "home", until=plane.folder / "home")
    _until(plane, "home", phase="Running", funded=True)
    guest = plane.ask("/v1/objects/Run/guest")["status"]
    assert (guest["phase"], guest["width"]) == ("Pending", 0)
    assert {"gpu.recall", "lease.unfunded", "run.cut"} <= _kinds(plane)
    code, said = vision.call("explain", "guest")
    assert code == 0, said
    assert "preempted by outcome" in said
    for offer in ("fairlead replay", "fairlead resolve", "fairlead uncordon"):
        assert offer not in said, said
    (plane.folder / "home").touch()
    _until(plane, "home", phase="Completed")
    _until(plane, "guest", phase="Running", attempts=2)


def _reservation(plane: Plane, robots: Member) -> None:
    """What robots lent comes back at the reserved time, by preemption of the run that has it."""
    gate = plane.folder / "big"
    command = ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.1; done"]
    big = manifest("Run", "big", owner="robots", flavor="H100", totalGPUs=2, command=command)
    (plane.folder / "big.yaml").write_text(json.dumps(big))
    code, said = robots.call("reserve", "-f", str(plane.folder / "big.yaml"), "--at", "+1s")
    assert code == 0, said
    _until(plane, "big", phase="Running", funded=True)
    guest = plane.ask("/v1/objects/Run/guest")["status"]
    reservation = plane.ask("/v1/objects/Reservation/big")["status"]
    assert (guest["phase"], reservation["state"]) == ("Pending", "Active")
    assert guest["lastOutcome"] == reservation["outcome"] is not None


def _restore(plane: Plane, vision: Member) -> None:
    """A backup knows nothing of a job that was submitted after it: its process is ended, and the
    one that it knows goes on. A member who saw more is told, and nothing is done meanwhile."""
    backup, ledger = plane.folder / "backup.db", plane.folder / "data" / "ledger.db"
    plane.ok("cancel", "guest")
    plane.ok("audit", "backup", str(backup), "--ledger", str(ledger))
    _submit(vision, 1, "lost")
    _until(plane, "lost", phase="Running")
    jobs = ledger.parent / "runs" / "jobs"
    (job,) = plane.until("lost begins", lambda: list(jobs.glob("lost*/command.json")))
    plane.down(signal.SIGKILL)
    for file in ledger.parent.glob("ledger.db*"):
        file.unlink()
    plane.process = None
    plane.ok("audit", "restore", str(backup), "--ledger", str(ledger), "--reason", "the disk died")
    plane.up()
    plane.until("the unknown job is gone", lambda: "job.gone" in _kinds(plane))
    assert "job.unknown" in _kinds(plane)
    plane.until("its folder is put away", lambda: not job.exists())
    code, said = vision.call("submit", "-J", "blind", "--", "true")
    assert (code, "the ledger was restored from a backup" in said) == (3, True), said
    assert "error" in plane.ask("/v1/objects/Run/blind"), "told before it was submitted"
    assert vision.call("heads", "forget", str(plane.socket))[0] == 0
    assert vision.call("run", "-J", "lost", "--", "sh", "-c", "exit 5")[0] == 5, "the name is free"
    plane.ok("heads", "forget", str(plane.socket))
    (plane.folder / "big").touch()
    _until(plane, "big", phase="Completed", attempts=1, exitCode=0)
    assert plane.ask("/v1/leases") == []


def _kinds(plane: Plane) -> set[str]:
    size = plane.ask("/v1/head")["size"]
    events = plane.ask(f"/v1/events?after={max(0, size - 1000)}&limit=1000")["items"]
    return {event["kind"] for event in events}


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
