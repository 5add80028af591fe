"""Reservations, resolves and outcomes on the command line: what is shown, what is refused."""

import getpass
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fairlead.cli.gpu.preemption import cap_name, start_time
from fairlead.host.clock import now_ms
from fairlead.schema.times import parse_time
from tests.api.servers import budget, manifest, run, serving, short_folder
from tests.cli.shells import Shell
from tests.core.lottery.network import network, sign
from tests.e2e.planes import documents
from tests.verify.node import VERIFIER as SECOND
from tests.verify.node import missing_node
from tests.verify.stories import VALUE

FIRST = Path(__file__).parents[2] / "verify" / "fairlead_verify.py"
PLACE = {"region": "west", "domain": "rack-1"}
NEVER = "2999-01-01T08:00:00Z"
SOON = (datetime.now(UTC) + timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:00Z")
"""While the runs of 9 h go on."""
ELASTIC = {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Eight GPUs: spares, an elastic run and a gang; and a resolver that means it."""
    heads = tmp_path_factory.mktemp("heads") / "heads.json"
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        running.apply(
            manifest("Node", "box", flavor="H100", devices=8, location=PLACE),
            *(budget(f"team-{name}", 8) for name in "abc"),
            run("gang", "team-c", 4, duration="9h"),
            run("backed", "team-b", 2, groupGPUs=2, sparesPerGroup=2, duration="9h"),
        )
        for name in ("gang", "backed"):
            running.until("runs", lambda name=name: running.status("Run", name)["width"])
        yield Shell(running, heads)


def bind(shell: Shell, *owners: str) -> None:
    """An admin is no owner: who signs for one is bound to it."""
    bound = [word for owner in owners for word in ("--owner", owner)]
    shell.ok("users", "bind", getpass.getuser(), *bound)


def outcome_of(shell: Shell, reservation: str) -> int:
    """The outcome of a reservation, once its run has started."""
    server = shell.server

    def active() -> bool:
        return bool(server.status("Reservation", reservation)["state"] == "Active")

    server.until("it is active", active)
    return int(server.status("Reservation", reservation)["outcome"])


def test_a_reservation_from_the_command_line(crowded: Shell) -> None:
    """Tried first, then made, moved, listed, described and explained, with who would give way."""
    big = documents(run("big", "team-a", 4, duration="9h"))
    size = crowded.server.ok("GET", "/v1/head")["size"]
    tried = crowded.ok("reserve", "-f", "-", "--at", SOON, "--dry-run", input=big).splitlines()
    assert tried[:2] == ["run/big created (dry run)", "reservation/big created (dry run)"]
    assert crowded.server.ok("GET", "/v1/head")["size"] == size
    made = crowded.ok("reserve", "-f", "-", "--at", SOON, input=big).splitlines()
    assert made[:3] == [
        "run/big created",
        "reservation/big created",
        f"  run big is to start at {SOON}",
    ]
    assert made[3:] == tried[3:], "the dry run said the same"
    shown = "\n".join(made)
    assert "4 GPUs of H100 in domain=rack-1,region=west are missing" in shown
    odds = ["50", "%", "(first", "draw:", "1", "in", "2)"]
    assert [line.split() for line in made if line.startswith(("  backed", "  gang"))] == [
        ["backed", "team-b", "drops", "spares", "2", "funded", "by", "rule"],
        ["backed", "team-b", "may", "be", "selected", "-", "funded", *odds],
        ["gang", "team-c", "may", "be", "selected", "-", "funded", *odds],
    ]
    assert crowded.ok("get", "reservations").splitlines()[1].split()[:6] == [
        "big",
        "big",
        SOON,
        "Pending",
        "NotDue",
        "-",
    ]
    assert "1 in 2" in crowded.ok("describe", "reservation/big")
    described = json.loads(crowded.ok("describe", "reservation/big", "-o", "json"))
    assert (described["forecast"]["deficitGPUs"], described["forecast"]["earliestStart"]) == (
        4,
        SOON,
    )
    assert "may be selected" in crowded.ok("explain", "reservation/big")
    assert "fairlead explain reservation/big" in crowded.ok("explain", "run/big")
    moved = crowded.ok("reserve", "big", "--at", NEVER).splitlines()
    assert moved[0] == "reservation/big configured"
    assumed = "assumes that 2 runs with 8 GPUs will have ended by then"
    assert any(assumed in line for line in moved)
    assert not any("may be selected" in line for line in moved)
    again = documents(manifest("Reservation", "big", run="big", earliestStart=SOON))
    applied = crowded.ok("apply", "-f", "-", "--dry-run", input=again)
    assert "may be selected" in applied


def test_bad_words_are_named(crowded: Shell) -> None:
    """Exit code 2 with the option; nothing is sent."""
    for arguments, said in (
        (("reserve", "--at", NEVER), "name a run"),
        (("reserve", "gang", "-f", "x.yaml", "--at", NEVER), "name a run"),
        (("reserve", "gang", "--at", "monday"), "must be a time"),
        (("reserve", "gang", "--at", "2026-01-01T00:00:00"), "or +30m from now"),
        (("reserve", "gagn", "--at", NEVER), "did you mean 'gang'?"),
        (("resolve",), "give one of"),
        (("resolve", "--scope", "flavor=H100"), "belong together"),
        (("resolve", "--scope", "region=west", "--gpus", "1"), "must name the flavor"),
        (("resolve", "--scope", "flavor=H100,flavor=A", "--gpus", "1"), "twice"),
        (("resolve", "--scope", "flavor", "--gpus", "1"), "KEY=VALUE"),
        (("resolve", "--cap", "team-a"), "BUDGET/NAME"),
        (("resolve", "--cap", "team-a/x", "--budget", "team-a"), "give one of"),
        (("resolve", "--budget", "team-a", "--gpus", "1"), "belong together"),
        (("up", "--owner-weighting", "friends"), "'owners', 'tokens'"),
        (("audit", "outcome", "1", "--public"), "belong to --export"),
        (("audit", "outcome", "--export", "x"), "name the outcome"),
        (("audit", "outcome", "1", "--export", "x", "--head", "7"), "SIZE:ROOT"),
        (("audit", "outcome", "1"), "there is no outcome '1'"),
        (("audit", "nonce", "team-z", "00"), "`fairlead audit key team-z` makes a key"),
        (("shrink", "gang"), "--to"),
        (("up", "--beacon", "drand,yesterday,3s,ab"), "START: must be a time"),
        (("up", "--beacon", "drand,2026-01-01T00:00:00Z,3s,ab"), "KEY: must be 96 bytes"),
        (("up", "--beacon", "drand"), "must be drand-quicknet, or SOURCE,START,PERIOD,KEY"),
    ):
        done = crowded(*arguments)
        assert (done.returncode, said in done.stderr) == (2, True), (arguments, done.stderr)


def test_a_cap_is_named_with_or_without_its_kind() -> None:
    """As every other object; a budget may even be called `budget`."""
    for text, expected in (
        ("a/main", ("a", "main")),
        ("budget/a/main", ("a", "main")),
        ("budget/x", ("budget", "x")),
        ("budget/budget/x", ("budget", "x")),
    ):
        assert cap_name(text) == expected
    for wrong in ("a", "a/", "/a", "budget/", "/"):
        with pytest.raises(click.BadParameter, match="BUDGET/NAME"):
            cap_name(wrong)


def test_a_preemption_preview_by_hand(crowded: Shell) -> None:
    """A scope, a cap and a run; more than there is, is a refusal."""
    scope = ("--scope", "flavor=H100,domain=rack-1")
    shown = crowded.ok("resolve", *scope, "--gpus", "2", "--dry-run")
    assert "drops spares" in shown
    assert "may be selected" not in shown
    much = crowded("resolve", *scope, "--gpus", "99", "--dry-run")
    assert (much.returncode, "would leave 91 missing" in much.stdout) == (1, True)
    refused = crowded("resolve", *scope, "--gpus", "99")
    assert (refused.returncode, refused.stderr.startswith("refused: 91 GPUs")) == (1, True)
    fits = crowded.ok("resolve", "--cap", "team-c/main")
    assert fits.startswith("no GPUs of H100 are above team-c/main")
    within = crowded.ok("resolve", "--budget", "team-c")
    assert within == "budget/team-c exceeds none of its caps: no preemption needed\n"
    placed = crowded.ok("resolve", "--budget", "team-c", *scope, "--gpus", "2", "--dry-run")
    assert placed.startswith("then the scope:\n  2 GPUs of H100 in domain=rack-1 are missing")
    crowded.server.apply(run("eager", "team-a", 8))
    tried = crowded.ok("resolve", "--run", "eager", "--dry-run").splitlines()
    assert tried[0] == "run/eager would be started (dry run)"
    assert any("is preempted" in line and line.endswith("certain") for line in tried)
    crowded.ok("cancel", "eager")


def test_the_loser_is_told_and_checks_the_draw(crowded: Shell, tmp_path: Path) -> None:
    """Cut, explained, exported, and verified by both verifiers against a head that was kept."""
    bind(crowded, "team-b", "team-c")
    for team in ("team-b", "team-c"):  # one of them loses
        mine = ("--key-file", str(tmp_path / f"{team}.pem"))
        assert crowded.ok("audit", "key", team, *mine).startswith(f"{team} signs with ")
        assert crowded("audit", "nonce", team, "xyz", *mine).returncode == 2
        given = crowded.ok("audit", "nonce", team, "00FF", *mine)
        assert given == f"the next lottery of {team} will use 00ff\n"
    kept = crowded.server.ok("GET", "/v1/head")
    held = tmp_path / "head.json"
    held.write_text(json.dumps(kept))
    crowded.ok("reserve", "-f", "-", "--at", "+0s", input=documents(run("prize", "team-a", 4)))
    number = outcome_of(crowded, "prize")
    told = crowded.ok("audit", "outcome", str(number))
    assert told.startswith(f"outcome {number}: applied, owner-nonced\n")
    assert "for reservation (run/prize, reservation/prize)" in told
    assert "was selected" in told
    listed = [line.split()[:5] for line in crowded.ok("audit", "outcome").splitlines()]
    assert [str(number), "applied", "H100", "4", "reservation"] in listed
    status = crowded.server.status
    (loser,) = [name for name in ("gang", "backed") if status("Run", name)["phase"] == "Pending"]
    owner = {"gang": "team-c", "backed": "team-b"}[loser]
    why = crowded.ok("explain", f"run/{loser}")
    assert (
        f"preempted by outcome {number}, selected by the lottery, with odds of 50 % "
        "(first draw: 1 in 2)" in why
    )
    assert "it is pending and starts once enough devices are free" in why
    file = tmp_path / "outcome.json"
    written = crowded(
        "audit",
        "outcome",
        str(number),
        "--export",
        str(file),
        "--owner",
        owner,
        "--head",
        str(held),
    )
    assert (written.returncode, file.stat().st_mode & 0o777) == (0, 0o600)
    head = f"{kept['size']}:{kept['root']}"
    assert written.stderr.rstrip().endswith(f"fairlead_verify.py {file} --head {head}")
    checked = verified([sys.executable, "-I", str(FIRST)], file, "--head", head)
    assert f"This is the log that you saw when it had {kept['size']} entries." in checked
    assert "Everything holds; this outcome is owner-nonced." in checked
    assert "RandomPreempt in draw 0" in checked
    if missing_node() is None:
        assert "Everything holds" in verified(["node", str(SECOND)], file, "--head", head)
    public = crowded("audit", "outcome", str(number), "--export", "-", "--public").stdout
    assert loser not in public
    assert json.loads(public)["openings"] == []
    crowded.ok("users", "unbind", getpass.getuser())
    unsaid = crowded("audit", "outcome", str(number), "--export", str(file))
    assert (unsaid.returncode, "say whose names to open" in unsaid.stderr) == (2, True)
    again = crowded("audit", "void", str(number), "--reason", "I lost")
    refused = f"refused: outcome {number} cannot be voided: it is already applied\n"
    assert (again.returncode, again.stderr) == (1, refused)
    crowded.ok("cancel", "prize")
    crowded.server.until("it runs again", lambda: status("Run", loser)["width"])


def verified(verifier: list[str], file: Path, *more: str) -> str:
    done = subprocess.run(
        [*verifier, str(file), *more], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_owners_say_how_their_runs_are_preempted(crowded: Shell) -> None:
    """Nominated and taken back; shrunk by steps; each with a dry run."""
    box = manifest("Node", "v", flavor="V100", devices=4)
    envelope = {"name": "main", "flavor": "V100", "concurrency": 4}
    crowded.server.apply(
        box,
        manifest("Budget", "team-v", owner="team-v", envelopes=[envelope]),
        manifest("Run", "wide", owner="team-v", flavor="V100", totalGPUs=4, **ELASTIC),
    )
    status = crowded.server.status
    crowded.server.until("runs", lambda: status("Run", "wide")["width"] == 4)
    assert crowded.ok("nominate", "wide", "--dry-run") == "run/wide nominated (dry run)\n"
    assert status("Run", "wide")["nominated"] is False
    assert crowded.ok("nominate", "run/wide") == "run/wide nominated\n"
    assert "preempted before the owner's other runs" in crowded.ok("explain", "run/wide")
    assert crowded.ok("nominate", "wide") == "run/wide nominated, as before\n"
    assert crowded.ok("nominate", "wide", "--withdraw") == "run/wide no longer nominated\n"
    tried = crowded.ok("shrink", "wide", "--to", "3", "--dry-run").splitlines()
    assert tried[0] == "run/wide shrinks to 3 GPUs (dry run)"
    assert tried[1].endswith("would end")
    crowded.ok("shrink", "wide", "--to", "3")
    crowded.server.until("narrower", lambda: status("Run", "wide")["width"] == 3)
    assert crowded("shrink", "wide", "--to", "9").returncode == 1
    drained = crowded.ok("drain", "v", "--dry-run").splitlines()
    assert drained[0] == "node/v drained (dry run)"
    assert "3 GPUs of V100 in node=v have to leave it" in drained[1]
    assert drained[3].split()[:4] == ["wide", "team-v", "shrinks", "2"]


def test_a_lowered_budget_is_previewed_and_enforced_by_hand(crowded: Shell) -> None:
    """Who would be hit; then the cap is resolved, and nobody else is touched."""
    box = manifest("Node", "t", flavor="A100", devices=4)

    def tight(gpus: int) -> dict[str, Any]:
        envelope = {"name": "main", "flavor": "A100", "concurrency": gpus}
        return manifest("Budget", "tight", owner="tight", envelopes=[envelope])

    crowded.server.apply(box, tight(4))
    status = crowded.server.status
    for name in ("t1", "t2"):
        crowded.server.apply(manifest("Run", name, owner="tight", flavor="A100", totalGPUs=2))
        crowded.server.until("runs", lambda name=name: status("Run", name)["width"])
    shown = crowded.ok("apply", "-f", "-", "--dry-run", input=documents(tight(2))).splitlines()
    assert shown[1].startswith("  run t2 of tight: 2 GPUs would be unfunded (GPUs of envelope main")
    assert "`fairlead resolve --cap tight/main` ends them" in shown[2]
    crowded.ok("apply", "-f", "-", input=documents(tight(2)))
    shown = crowded.ok("resolve", "--cap", "budget/tight/main", "--dry-run").splitlines()
    assert shown[0].startswith("2 GPUs of A100 are above tight/main")
    assert shown[2].split()[:4] == ["t2", "tight", "is", "preempted"]
    done = crowded.ok("resolve", "--cap", "tight/main")
    assert "for cap: 2 GPUs of A100 were above it" in done
    crowded.server.until("gone", lambda: not crowded.server.status("Run", "t2")["width"])
    assert crowded.server.status("Run", "t1")["width"] == 2


def test_they_all_speak_json_and_yaml(crowded: Shell, tmp_path: Path) -> None:
    """The same data in both."""
    bind(crowded, "team-a", "team-c")
    key = str(tmp_path / "a.pem")
    crowded.server.apply(
        run("said", "team-a", 4), manifest("Reservation", "said", run="said", earliestStart=NEVER)
    )
    for arguments in (
        ("get", "reservations"),
        ("get", "reservation", "said"),
        ("describe", "reservation/said"),
        ("explain", "reservation/said"),
        ("audit", "outcome"),
        ("audit", "key", "team-a", "--key-file", key),
        ("audit", "nonce", "team-a", "00", "--key-file", key),
        ("audit", "beacon", "drand-quicknet", "1000", VALUE, "--dry-run"),
        ("resolve", "--scope", "flavor=H100", "--gpus", "1", "--dry-run"),
        ("nominate", "gang", "--dry-run"),
        ("reserve", "said", "--at", "+1h", "--dry-run"),
    ):
        assert type(json.loads(crowded.ok(*arguments, "-o", "json"))) in (list, dict)
        assert list(yaml.safe_load_all(crowded.ok(*arguments, "-o", "yaml")))


def test_an_outcome_waits_for_its_beacon_or_is_given_up(tmp_path: Path) -> None:
    """It says which round; a value supplies its chance; a void says why and cuts nobody."""
    beacon = network(0, 60_000)
    with short_folder() as folder, serving(folder, resolver="enforce", beacon=beacon) as running:
        shell = Shell(running, tmp_path / "heads.json")
        place = manifest("Node", "box", flavor="H100", devices=4, location=PLACE)
        running.apply(place, budget("team-a"), run("only", gpus=4, duration="9h"))
        running.until("runs", lambda: running.status("Run", "only")["width"])
        scope = ("--scope", "flavor=H100", "--gpus", "4")
        waiting = shell.ok("resolve", *scope)
        assert "its entropy is round" in waiting
        assert "no run is selected yet" in waiting
        (row,) = running.ok("GET", "/v1/outcomes")["items"]
        number, stage = str(row["outcome"]), row["stage"]
        assert stage == "committed"
        tried = shell.ok("audit", "void", number, "--reason", "no value", "--dry-run")
        assert tried == f"outcome {number} voided (dry run)\n"
        assert shell("resolve", *scope).returncode == 1, "one resolve of a flavor at a time"
        shell.ok("audit", "void", number, "--reason", "no value")
        told = shell.ok("audit", "outcome", number)
        assert "void: no value" in told
        assert running.status("Run", "only")["width"] == 4
        shell.ok("resolve", *scope)
        second = running.ok("GET", "/v1/outcomes")["items"][0]["outcome"]
        wanted = running.ok("GET", f"/v1/outcomes/{second}")["beacon"]["round"]
        shell.ok("audit", "beacon", "drand", str(wanted), sign(wanted).upper())
        running.until("cut", lambda: running.status("Run", "only")["lastOutcome"] == second)
        file = tmp_path / "public.json"
        shell.ok("audit", "outcome", str(second), "--export", str(file), "--public")
        checked = verified([sys.executable, "-I", str(FIRST)], file)
        assert f"round {wanted} of drand" in checked
        assert "Before it, 1 outcomes of this sequence were voided." in checked
        assert "this outcome is operator-trusted" in checked


def test_without_a_resolver_nobody_is_asked(shell: Shell) -> None:
    """The forecast is shown, and the exit code says that nothing was done."""
    shell.server.apply(run("steady", gpus=4, duration="9h"))
    shell.server.until("runs", lambda: shell.server.status("Run", "steady")["width"])
    shown = shell("resolve", "--scope", "flavor=H100", "--gpus", "3")
    assert shown.returncode == 1
    assert "is preempted" in shown.stdout
    assert "the resolver is dry-run (fairlead up --resolver enforce)" in shown.stderr
    made = shell("reserve", "-f", "-", "--at", NEVER, input=documents(run("late", gpus=4)))
    assert (made.returncode, "the run is not funded" in made.stdout) == (0, True)
    assert shell.server.status("Run", "steady")["width"] == 4
    empty = shell("audit", "outcome")
    assert (empty.returncode, empty.stderr) == (0, "no run was ever preempted\n")


def test_the_policy_is_shown(crowded: Shell) -> None:
    """The rules as this server was given them."""
    shown = json.loads(crowded.ok("describe", "policy", "-o", "json"))
    assert (shown["resolver"], shown["minNotice"], shown["minRuntime"]) == ("enforce", "0s", "0s")
    assert (shown["maxReservations"], shown["cooldown"], shown["mayResolve"]) == (1000, "0s", [])
    assert "minNotice: 0s" in crowded.ok("describe", "policy")


def test_a_start_from_now_keeps_the_notice_that_it_names() -> None:
    """`+1h` is not refused for the milliseconds that its request takes; `+0s` is now."""
    before = now_ms()
    later = parse_time(start_time("+1h"), "")
    assert later % 60_000 == 0
    assert before + 3_600_000 <= later < now_ms() + 3_660_000
    assert before <= parse_time(start_time("+0s"), "") <= now_ms()


def test_a_start_too_far_from_now_names_what_was_typed() -> None:
    """The message was about a duration without its sign, and advised another duration."""
    with pytest.raises(click.BadParameter) as refused:
        start_time("+99999d")
    said = refused.value.message
    assert said == "'+99999d': after the + must be more than 0 and at most 366d, got '99999d'"


def test_a_day_is_midnight_in_the_zone_of_the_reader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the answer says so."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert start_time("2027-01-01") == "2026-12-31T23:00:00Z"
        said = capsys.readouterr().err
        assert "midnight in your time zone, 2027-01-01T00:00:00+01:00" in said
        with pytest.raises(click.BadParameter, match="is no day of the calendar"):
            start_time("2027-02-30")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_name_alone_is_explained_where_one_object_has_it(crowded: Shell) -> None:
    """Without its kind; else the answer says which to choose, or what is similar."""
    assert crowded.ok("explain", "gang") == crowded.ok("explain", "run/gang")
    assert "kind: Node" in crowded.ok("describe", "box")
    unknown = crowded("explain", "gagn")
    assert (unknown.returncode, "did you mean run/gang?" in unknown.stderr) == (2, True)
    crowded.server.apply(manifest("Node", "twice", flavor="H100", devices=1, virtual=True))
    crowded.server.apply(budget("twice", 1))
    several = crowded("explain", "twice")
    assert "say budget/twice or node/twice" in several.stderr
    none = crowded("explain", "zzz")
    assert "no budget, run, node or reservation is called 'zzz'; give KIND/NAME" in none.stderr


def test_an_error_about_what_a_command_made_names_no_place_in_a_batch(crowded: Shell) -> None:
    big = documents(run("late", "team-a", 4))
    done = crowded("reserve", "-f", "-", "--at", "2020-01-01T00:00:00Z", "--dry-run", input=big)
    assert done.stderr.startswith("refused: reservation 'late': its start is in the past")
