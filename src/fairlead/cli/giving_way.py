"""Forecasts, cuts and outcomes in words and tables, for every command that tells of giving way."""

from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment
from fairlead.cli.plans_show import print_refusal
from fairlead.cli.show import Column, cell, moment, rows_of

VERIFY = "python3 verify/fairlead_verify.py"
_WORDS = {"DropSpare": "drops spares", "Shrink": "shrinks", "RandomPreempt": "was drawn"}
_TIERS = ("unfunded", "nominated", "funded")
_FORECAST: list[Column] = [
    ("RUN", lambda r: r["run"]),
    ("OWNER", lambda r: r["owner"]),
    ("WHAT", lambda r: r["what"]),
    ("GPUS", lambda r: r["gpus"]),
    ("TIER", lambda r: r["tier"]),
    ("ODDS", lambda r: r["odds"]),
]
_ACTIONS: list[Column] = [
    ("RUN", lambda r: r["run"]),
    ("OWNER", lambda r: r["owner"]),
    ("WHAT", lambda r: r["what"]),
    ("GPUS", lambda r: r["gpus"]),
    ("LEASES", lambda r: r["leases"]),
    ("TIER", lambda r: r["tier"]),
    ("DRAW", lambda r: r["draw"]),
]


def scope_text(scope: dict[str, Any]) -> str:
    """`H100 in domain=rack-1,region=west`."""
    where = cell(scope["location"]) if scope["location"] else ""
    return f"{cell(scope['flavor'])}{f' in {where}' if where else ''}"


def forecast_of(client: Client, reservation: str) -> tuple[dict[str, Any] | None, str]:
    """What a reservation would take to start; where that is no question any more, why."""
    try:
        return dict(client.get(f"/v1/reservations/{segment(reservation)}/forecast")), ""
    except Answer as error:
        if error.status != 409:
            raise
        return None, error.about


def print_forecast(found: dict[str, Any], indent: str = "", lack: str = "are missing") -> None:
    """Who gives way by rule, and who is at risk with which odds."""
    if found["scope"] is None:
        return
    place, gpus = scope_text(found["scope"]), found["deficitGPUs"]
    if "node" in found["scope"]["location"]:
        lack = "have to leave it"
    if not gpus:
        click.echo(f"{indent}no GPUs of {place} {lack}: nobody has to give way")
    elif found["shortfallGPUs"]:
        click.echo(
            f"{indent}{gpus} GPUs of {place} {lack}, and {found['shortfallGPUs']} "
            "of them still would if everybody gave way: nobody is asked to"
        )
    else:
        click.echo(f"{indent}{gpus} GPUs of {place} {lack}; this is who would give way:")
        rows_of(forecast_rows(found), _FORECAST, indent)
        if not all(map(_is_certain, found["atRisk"])):
            click.echo(
                f"{indent}Odds are those of the first draw; an owner is drawn, then one of "
                "its runs. What is cut by rule may come back after it."
            )


