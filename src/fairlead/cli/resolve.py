"""`fairlead resolve`: have runs give way by hand, or see who would."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.giving_way import print_forecast, print_outcome, print_outlook
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.manifests import dry_run_option
from fairlead.cli.names import complete_names, nearly
from fairlead.cli.show import note, output_option, show


class ScopeText(click.ParamType[dict[str, str]]):
    """`flavor=H100,region=us-west`."""

    name = "KEY=VALUE,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        """Labels by key; the flavor is one of them."""
        if isinstance(value, dict):
            return value
        found: dict[str, str] = {}
        for part in str(value).split(","):
            key, equals, text = (each.strip() for each in part.partition("="))
            if not (key and equals and text):
                self.fail(
                    f"must be KEY=VALUE,... such as flavor=H100,region=west, got {value!r}",
                    param,
                    ctx,
                )
            if key in found:
                self.fail(f"names {key!r} twice", param, ctx)
            found[key] = text
        if "flavor" not in found:
            self.fail("must say the flavor, such as flavor=H100", param, ctx)
        return found


class CapText(click.ParamType[tuple[str, str]]):
    """`team-a/main`."""

    name = "BUDGET/NAME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The budget and the cap's name."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        short = text.removeprefix("budget/")
        # A budget may be called `budget`: the word is a prefix only where two names follow it.
        budget, _, cap = (short if "/" in short else text).partition("/")
        if not (budget and cap):
            self.fail(f"must be BUDGET/NAME of a cap or an envelope, got {value!r}", param, ctx)
        return budget, cap

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Aggregate caps and envelopes."""
        from fairlead.cli.names import ask

        found = []
        for each in ask(ctx, "/v1/objects/Budget"):
            spec = each["spec"]
            for cap in (*spec["aggregateCaps"], *spec["envelopes"]):
                found.append(f"{each['metadata']['name']}/{cap['name']}")
        return [CompletionItem(text) for text in found if text.startswith(incomplete)]


@click.command("resolve")
@click.option(
    "--scope", type=ScopeText(), help="Where: flavor=H100, and labels such as region=west."
)
@click.option("--gpus", type=click.IntRange(1, 100_000), help="How many to free there.")
@click.option(
    "--cap",
    type=CapText(),
    help="Free what an aggregate cap, or an envelope, does not pay for any more; nobody "
    "else is touched.",
)
@click.option(
    "--budget",
    shell_complete=complete_names("Budget"),
    help="The same for all caps and envelopes of a budget that are exceeded: one after "
    "the other, by name; then --scope, if given.",
)
@click.option(
    "--run",
    "run",
    shell_complete=complete_names("Run"),
    help="Start this waiting run now, if need be by others giving way.",
)
@dry_run_option
@output_option
@server_option
@click.pass_context
def resolve(
    ctx: click.Context,
    *,
    scope: dict[str, str] | None,
    gpus: int | None,
    cap: tuple[str, str] | None,
    budget: str | None,
    run: str | None,
    dry_run: bool,
    output: str,
    server: str | None,
) -> None:
    """Have runs give way: spares first, then steps of elastic runs, then whole gangs by lot.

    For maintenance (--scope and --gpus: nobody is placed there, so cordon the nodes too), for a
    budget that was lowered (--cap, or --budget for all its caps, one after the other), or for one
    run (--run, by the operator and owners that may). Reservations need none of this: they resolve
    by themselves at their time.

    With --dry-run you see who shrinks, who is at risk and with which odds; nothing is drawn, so
    nobody learns who it would be. Without, the conflict is written down before the lots are drawn,
    and everybody can check the draw: `fairlead audit outcome N`. Exit code 1 when nobody was asked
    to give way though GPUs are missing.

    \b
      fairlead resolve --scope flavor=H100,region=us-west --gpus 8 --dry-run
      fairlead resolve --cap team-a/main
      fairlead resolve --budget team-a --dry-run
      fairlead resolve --run train-7 --dry-run
    """
    about = (None if budget is not None else scope, cap, budget, run)
    if sum(each is not None for each in about) != 1:
        raise click.UsageError("say one of --scope with --gpus, --cap, --budget, --run")
    if (scope is None) != (gpus is None):
        raise click.UsageError("--scope and --gpus belong together")
    client = Client(server)
    if run is not None:
        _for_run(client, run.removeprefix("run/"), output, dry_run=dry_run)
        return
    body: dict[str, Any] = {}
    if cap is not None:
        body["cap"] = {"budget": cap[0], "name": cap[1]}
    if scope is not None:
        location = {key: value for key, value in scope.items() if key != "flavor"}
        body = {"flavor": scope["flavor"], "location": location, "gpus": gpus}
    if budget is not None:
        name = budget.removeprefix("budget/")
        _for_budget(ctx, client, {**body, "budget": name}, output, dry_run=dry_run)
        return
    found = client.call("POST", "/v1/resolve", body=body, query={"dry_run": dry_run})
    number = found["outcome"]
    outcome = None if number is None else client.get(f"/v1/outcomes/{number}")
    if output != "table":
        show({**found, "result": outcome}, output)
    elif outcome is not None:
        print_outcome(outcome)
    else:
        lack = "are missing" if cap is None else f"are above {cap[0]}/{cap[1]}"
        print_forecast(found["forecast"], lack=lack)
    _refused(ctx, found, [found["forecast"]], dry_run=dry_run)


