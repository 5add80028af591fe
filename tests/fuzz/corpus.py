"""Kept inputs of each target, a line of base64 each: seeds of the next search, and regressions."""

import base64
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def kept(target: str) -> list[bytes]:
    path = FOLDER / f"{target}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def keep(target: str, inputs: Iterable[bytes]) -> None:
    lines = sorted({base64.b64encode(each).decode() for each in inputs})
    (FOLDER / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines))