def forecast_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Cuts by rule, one row for a run's spares and one for its steps; then the runs at risk.

    The server's order goes by pseudonyms, which are chance; here it is by name.
    """
    cuts: dict[tuple[str, str], dict[str, Any]] = {}
    for cut in sorted(
        found["cuts"], key=lambda each: (_TIERS.index(each["tier"]), each["kind"], each["run"])
    ):
        row = cuts.setdefault(
            (cut["run"], cut["kind"]),
            {
                "run": cut["run"],
                "owner": cut["owner"],
                "what": _WORDS[cut["kind"]],
                "gpus": 0,
                "tier": cut["tier"],
                "odds": "by rule",
            },
        )
        row["gpus"] += cut["gpus"]
    risks = []
    for risk in sorted(found["atRisk"], key=lambda each: (_TIERS.index(each["tier"]), each["run"])):
        row = {"gpus": None, "what": "is stopped", "odds": "certain"}
        if not _is_certain(risk):
            row |= {"what": "may be drawn", "odds": f"1 in {risk['oneIn']}"}
        risks.append({**row, **{key: risk[key] for key in ("run", "owner", "tier")}})
    return [*cuts.values(), *risks]


def _is_certain(risk: dict[str, Any]) -> bool:
    """Whether chance has no say: all of them are needed, or there is only this one."""
    return bool(risk["certain"] or risk["oneIn"] == 1)


def print_room(found: dict[str, Any], indent: str = "") -> None:
    """When a run that waits could start if nobody gave way for it."""
    alone = found["withoutCuts"]
    when = "now" if found["starts"] else f"not before {moment(alone)}" if alone else "unforeseeable"
    click.echo(f"{indent}room for it without others giving way: {when}")


def print_outlook(found: dict[str, Any], indent: str = "", *, reserved: bool = False) -> None:
    """When a run that waits could start, and what that would take of others."""
    if found["refusal"] is not None:
        click.echo(f"{indent}nobody pays for it, and so nobody is asked to give way:")
        print_refusal(found["refusal"], indent + "  ")
        return
    if found["starts"]:
        when = f"starts {moment(found['earliestStart'])}" if reserved else "starts at the next turn"
        click.echo(f"{indent}there is room for it: {when}, and nobody has to give way")
        return
    if reserved:
        click.echo(f"{indent}earliest start: {moment(found['earliestStart'])}")
    print_room(found, indent)
    print_forecast(found, indent)


def print_cut(run: dict[str, Any], cut: dict[str, Any], indent: str = "  ") -> None:
    """Why a run was cut, by which outcome, how to check that, and what it can do now."""
    number, name, status = cut["outcome"], run["metadata"]["name"], run["status"]
    if cut.get("archived"):
        click.echo(f"{indent}cut by outcome {number}, whose entries were moved to an archive")
        return
    odds = f", 1 in {cut['oneIn']} at the first draw" if cut["oneIn"] else ""
    rules = [_WORDS[kind] for kind in cut["kinds"] if kind != "RandomPreempt"]
    how = f"drawn by lot{odds}" if cut["drawn"] else f"by rule: {', '.join(rules)}"
    click.echo(
        f"{indent}cut by outcome {number}, {how}; {cut['deficitGPUs']} GPUs were missing "
        f"({cut['label']})"
    )
    click.echo(
        f"{indent}check it: fairlead audit outcome {number} --export outcome.json && "
        f"{VERIFY} outcome.json"
    )
    if status["givesWay"] is not None:
        until = moment(status["graceEnds"])
        click.echo(f"{indent}now: it is giving way, and has until {until} to save its work")
    elif status["phase"] in ("Pending", "Reserved"):
        click.echo(
            f"{indent}now: it waits, and starts by itself as soon as there is room; "
            f"`fairlead reserve {name} --at TIME` asks for a time"
        )
    elif status["phase"] == "Shrunk":
        total = run["spec"]["totalGPUs"]
        click.echo(
            f"{indent}now: it runs on with {status['width']} of {total} GPUs, and gets back "
            "what it gave up when there is room"
        )
    if cut["label"] == "operator-trusted":
        owner = cell(run["spec"]["owner"])
        click.echo(
            f"{indent}next time: `fairlead audit nonce {owner}` puts your own chance into the draw"
        )


def print_outcome(found: dict[str, Any]) -> None:
    """An outcome from beginning to end; names as far as they may be known."""
    number, result = found["outcome"], found["result"]
    label = f", {found['label']}" if found["label"] else ""
    click.echo(f"outcome {number}: {found['stage']}{label}")
    about = {"run": found["run"], "reservation": found["reservation"]}
    known = ", ".join(f"{kind}/{name}" for kind, name in about.items() if name)
    place = f"{found['deficitGPUs']} GPUs of {scope_text(found['scope'])}"
    why = f"{found['cause']} ({cell(known)})" if known else found["cause"]
    lack = "were missing" if found["scope"]["cap"] is None else "were above it"
    click.echo(f"  for {why}: {place} {lack}")
    click.echo(
        f"  committed {moment(found['committed'])} (entry {number}), number {found['k']} of "
        f"sequence {found['chain'][:16]}"
    )
    if found["ownerWeighting"] == "tokens":
        click.echo(
            "  every run was as likely as the next, however many its owner had (up "
            "--owner-weighting tokens)"
        )
    if found["beacon"] is not None:
        beacon = found["beacon"]
        click.echo(f"  its chance comes from round {beacon['round']} of {cell(beacon['source'])}")
    if found["finalSeq"] is None:
        how = "`fairlead audit beacon` supplies the value"
        if found["beacon"] is None:
            how = "it is drawn when the resolver is enforced"
        click.echo(f"  nobody knows yet who gives way; {how}")
    else:
        click.echo(
            f"  answered {moment(found['answered'])} (entry {found['finalSeq']}), seed "
            f"{found['seed'] or 'never known'}"
        )
    if found["reason"]:
        click.echo(f"  given up: {cell(found['reason'])}")
    if result is not None:
        if found["stage"] == "void":
            click.echo("  this is what it would have been; nobody was cut:")
        rows_of(action_rows(found), _ACTIONS, "  ")
        if result["withdrawn"]:
            gpus = sum(each["gpus"] for each in result["withdrawn"])
            click.echo(f"  {gpus} GPUs that were cut by rule came back after the draw")
    click.echo(
        f"  check it: fairlead audit outcome {number} --export outcome.json && "
        f"{VERIFY} outcome.json"
    )


def action_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was decided, one row for a run's leases of one kind; hidden names are cut short."""
    result, names = found["result"], found["names"]
    owners = {each["token"]: each["owner"] for each in (*found["tokens"], *result["draws"])}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for action in result["actions"]:
        owner = owners.get(action["run"])
        row = rows.setdefault(
            (action["run"], action["kind"]),
            {
                "run": _name(names, action["run"]),
                "owner": owner and _name(names, owner),
                "what": _WORDS[action["kind"]],
                "gpus": 0,
                "leases": 0,
                "tier": action["tier"],
                "draw": action["draw"],
            },
        )
        row["gpus"] += action["gpus"]
        row["leases"] += 1
    return list(rows.values())


def _name(names: dict[str, str], hidden: str) -> str:
    return names.get(hidden, hidden[:10] + "…")
