"""Node: whether it is there, and asking the second verifier through it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERIFIER = HERE.parents[1] / "verify" / "verify.mjs"
OLDEST = 18


def missing_node() -> str | None:
    """None if there is a Node that is new enough; else what is missing and how to get it."""
    program = shutil.which("node")
    if program is None:
        return "node is not on PATH (apt install nodejs)"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)\.", said.stdout)
    if found is None or int(found[1]) < OLDEST:
        return f"node is older than {OLDEST} ({said.stdout.strip()})"
    return None


def ask(requests: list[tuple[str, Any]]) -> list[Any]:
    """The answers of verify.mjs to many requests, from one process."""
    done = subprocess.run(
        ["node", str(HERE / "agree.mjs")],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers
