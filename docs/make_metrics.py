"""Writes docs/reference/metrics.md from the table of metrics and the alert rules.

`make docs` runs it; a test compares the page with what it would write, so that the page is true.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml

from fairlead.schema.metrics import LABELS, METRICS, MetricRow, Process

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
ALERTS = ROOT / "deploy" / "chart" / "fairlead" / "files" / "alerts.yaml"
MARK = "<!-- Below this line everything is written by `make docs` from the table in the code. -->\n"


def tables() -> Iterator[str]:
    """One per process; what several serve stands once."""
    every = set.intersection(*({row.name for row in rows} for rows in METRICS.values()))
    first = METRICS[Process.CONTROL_PLANE]
    yield from _table("Every process", [row for row in first if row.name in every])
    shown = set(every)
    for process, rows in METRICS.items():
        name = process.value[0].upper() + process.value[1:]
        yield from _table(name, [row for row in rows if row.name not in shown])
        shown |= {row.name for row in rows}


def _table(title: str, rows: list[MetricRow]) -> Iterator[str]:
    yield from (f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|")
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        yield f"| `{row.name}` | {row.kind} | {labels} | {row.help} |"
    yield ""


def labels() -> Iterator[str]:
    yield from ("## Labels", "", "| label | values |", "|---|---|")
    for label, values in sorted(LABELS.items()):
        yield f"| `{label}` | {values} |"
    yield ""


def alerts() -> Iterator[str]:
    """The rules, with what to do."""
    yield from ("## Alerts", "", "| alert | severity | for | expression | what to do |")
    yield "|---|---|---|---|---|"
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            page = rule["annotations"]["runbook"]
            action = f"{_cell(rule['annotations']['action'])} ([page](../../{page}))"
            facts = (rule["labels"]["severity"], rule.get("for", ""), f"`{_cell(rule['expr'])}`")
            yield f"| `{rule['alert']}` | {' | '.join(facts)} | {action} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The page as it should be."""
    head = PAGE.read_text().partition(MARK)[0]
    return head + MARK + "\n" + "\n".join((*tables(), *labels(), *alerts())) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
