"""Every text for people with one and with two of everything, and with everything that may be
missing: singular and plural, rounded hours, and no `None`."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli.gpu import plans, render
from fairlead.cli.gpu.follow import print_event
from fairlead.cli.gpu.objects import print_effects
from fairlead.cli.main import main
from fairlead.cli.table import Output, used_of
from fairlead.cli.traffic.status import ADMISSION
from fairlead.schema.words import no_room, readable
from tests.cli.shells import run_inside

NOUNS = "GPU|envelope|lease|run|device|node|minute|slot"
TIME = "2026-01-01T00:00:00Z"
Document = dict[str, Any]
TENANT, OPERATOR = ["nonce", "reserve"], ["nonce", "replay", "reserve", "resolve", "uncordon"]


def refusal(n: int, *, remedy: bool = True) -> Document:
    change = {"change": "envelope-hours", "budget": "a", "name": "main", "from": 1 / 3, "to": 2 / 3}
    short = f"{n} GPUs short: too many GPUs at once"
    return {
        "code": "IntegralCapExceeded",
        "message": f"{short}; raise it" if remedy else short,
        "binding": [{"budget": "a", "name": None, "kind": "hours", "used": 1 / 3, "limit": None}],
        "remedy": change if remedy else None,
    }


def forecast(n: int, *, short: int = 0, node: bool = False, starts: bool = False) -> Document:
    cut = {"run": "r", "owner": "a", "kind": "Shrink", "gpus": n, "tier": "funded"}
    risk = {"run": "s", "owner": "b", "oneIn": 2, "certain": False, "tier": "funded"}
    risk |= {"chance": 0.75, "chanceError": 0.02}
    return {
        "scope": {"flavor": "H100", "location": {"node": "x"} if node else {}},
        "deficitGPUs": n,
        "shortfallGPUs": short,
        "cuts": [cut],
        "atRisk": [risk],
        "refusal": None,
        "starts": starts,
        "ended": {"runs": n, "gpus": n},
        "due": {"runs": n, "gpus": n},
        "recall": {"leases": n, "gpus": n},
        "withoutCuts": None,
        "earliestStart": None,
    }


def cut(n: int, label: str | None) -> Document:
    return {
        "outcome": 7,
        "oneIn": None,
        "kinds": ["Shrink"],
        "drawn": False,
        "deficitGPUs": n,
        "label": label,
    }


def run(n: int, phase: str, reason: str | None) -> Document:
    status = {
        "phase": phase,
        "reason": reason,
        "since": None,
        "refusal": None,
        "message": None,
        "nominated": False,
        "preempting": None,
        "graceEnds": None,
        "reservation": "r",
        "width": n,
    }
    spec = {"owner": "a", "totalGPUs": n}
    return {"metadata": {"name": "train"}, "spec": spec, "status": status}


def lease(n: int) -> Document:
    return {
        "lease": "l",
        "run": "r",
        "slots": [f"n#{i}" for i in range(n)],
        "borrowed": False,
        "funded": False,
        "budget": "a",
        "envelope": "main",
    }


def explained(n: int, phase: str, may: list[str], reason: str | None = None) -> Document:
    return {
        "object": run(n, phase, reason),
        "may": may,
        "cut": cut(n, None),
        "forecast": forecast(n),
        "leases": [lease(n)],
        "cordoned": [{"node": "n", "free": n}],
    }


def reservation(n: int) -> Document:
    said = refusal(n, remedy=False)["message"]  # as ledgers of earlier versions have it
    status = {"state": "Blocked", "reason": None, "since": None, "message": said, "outcome": 3}
    return {
        "object": {
            "spec": {"run": "r", "earliestStart": TIME},
            "status": {**status, "shortfallGPUs": n},
        },
        "forecast": {**forecast(n), "refusal": refusal(n)},
    }


def budget(n: int) -> Document:
    row = {"name": "main", "concurrency": n, "gpuHours": 1 / 3, "open": False}
    return {
        "object": {
            "spec": {"owner": "a", "envelopes": [{}] * n},
            "status": {"conditions": [], "headroom": [row, {**row, "gpuHours": None}]},
        },
        "leases": [],
    }


def node(n: int) -> Document:
    status = {"leased": 0, "devices": n, "virtual": False}
    return {"object": {"spec": {"cordoned": True}, "status": status}, "runs": []}


def outcome(n: int) -> Document:
    return {
        "outcome": 7,
        "stage": "void",
        "label": None,
        "run": None,
        "reservation": None,
        "deficitGPUs": n,
        "scope": {"flavor": "H100", "location": {}, "cap": None},
        "cause": None,
        "committed": TIME,
        "k": 1,
        "chain": "ab",
        "ownerWeighting": "owners",
        "beacon": None,
        "finalSeq": 9,
        "answered": None,
        "seed": None,
        "reason": None,
        "names": {},
        "tokens": [],
        "result": {"actions": [], "draws": [], "withdrawn": [{"gpus": n}]},
    }


def plan(n: int, *, starts: bool) -> Document:
    line = {"budget": "a", "envelope": "m", "owner": "a", "gpus": n, "tier": 0, "borrowed": False}
    groups = [{"active": [f"n#{i}" for i in range(n)]}]
    place = {"groups": groups, "shortfall_gpus": n}
    return {"funded": True, "plan": [line], "starts": starts, "placement": place, "gpus": n}


def unpaid(n: int, **start: Document) -> Document:
    return {"funded": False, "refusal": refusal(n), "recall": None, "overdraft": None, **start}


def effects(n: int) -> Document:
    row = {"hours": False, "cap": "envelope", "name": "m", "run": "r", "owner": "a"}
    return {
        "object": {"kind": "Budget", "metadata": {"name": "a"}},
        "change": "configured",
        "preview": {"unfunded": [{**row, "gpus": n, "lease": "l"}]},
    }


def event(n: int) -> Document:
    about = {"kind": "Reservation", "name": "r"}
    said = refusal(n, remedy=False)["message"]
    return {
        "seq": 1,
        "time": TIME,
        "kind": "reservation.state",
        "object": about,
        "reason": "x",
        "message": said,
    }


TEXTS: dict[str, Callable[[int], None]] = {
    "plan": lambda n: render.print_plan(plan(n, starts=True)),
    "plan that waits": lambda n: render.print_plan(plan(n, starts=False)),
    "plan by recall": lambda n: render.print_plan(unpaid(n, recall={"leases": n, "gpus": n})),
    "plan by overdraft": lambda n: render.print_plan(
        unpaid(n, overdraft={"budget": "a", "envelope": "m"})
    ),
    "refusal": lambda n: render.print_refusal(refusal(n)),
    "refusal without a remedy": lambda n: render.print_refusal(refusal(n, remedy=False)),
    "forecast": lambda n: render.print_forecast(forecast(n)),
    "forecast that is short": lambda n: render.print_forecast(forecast(n, short=n)),
    "forecast of a drain": lambda n: render.print_forecast(forecast(n, node=True)),
    "forecast of a cap": lambda n: render.print_forecast(forecast(n), lack="are above a/main"),
    "preview": lambda n: render.print_preview(forecast(n), reserved=True),
    "preview that starts": lambda n: render.print_preview(forecast(n, starts=True), reserved=True),
    "cut": lambda n: render.print_cut(run(n, "Shrunk", "x"), cut(n, "operator-trusted"), may=[]),
    "outcome": lambda n: render.print_outcome(outcome(n)),
    "run": lambda n: plans._explain_run("r", explained(n, "Pending", OPERATOR)),
    "reserved run": lambda n: plans._explain_run("r", explained(n, "Reserved", TENANT)),
    "reservation": lambda n: plans._explain_reservation("r", reservation(n)),
    "budget": lambda n: plans._explain_budget("b", budget(n)),
    "node": lambda n: plans._explain_node("n", node(n)),
    "event": lambda n: print_event(event(n), "text"),
    "effects": lambda n: print_effects(Output(), effects(n)),
    "no room": lambda n: print(no_room(n, 2)),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("n", [1, 2])
def test_texts_count_and_round(text: str, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    TEXTS[text](n)
    shown = capsys.readouterr().out
    assert shown.strip()
    assert "None" not in shown
    assert not re.search(rf"\b1 ({NOUNS})s\b", shown), shown
    assert not re.search(rf"\b1 (free )?({NOUNS})( of \w+)* (are|were|have)\b", shown), shown
    assert not re.search(rf"(?<![.\d])([02-9]|\d\d+) (free )?({NOUNS})\b", shown), shown
    assert not re.search(r"\d\.\d{3,}", shown), shown


def test_a_binding_limit_has_its_unit() -> None:
    assert render._use({"limit": 4, "used": 2}) == "2 of 4 GPUs used"
    assert render._use({"limit": 1, "used": 1}) == "1 of 1 GPU used"
    assert render._use({"limit": 3, "used": 0.7611}) == "0.76 of 3 GPU-hours used"
    assert render._use({"limit": None, "used": 0}) == "0 of none used"


@pytest.mark.parametrize("may", [TENANT, OPERATOR, []])
def test_explain_offers_only_what_the_reader_may_do(
    may: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reply = {**explained(2, "Pending", may), "cut": cut(2, "operator-trusted")}
    plans._explain_run("r", reply)
    shown = capsys.readouterr().out
    for verb in OPERATOR:
        offered = f"fairlead audit {verb}" if verb == "nonce" else f"fairlead {verb}"
        assert (offered in shown) == (verb in may and verb != "replay"), shown


def test_explain_tells_of_a_drain(capsys: pytest.CaptureFixture[str]) -> None:
    """No lottery, no odds and no nonce: every run had to leave the node."""
    lost = {**cut(2, "operator-trusted"), "drawn": True, "drained": "box"}
    plans._explain_run("r", {**explained(2, "Pending", OPERATOR), "cut": lost, "left": "x"})
    shown = capsys.readouterr().out
    assert "outcome 7: node box was drained; every run that could not go on elsewhere" in shown
    assert not re.search(r"lottery|odds|nonce|missing \(|it ran before", shown), shown
    without = {**explained(2, "Pending", []), "cut": None, "left": "node box was drained"}
    plans._explain_run("r", without)
    assert "  it ran before: node box was drained\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "1 GPUs short: x; envelope-hours of a/b from 0.1 to 1.2345 would do",
            "1 GPU short: x; envelope-hours of a/b from 0.1 to 1.24 would do",
        ),
        (
            "11 GPUs short: x; y of z from None to 2 would do",
            "11 GPUs short: x; y of z from none to 2 would do",
        ),
        (
            "x of allow_borrow from False to True would do",
            "x of allow_borrow from false to true would do",
        ),
        ("node None failed at 10.0.0.123", "node None failed at 10.0.0.123"),
    ],
)
def test_a_recorded_message_as_people_read_it(message: str, said: str) -> None:
    """Its bytes stay in the record; what is shown counts, rounds and has no `None`."""
    assert readable(message) == said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "8 GPUs short: x; envelope-concurrency of a/b from 4 to 12 would do",
            "8 GPUs short: x; concurrency of envelope a/b from 4 to 12 would do",
        ),
        (
            "1 GPUs short: x; borrow-limit of allow_borrow from False to True would do",
            "1 GPU short: x; the run's funding.allowBorrow from false to true would do",
        ),
        ("run re-tried of x from y", "run re-tried of x from y"),
        ("a; no-such of x from 1 to 2 would do", "a; no-such of x from 1 to 2 would do"),
    ],
)
def test_a_remedy_is_told_in_the_fields_of_the_manifest(message: str, said: str) -> None:
    """As `plan` and `explain` name it; the reader has to find it in a file."""
    assert render.told(message) == said


def test_hours_that_would_do_are_rounded_up() -> None:
    assert render._value(2 / 3, up=True) == "0.67"
    assert render._value(1 / 3) == "0.33"
    assert render._value(1 / 3, up=True) == "0.34"
    assert render._value(120.0, up=True) == "120"
    assert render._value(0.005) == "0.005"
    assert render._value(0.00501, up=True) == "0.0051"
    assert used_of(1 / 3, 2 / 3) == "0.33/0.67"
    assert used_of(0.5, 1_234_567.0) == "0.50/1234567"


def test_a_tenant_reads_whose_change_would_fund_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A budget is the operator's: a tenant that tries it would be refused."""
    reply = explained(2, "Pending", TENANT)
    reply["object"]["status"]["refusal"] = refusal(2)
    plans._explain_run("r", reply)
    assert "would fund it (the operator's to change): " in capsys.readouterr().out
    plans._explain_run("r", {**reply, "may": [*OPERATOR, "budget"]})
    assert "would fund it: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cacnel", "x"), "unknown command 'cacnel'; did you mean 'cancel'?"),
        (("xyzzy",), "unknown command 'xyzzy'"),
        (("get", "rnus"), "unknown kind 'rnus': did you mean 'runs'?"),
        (
            ("get", "xyzzy"),
            "unknown kind 'xyzzy': expected budgets, runs, nodes, reservations, leases or groups",
        ),
        (("submit", "pyhton", "x.py"), "there is no such script; for a command write"),
        (("run", "--env", "NOT_SET", "--", "x"), "--env: 'NOT_SET' is not set here"),
        (("get", "runs", "-l", "x"), "must be KEY=VALUE, got 'x'"),
        (("report", "--since", "9999-12-31T23:59:59-23:59"), "must be a day like 2026-01-31"),
        (("reserve", "x", "--at", "9999-12-31T23:59:59-23:59"), "the years 1 and 9999 in UTC"),
        (("get", "nodes", "-l", "x=y"), "-l is for lists of budgets, runs and reservations"),
    ],
)
def test_a_typing_error_is_answered_with_what_was_meant(words: tuple[str, ...], said: str) -> None:
    done = run_inside(*words, environment={"PATH": "/bin", "FAIRLEAD_SERVER": "/none.sock"})
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--port", "x"), "'x' is not a valid integer."),
        (("demo", "--speed", "x"), "'x' is not a valid number."),
    ],
)
def test_a_value_that_is_no_number_is_called_that(words: tuple[str, ...], said: str) -> None:
    """Click calls it no valid `integer range`."""
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, said in done.output) == (2, True)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_rates_of_one_read_well(mode: str) -> None:
    assert "requests at 1 per second" in ADMISSION[mode].format(rate=1, burst=1)
