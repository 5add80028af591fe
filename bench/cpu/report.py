"""Writes the results of `bench.cpu`: JSON for now."""

import json
from pathlib import Path
from typing import Any


def write_report(document: dict[str, Any], where: Path, *, wall_s: float) -> None:
    """Everything that was measured."""
    where.mkdir(exist_ok=True)
    document["wall_s"] = wall_s
    (where / "cpu.json").write_text(json.dumps(document))
    print(f"{wall_s:.0f} s; wrote cpu.json")