def _refused(
    ctx: click.Context, found: dict[str, Any], forecasts: list[dict[str, Any]], *, dry_run: bool
) -> None:
    """Exit code 1 where somebody should have given way, and nobody was asked to."""
    if found["outcome"] is None and any(each["deficitGPUs"] for each in forecasts) and not dry_run:
        note(
            f"refused: the resolver is {found['resolver']} (fairlead up --resolver enforce); "
            "nobody was asked to give way"
        )
        ctx.exit(EXIT_REFUSED)
    if any(each["shortfallGPUs"] for each in forecasts):
        ctx.exit(EXIT_REFUSED)


def _for_budget(
    ctx: click.Context, client: Client, body: dict[str, Any], output: str, *, dry_run: bool
) -> None:
    """One resolve for each cap that is exceeded, by name, and then for the place."""
    budget = body["budget"]
    found = client.call("POST", "/v1/resolve", body=body, query={"dry_run": dry_run})
    steps = found["steps"]
    if output != "table":
        show(found, output)
    elif not steps:
        click.echo(f"nothing of budget/{budget} is above its caps: nobody has to give way")
    for step in steps if output == "table" else ():
        cap = f"{budget}/{step['name']}"
        where, lack = (
            ("then the place", "are missing")
            if step["kind"] == "place"
            else (f"{step['kind']} {cap}", f"are above {cap}")
        )
        if step["state"] == "waits":
            click.echo(f"{where}: follows when the one before is over, on what it leaves")
        elif step["state"] == "passed":
            click.echo(f"{where}: nobody has to give way for it any more")
        else:
            click.echo(f"{where}:")
            if step["outcome"] is None:
                print_forecast(step["forecast"], "  ", lack=lack)
            else:
                print_outcome(client.get(f"/v1/outcomes/{step['outcome']}"))
    _refused(ctx, found, [step["forecast"] for step in steps], dry_run=dry_run)


def _for_run(client: Client, run: str, output: str, *, dry_run: bool) -> None:
    path = f"/v1/objects/Run/{segment(run)}/actions/resolve"
    try:
        change = client.call("POST", path, query={"dry_run": dry_run})
    except Answer as error:
        raise nearly(client, error, "Run", run) from None
    if output != "table":
        show(change, output)
    elif dry_run:
        click.echo(f"run/{run} would be started (dry run)")
        print_outlook(change["preview"]["forecast"], "  ")
    else:
        phase = change["object"]["status"]["phase"]
        click.echo(
            f"run/{run} is {phase}; others give way for it now where they have to "
            "(fairlead audit outcome)"
        )
