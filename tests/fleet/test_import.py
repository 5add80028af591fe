"""Numpy is an optional extra: without it core works and the fleet path says what to install."""

import subprocess
import sys


def python(script: str) -> str:
    """What a fresh interpreter without numpy prints."""
    script = f"import sys; sys.modules['numpy'] = None\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_without_numpy_names_the_extra() -> None:
    """An ImportError that a reader can act on."""
    script = "try:\n import fairlead.fleet\nexcept ImportError as error:\n print(error)"
    assert "pip install 'fairlead[fleet]'" in python(script)


def test_core_never_needs_numpy() -> None:
    """The scalar path is standard library only."""
    script = "from fairlead.core.cpu import *; print(clear(Snapshot(9, ())).mode)"
    assert python(script) == "uncongested\n"
