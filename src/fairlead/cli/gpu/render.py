"""Plans, refusals, preemption previews and outcomes as text."""

import re
from collections.abc import Sequence
from math import ceil
from typing import Any

import click

from fairlead.cli.client import Client, ServerError, segment
from fairlead.cli.table import about, as_called, cell, columns, moment, print_table
from fairlead.core.units import are, counted
from fairlead.schema.words import WAITS_FOR_IDLE, no_room, readable

VERIFY = "python3 verify/fairlead_verify.py"
_PLAN = columns("budget envelope owner gpus tier borrowed")
_FORECAST = columns("run owner what gpus tier odds")
_ACTIONS = columns("run owner what gpus leases tier draw")
_EFFECTS = {"DropSpare": "drops spares", "Shrink": "shrinks", "RandomPreempt": "was selected"}
_TIERS = ("unfunded", "nominated", "funded")
# The field of the manifest that each kind of remedy changes.
_REMEDIES = {
    "envelope-concurrency": "concurrency of envelope",
    "aggregate-concurrency": "maxConcurrency of aggregate cap",
    "envelope-hours": "maxGPUHours of envelope",
    "aggregate-hours": "maxGPUHours of aggregate cap",
    "lending-concurrency": "lending.maxConcurrency of envelope",
    "lending-hours": "lending.maxGPUHours of envelope",
    "lending-acl": "lending.to of envelope",
    "borrow-limit": "the run's",
}
_REMEDY = re.compile(r"\b([a-z]+-[a-z]+) of (\S+) from (?=.* would do$)")
_SMALL_HOURS = 0.1
_VERBS = {"are": "is", "have": "has"}
_SINGULAR = re.compile(r"^(are|have)\b")
_FIELDS = {"max_borrow_gpus": "funding.maxBorrowGPUs", "allow_borrow": "funding.allowBorrow"}


def print_plan(plan: dict[str, Any], indent: str = "") -> None:
    if not plan["funded"]:
        print_refusal(plan["refusal"], indent)
        _print_unpaid(plan, indent)
    elif plan["starts"]:
        print_table(plan["plan"], _PLAN, indent)
        slots = [slot for group in plan["placement"]["groups"] for slot in group["active"]]
        click.echo(f"{indent}starts now on {', '.join(slots)}")
    else:
        print_table(plan["plan"], _PLAN, indent)
        short_gpus = plan["placement"]["shortfall_gpus"]
        delays = "it would delay a run that is before it in the queue"
        why = no_room(short_gpus, plan["gpus"]) if short_gpus else delays
        click.echo(f"{indent}funded, but {why}: it would wait")
    for warning in plan.get("warnings", ()):
        click.echo(f"{indent}warning: {warning}")


def _print_unpaid(plan: dict[str, Any], indent: str) -> None:
    """How a run that no budget pays for would start all the same."""
    if (recall := plan.get("recall")) is not None:
        leases = counted(recall["leases"], "lease")
        click.echo(
            f"{indent}starts by recall: others use its owner's envelopes; {leases} of theirs, "
            f"{counted(recall['gpus'], 'GPU')}, would be unfunded, and first to be preempted"
        )
    elif (overdraft := plan.get("overdraft")) is not None:
        where = f"{overdraft['budget']}/{overdraft['envelope']}"
        click.echo(
            f"{indent}starts unfunded, on idle devices: overdraft of {where}, first to be preempted"
        )


def refusal_text(refusal: dict[str, Any]) -> str:
    """Its message without the remedy at its end: that is given in the fields of the manifest."""
    message = str(refusal["message"])
    return readable(message if refusal["remedy"] is None else message.rpartition("; ")[0])


def told(message: str) -> str:
    """A message of the server, with the remedy at its end in the fields of the manifest."""
    return _REMEDY.sub(_as_field, readable(message))


def _as_field(remedy: re.Match[str]) -> str:
    change, name = remedy.groups()
    return (
        f"{_REMEDIES[change]} {_FIELDS.get(name, name)} from " if change in _REMEDIES else remedy[0]
    )


