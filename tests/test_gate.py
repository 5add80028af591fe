"""The gate runs again, alone, what may have failed because of the load, and nothing else."""

import sys
from pathlib import Path

import pytest

from tests import gate

GATE = "other tests"
FLAKY = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = "def test_ever():\n    assert False\n"
MANY = "".join(f"def test_{number}():\n    assert False\n" for number in range(6))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a root apart from those of the run that this test belongs to."""
    monkeypatch.setattr(gate, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(gate, "ROOT", tmp_path)


def first_run(folder: Path, text: str) -> bool:
    """Play a file of tests as its gate would."""
    (folder / "test_it.py").write_text(text)
    return gate.passes(GATE, [*gate.PYTEST, "test_it.py", *gate.remembering(GATE)])


def test_what_passes_alone_is_named(tmp_path: Path) -> None:
    """A test that fails once passes the gate, and its name comes back for the summary."""
    assert not first_run(tmp_path, FLAKY)
    assert gate.run_alone(GATE) == ["test_it.py::test_once"]


@pytest.mark.parametrize("text", [BROKEN, MANY, "import nothing_of_that_name\n"])
def test_what_fails_again_fails_the_gate(tmp_path: Path, text: str) -> None:
    """A broken test, many failures, and a file that cannot be imported stay failures."""
    assert not first_run(tmp_path, text)
    assert gate.run_alone(GATE) == []


def test_gates_that_compute_have_no_second_run() -> None:
    """Format, types, imports and the core fail for good; every gate of AGAIN exists."""
    names = {name for lane in gate.LANES.values() for name in lane}
    assert names > gate.AGAIN
    for name in [*gate.STATIC, *gate.LANES["core"]]:
        assert gate.remembering(name) == []
        assert gate.run_alone(name) == []


def test_a_gate_that_hangs_says_where(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is stopped with everything it started, fails, and its output has the place."""
    (tmp_path / "hangs.py").write_text("def wait_for_ever():\n    input()\nwait_for_ever()\n")
    inner = f"{sys.executable} hangs.py < <(exec sleep 300)"
    assert not gate.passes(GATE, ["bash", "-c", f"{inner}; true"], seconds_max=5)
    assert "in wait_for_ever" in capfd.readouterr().out
