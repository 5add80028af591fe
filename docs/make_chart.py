"""Writes the table of docs/reference/chart.md from the comments of the chart's values.yaml.

`make docs` runs it; a test compares the page with what it would write, so that the page is true.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
VALUES = ROOT / "deploy" / "chart" / "fairlead" / "values.yaml"
PAGE = ROOT / "docs" / "reference" / "chart.md"
MARK = "<!-- Below this line everything is written by `make docs` from values.yaml. -->\n"


def rows(text: str) -> Iterator[tuple[str, Any, str]]:
    """Every value that has a comment: its path, its default, the comment."""
    document, path, comment = yaml.safe_load(text), [], []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped[1:].strip())
        elif not stripped:
            comment = []
        else:
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], stripped.partition(":")[0]]
            if comment:
                value = document
                for name in path:
                    value = value[name]
                yield ".".join(path), value, " ".join(comment)
            comment = []


def page() -> str:
    """The page as it should be."""
    head = PAGE.read_text().partition(MARK)[0]
    lines = ["", "| value | default | what it does |", "|---|---|---|"]
    for path, value, comment in rows(VALUES.read_text()):
        lines.append(f"| `{path}` | `{json.dumps(value)}` | {comment} |")
    return head + MARK + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