def print_refusal(refusal: dict[str, Any], indent: str = "", *, asks: bool = False) -> None:
    """`asks`: the reader may not change a budget, and has to ask for it."""
    remedy = refusal["remedy"]
    click.echo(f"{indent}not funded: {refusal['code']}: {refusal_text(refusal)}")
    for limit in refusal["binding"]:
        where = "/".join(filter(None, (limit["budget"], limit["name"])))
        click.echo(f"{indent}  {limit['kind']} {where}: {_use(limit)}")
    if remedy is None:
        click.echo(f"{indent}  no single change would fund it")
        return
    where = "/".join(filter(None, (remedy["budget"], _FIELDS.get(remedy["name"], remedy["name"]))))
    change = _REMEDIES.get(remedy["change"], remedy["change"])
    whose = " (the operator's to change)" if asks and remedy["budget"] else ""
    click.echo(
        f"{indent}  would fund it{whose}: {change} {where} from {_value(remedy['from'])} to "
        f"{_value(remedy['to'], up=True)}"
    )


def _use(limit: dict[str, Any]) -> str:
    """`2 of 4 GPUs used`; hours are the ones that are written with a point."""
    whole = _value(limit["limit"])
    if isinstance(limit["limit"], int | float) and not isinstance(limit["limit"], bool):
        whole += " GPU" if whole == "1" else " GPUs"
        if isinstance(limit["used"], float):
            whole = f"{_value(limit['limit'])} GPU-hours"
    return f"{_value(limit['used'])} of {whole} used"


def _value(value: Any, *, up: bool = False) -> str:
    """As it is written in a manifest; hours with two digits, small ones with four, `up` where less
    would not do."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        parts = 100 if value >= _SMALL_HOURS else 10_000
        return f"{(ceil(value * parts) if up else round(value * parts)) / parts:.10g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value)


# --- preemption previews


def scope_text(scope: dict[str, Any]) -> str:
    """`H100 in domain=rack-1,region=west`."""
    where = cell(scope["location"]) if scope["location"] else ""
    return f"{cell(scope['flavor'])}{f' in {where}' if where else ''}"


NO_PREVIEW = "no preview yet: explain the reservation once the controller has it"


def forecast_of(client: Client, reservation: str) -> tuple[dict[str, Any] | None, str]:
    """The preview of a reservation; where it is over, why there is none."""
    try:
        return dict(client.get(f"/v1/reservations/{segment(reservation)}/forecast")), ""
    except ServerError as error:
        if error.status == 404:  # of a cluster, which reads it from Kubernetes first
            return None, NO_PREVIEW
        if error.status != 409:
            raise
        return None, error.about


def print_forecast(forecast: dict[str, Any], indent: str = "", lack: str = "are missing") -> None:
    if forecast["scope"] is None:
        return
    place, gpus = scope_text(forecast["scope"]), forecast["deficitGPUs"]
    if "node" in forecast["scope"]["location"]:
        lack = "have to leave it"
    if gpus == 1:
        lack = _SINGULAR.sub(lambda verb: _VERBS[verb[0]], lack)
    if not gpus:
        click.echo(f"{indent}no GPUs of {place} {lack}: no preemption needed")
    elif forecast["shortfallGPUs"]:
        click.echo(
            f"{indent}{counted(gpus, 'GPU')} of {place} {lack}; preempting every candidate would "
            f"leave {forecast['shortfallGPUs']} missing, so no run is preempted"
        )
    else:
        click.echo(f"{indent}{counted(gpus, 'GPU')} of {place} {lack}; preemption candidates:")
        print_table(forecast_rows(forecast), _FORECAST, indent)
        if not all(map(_is_certain, forecast["atRisk"])):
            click.echo(
                f"{indent}Odds are for all draws together, and for the first alone: it selects an "
                "owner, then one of its runs. Leases that end by rule may be restored after it."
            )


def forecast_rows(forecast: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for a run's spares and one for its steps; then the runs at risk.

    Sorted by name: the server's order goes by pseudonyms, which are random.
    """
    cuts: dict[tuple[str, str], dict[str, Any]] = {}
    for cut in sorted(
        forecast["cuts"], key=lambda row: (_TIERS.index(row["tier"]), row["kind"], row["run"])
    ):
        row = cuts.setdefault((cut["run"], cut["kind"]), {**cut, "gpus": 0})
        row |= {"gpus": row["gpus"] + cut["gpus"], "what": _EFFECTS[cut["kind"]], "odds": "by rule"}
    risks = []
    for risk in sorted(forecast["atRisk"], key=lambda row: (_TIERS.index(row["tier"]), row["run"])):
        odds = {"what": "may be selected", "odds": odds_text(risk)}
        if _is_certain(risk):
            odds = {"what": "is preempted", "odds": "certain"}
        risks.append({**risk, "gpus": None, **odds})
    return [*cuts.values(), *risks]


