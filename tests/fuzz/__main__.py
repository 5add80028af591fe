"""`python -m tests.fuzz [TARGET …] [--seconds N]`: search with coverage as the guide (Atheris).

Each target runs in a process of its own. New inputs that reach new code are kept in `corpus/`; one
that a border does not refuse is kept too and ends the search with 1.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.fuzz.corpus import keep, kept

_MAX_BYTES = 4096
_KEPT_MAX = 200
_LATE_S, _ABORT_S = 120.0, 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="per target (default 60)")
    parser.add_argument("--inside", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return _search(options.targets[0], Path(options.inside), options.seconds)
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - inside, Atheris has to come before it

    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}"
        )
    found = {name: look(name, options.seconds) for name in options.targets or TARGETS}
    print(json.dumps(found, indent=2))
    return 1 if any(each["defects"] for each in found.values()) else 0


def look(name: str, seconds: int) -> dict[str, int]:
    """Search one target; how many cases there were, inputs are kept and defects were found."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - inside, Atheris has to come before it

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "corpus").mkdir()
        for data in [*TARGETS[name].seeds(), *kept(name)]:
            (folder / "corpus" / sha256(data).hexdigest()).write_bytes(data)
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds)]
        code, said = run_bounded([*command, "--inside", place], folder, seconds + _LATE_S)
        if "stat::number_of_executed_units" not in said:
            raise RuntimeError(f"{name}: ended with {code}: {said[-2000:]}")
        cases = int(said.split("stat::number_of_executed_units:")[1].split()[0])
        crashes = [path.read_bytes() for path in folder.glob("crash-*")]
        reached = [path.read_bytes() for path in sorted((folder / "corpus").iterdir())]
        small = sorted(reached, key=len)[:_KEPT_MAX]
        keep(name, [*kept(name), *small, *crashes] if crashes else small)
        if crashes:
            print(f"{name}: {said[-3000:]}", file=sys.stderr)
    return {"cases": cases, "kept": len(small), "defects": len(crashes)}


def run_bounded(command: Sequence[str], folder: Path, within_s: float) -> tuple[int, str]:
    """Run a search; its exit code and what it wrote. One that does not end is ended, with all that
    it started, after its stacks are written.

    libFuzzer looks at its deadline between two inputs, and its limit for one input is a signal that
    Python handles between two instructions: code that does neither outlives both. What it writes
    goes to a file: a pipe would be waited for as long as a process of its own holds it open.
    """
    written = folder / "said"
    with written.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        try:
            child.wait(within_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_ABORT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    return code, written.read_text(errors="replace")


def _search(name: str, folder: Path, seconds: int) -> int:
    import atheris  # noqa: PLC0415 - large, and only for a search

    with atheris.instrument_imports(include=["fairlead"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - so that it is instrumented
    limits = [f"-max_total_time={seconds}", f"-max_len={_MAX_BYTES}", "-print_final_stats=1"]
    places = [f"-artifact_prefix={folder}/", str(folder / "corpus")]
    atheris.Setup([name, *limits, "-timeout=30", *places], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
