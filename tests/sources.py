"""What a stored count depends on: the source that it ran on, as a digest, and its commit."""

import subprocess
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fairlead"


def digest(parts: Iterable[str], source: Path = SOURCE) -> str:
    """Of all Python files below these packages, by name and content; "" is the whole product."""
    whole = sha256()
    for part in sorted(parts):
        for path in sorted((source / part).rglob("*.py")):
            whole.update(f"{path.relative_to(source)}\0".encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def commit() -> str:
    """What was run; `+` where files were changed since, besides stored results."""
    name = _git("describe", "--always", "--abbrev=12", "--exclude=*")
    changed = _git("status", "--porcelain", "--", ".", ":!bench/results")
    return f"{name}{'+' if changed else ''}" or "unknown"


def _git(*given: str) -> str:
    command = ["git", *given]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=SOURCE.parents[1]
    )
    return done.stdout.strip()