def odds_text(risk: dict[str, Any]) -> str:
    """`40 % (first draw: 1 in 4)`; with its error where it was simulated."""
    error = f" ±{risk['chanceError'] * 100:.0f}" if risk["chanceError"] else ""
    first = f"first draw: {risk.get('times', 1)} in {risk['oneIn']}"
    return f"{risk['chance'] * 100:.0f}{error} % ({first})"


def _is_certain(risk: dict[str, Any]) -> bool:
    """Whether the lottery has no choice: all candidates are needed, or there is only this one."""
    return bool(risk["certain"] or risk["oneIn"] == risk.get("times", 1))


def print_room(forecast: dict[str, Any], indent: str = "") -> None:
    alone = forecast["withoutCuts"]
    when = "now" if forecast["starts"] else f"not before {moment(alone)}" if alone else "unknown"
    click.echo(f"{indent}start without preemption: {when}")


def print_assumed(forecast: dict[str, Any], indent: str = "") -> None:
    """What a preview of a later time goes by."""
    runs, gpus = forecast["ended"]["runs"], forecast["ended"]["gpus"]
    if runs:
        click.echo(
            f"{indent}assumes that {counted(runs, 'run')} with {counted(gpus, 'GPU')} will have "
            "ended by then, as duration or maxRuntime says, and that the others run on"
        )


def _print_due(forecast: dict[str, Any], indent: str) -> None:
    due = forecast["due"]
    if due["runs"]:
        verb = "is" if due["runs"] == 1 else "are"
        click.echo(
            f"{indent}not counted: {counted(due['runs'], 'other reservation')} of "
            f"{counted(due['gpus'], 'GPU')} that {verb} due by then"
        )


def print_preview(forecast: dict[str, Any], indent: str = "", *, reserved: bool = False) -> None:
    _print_due(forecast, indent)
    if (recall := forecast["recall"]) is not None:
        click.echo(
            f"{indent}its owner recalls {counted(recall['leases'], 'lease')} of others on its own "
            f"envelopes, {counted(recall['gpus'], 'GPU')}: unfunded, and first to be preempted"
        )
    if forecast["refusal"] is not None:
        click.echo(f"{indent}the run is not funded, so no run is preempted for it:")
        print_refusal(forecast["refusal"], indent + "  ")
        return
    start = moment(forecast["earliestStart"])
    if forecast["starts"]:
        when = start if reserved else "at the next turn"
        click.echo(f"{indent}enough devices are free: starts {when}, no preemption needed")
        return
    if reserved:
        click.echo(f"{indent}earliest start: {start}")
        print_assumed(forecast, indent)
    print_room(forecast, indent)
    print_forecast(forecast, indent)


def slots_text(slots: Sequence[str], *, virtual: bool) -> str:
    """Devices as `box#0,box#1`; those of a virtual node are not there."""
    return ",".join(slots) + (" (virtual)" if virtual else "")


def queue_text(queue: dict[str, Any], flavor: str) -> str:
    """What a run in the queue waits for; of the first ones also until when."""
    where = f"on {cell(queue['on'])}" if queue["on"] else f"of {cell(flavor)}"
    what = f"{counted(queue['gpus'], 'GPU')} {where}"
    if queue.get("lacks") == "envelopes":
        what = f"envelopes that pay for {counted(queue['gpus'], 'GPU')} of {cell(flavor)}"
    if queue.get("cordoned"):
        return f"waits for {what}: {'it' if queue['on'] else 'every node'} is cordoned"
    if "earliestStart" not in queue:
        return f"waits for {what}"
    ends = f" when {cell(queue['after'])} ends" if queue["after"] else ""
    if queue["assumed"]:
        first = f"first{ends}, which has no known duration"
    else:
        first = f"first at about {about(queue['earliestStart'])}{ends}"
    return f"waits for {what}; {first}"


