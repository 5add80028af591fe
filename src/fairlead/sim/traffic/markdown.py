"""The report of a play as Markdown: promises first, then figures, the picture, the story."""

from collections.abc import Sequence

from fairlead.sim.traffic.figures import Figures, measure
from fairlead.sim.traffic.judge import Verdict
from fairlead.sim.traffic.story import Played

STORY_LINES_MAX = 80


def write_markdown(played: Played, verdicts: Sequence[Verdict], pictures: Sequence[str]) -> str:
    """The whole page."""
    scenario = played.scenario
    lines = [f"# {scenario.name}", ""]
    if scenario.about:
        lines += [scenario.about[:1].upper() + scenario.about[1:] + ".", ""]
    lines += [*_how(played), "", "## Promises", "", "| promise | kept |", "|---|---|"]
    for each in verdicts:
        lines.append(f"| {each.promise} | {'yes' if each.kept else f'**no**: {each.problem}'} |")
    lines += ["", "## Figures", "", *figure_table(measure(played)), ""]
    lines += [f"![{name}]({name})\n" for name in pictures]
    lines += ["## What happened", "", "```"]
    for happening in played.happenings[:STORY_LINES_MAX]:
        lines.append(f"{happening.at_ms / 1000:7.1f} s  {happening.text}")
    if len(played.happenings) > STORY_LINES_MAX:
        lines.append(f"… and {len(played.happenings) - STORY_LINES_MAX} lines more in report.json")
    return "\n".join([*lines, "```", ""])


def _how(played: Played) -> list[str]:
    name, seed = played.scenario.name, played.seed
    replay = [
        "Every tick is in `record/` and is decided again, byte for byte, by",
        "",
        "```",
        "fairlead traffic replay record",
        "```",
    ]
    if played.real:
        sources = "; ".join(f"{signal}: {where}" for signal, where in played.sources.items())
        return [
            f"Played in real time on the {played.plane} plane, seed {seed}.",
            f"Its signals: {sources}.",
            "",
            *replay,
        ]
    return [
        f"Seed {seed}, digest `{played.digest}`. The same seed gives the same digest:",
        "",
        "```",
        f"fairlead traffic harness {name} --seed {seed}",
        "```",
        "",
        *replay,
    ]


def figure_table(figures: Figures) -> list[str]:
    """Names and numbers."""
    rows = (
        ("arrivals", str(figures.arrivals)),
        ("attempts, retries included", str(figures.attempts)),
        ("answered within the SLO, per arrival", f"{figures.good_ratio:.2%}"),
        ("failures that clients saw, per arrival", f"{figures.failed_ratio:.2%}"),
        ("explicit refusals, per attempt", f"{figures.refused_ratio:.2%}"),
        ("p50 and p99 of answers", f"{_ms(figures.p50_ms)}, {_ms(figures.p99_ms)}"),
        ("ticks, and those that were missed", f"{figures.ticks}, {figures.missed_ticks}"),
        ("changes of mode", str(figures.mode_changes)),
        ("isolations", str(figures.isolations)),
        ("slots that changed hands", str(figures.slots_moved)),
    )
    return ["| figure | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g} ms"