HELD = "Queued"
"""The reason of a run that would delay another one."""


def wait_text(run: dict[str, Any]) -> str:
    """Why a run waits, in one sentence; what the queue does not know is the server's message."""
    status, flavor = run["status"], run["spec"]["flavor"]
    queue = status.get("queue") or {}
    if status["phase"] == "Reserved":
        unpaid = status.get("refusal")
        funded = "" if unpaid is None else f"; not funded now: {cell(refusal_text(unpaid))}"
        return f"starts by reservation/{cell(status['reservation'])}{funded}"
    if "earliestStart" in queue:
        return queue_text(queue, flavor)
    if status["reason"] == HELD and queue.get("lacks") and not queue.get("cordoned"):
        return f"{queue_text(queue, flavor)}: it would delay a run before it"
    if queue.get("lacks") == "devices":
        return queue_text(queue, flavor)
    refusal = status.get("refusal")
    if refusal is not None:
        idle = str(status.get("message") or "").startswith(WAITS_FOR_IDLE)
        return f"{WAITS_FOR_IDLE if idle else 'not funded'}: {cell(refusal_text(refusal))}"
    message = told(status.get("message") or "")
    return cell(message) if message else str(status["reason"])


def reason_text(run: dict[str, Any]) -> str:
    """Why a run is as it is: of one that waits what it waits for, else its message."""
    status = run["status"]
    return wait_text(run) if status["phase"] == "Pending" else cell(told(status["message"] or ""))


def print_cut(
    run: dict[str, Any], cut: dict[str, Any], indent: str = "  ", *, may: Sequence[str] = ()
) -> None:
    """What was taken and what can be done; `may`: what the reader may do."""
    number = cut["outcome"]
    if cut.get("archived"):
        click.echo(f"{indent}preempted by outcome {number}, whose entries were archived")
        return
    if cut.get("drained"):
        away = "every run that could not go on elsewhere was preempted"
        click.echo(f"{indent}outcome {number}: node {cell(cut['drained'])} was drained; {away}")
    else:
        _print_selection(cut, indent)
    click.echo(as_called(f"{indent}{_check(number)}"))
    _print_standing(run, cut, indent, may)


def _print_selection(cut: dict[str, Any], indent: str) -> None:
    """By which rule or with which odds a run was chosen."""
    number = cut["outcome"]
    odds = f", with odds of {odds_text(cut)}" if cut["oneIn"] else ""
    rules = [_EFFECTS[kind] for kind in cut["kinds"] if kind != "RandomPreempt"]
    how = f"selected by the lottery{odds}" if cut["drawn"] else f"by rule: {', '.join(rules)}"
    lack = f"{counted(cut['deficitGPUs'], 'GPU')} {are(cut['deficitGPUs'], 'was', 'were')} missing"
    label = f" ({cut['label']})" if cut["label"] else ""
    click.echo(f"{indent}preempted by outcome {number}, {how}; {lack}{label}")


def _print_standing(
    run: dict[str, Any], cut: dict[str, Any], indent: str, may: Sequence[str]
) -> None:
    """How a preempted run is now, and what its owner can do."""
    name, status = run["metadata"]["name"], run["status"]
    if status["preempting"] is not None:
        until = moment(status["graceEnds"])
        click.echo(f"{indent}now: it is being preempted and has until {until} to checkpoint")
    elif status["phase"] in ("Pending", "Reserved"):
        reserve = as_called(f"; `fairlead reserve {name} --at TIME` reserves a start")
        click.echo(
            f"{indent}now: it is pending and starts once enough devices are free"
            f"{reserve if 'reserve' in may else ''}"
        )
    elif status["phase"] == "Shrunk":
        width = f"{status['width']} of {counted(run['spec']['totalGPUs'], 'GPU')}"
        click.echo(f"{indent}now: it runs with {width} and grows back when devices are free")
    if cut["label"] == "operator-trusted" and "nonce" in may and not cut.get("drained"):
        owner = cell(run["spec"]["owner"])
        nonce = as_called(f"`fairlead audit nonce {owner}`")
        click.echo(f"{indent}next time: {nonce} adds your entropy to the lottery")


def _check(number: int) -> str:
    export = f"fairlead audit outcome {number} --export outcome.json"
    return f"verify it: {export} && {VERIFY} outcome.json"


def print_outcome(outcome: dict[str, Any]) -> None:
    """An outcome from commitment to end; names as far as the reader may know them."""
    number = outcome["outcome"]
    label = f", {outcome['label']}" if outcome["label"] else ""
    click.echo(f"outcome {number}: {outcome['stage']}{label}")
    about = [f"{kind}/{outcome[kind]}" for kind in ("run", "reservation") if outcome[kind]]
    known = ", ".join(about)
    gpus = outcome["deficitGPUs"]
    place = f"{counted(gpus, 'GPU')} of {scope_text(outcome['scope'])}"
    why = f"{cell(outcome['cause'])} ({cell(known)})" if known else cell(outcome["cause"])
    lack = are(gpus, "was", "were") + (
        " missing" if outcome["scope"]["cap"] is None else " above it"
    )
    click.echo(f"  for {why}: {place} {lack}")
    click.echo(
        f"  committed {moment(outcome['committed'])} (entry {number}), number {outcome['k']} of "
        f"sequence {outcome['chain'][:16]}"
    )
    if outcome["ownerWeighting"] == "tokens":
        click.echo("  every run had the same odds, not every owner (up --owner-weighting tokens)")
    if outcome["ownerWeighting"] == "stake":
        click.echo("  every GPU had the same odds, not every owner (up --owner-weighting stake)")
    if outcome.get("voids"):
        click.echo(f"  {counted(outcome['voids'], 'outcome')} before it in its sequence are void")
    _print_seed(outcome)
    if outcome["reason"]:
        click.echo(f"  void: {cell(outcome['reason'])}")
    result = outcome["result"]
    if result is not None:
        if outcome["stage"] == "void":
            click.echo("  the result would have been this; no run was preempted:")
        print_table(action_rows(outcome), _ACTIONS, "  ")
        if result["withdrawn"]:
            gpus = sum(row["gpus"] for row in result["withdrawn"])
            were = are(gpus, "was", "were")
            click.echo(
                f"  {counted(gpus, 'GPU')} to be freed by rule {were} restored after the draw"
            )
    click.echo(as_called(f"  {_check(number)}"))


def _print_seed(outcome: dict[str, Any]) -> None:
    beacon = outcome["beacon"]
    if beacon is not None:
        click.echo(f"  its entropy is round {beacon['round']} of {cell(beacon['source'])}")
    if outcome["finalSeq"] is None:
        how = "`fairlead audit beacon` supplies the value"
        if beacon is None:
            how = "the lottery runs once the resolver is enforced"
        click.echo(f"  no run is selected yet; {how}")
    else:
        click.echo(
            f"  answered {moment(outcome['answered'])} (entry {outcome['finalSeq']}), seed "
            f"{outcome['seed'] or 'never known'}"
        )


def action_rows(outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for a run's leases of one kind; hidden names are abbreviated."""
    result, names = outcome["result"], outcome["names"]
    owners = {row["token"]: row["owner"] for row in (*outcome["tokens"], *result["draws"])}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for action in result["actions"]:
        owner, what = owners.get(action["run"]), _EFFECTS[action["kind"]]
        blank = {**action, "run": _name(names, action["run"]), "what": what, "gpus": 0, "leases": 0}
        blank["owner"] = owner and _name(names, owner)
        row = rows.setdefault((action["run"], action["kind"]), blank)
        row["gpus"] += action["gpus"]
        row["leases"] += 1
    return list(rows.values())


def _name(names: dict[str, str], hidden: str) -> str:
    return names.get(hidden, hidden[:10] + "…")
