"""No border does anything with rubbish but refuse it: kept inputs, and a sample of changes of them.

`make fuzz` searches with coverage as its guide; what it finds is kept in `corpus/`.
"""

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.clock import wait_until
from fairlead.schema.border import BadInput, parse_json
from tests.fuzz.__main__ import run_bounded
from tests.fuzz.corpus import kept
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS, servers

SAMPLE = {"http": 60, "script": 150, "segment": 150, "record": 150, "outcome": 100}
USUAL = 400


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    """The server of a target: the interpreter waits for its threads before anything at exit."""
    yield
    servers.close()


@pytest.mark.parametrize("name", TARGETS)
def test_rubbish_is_refused_at_every_border(name: str) -> None:
    target, rng = TARGETS[name], random.Random(name)
    inputs = [*target.seeds(), *kept(name)]
    for data in inputs:
        target(data)
    for number in range(SAMPLE.get(name, USUAL)):
        data = mutate(rng.choice(inputs), inputs, rng)
        try:
            target(data)
        except Exception as error:
            error.add_note(f"case {number} of {name}: {data!r}")
            raise


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"http"}))
def test_a_seed_gets_past_the_first_checks(name: str) -> None:
    """Otherwise the search would begin with input that the first check refuses."""
    target = TARGETS[name]
    for data in target.seeds():
        target.run(data)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('{"a": 1, "a": 2, "b": }', "$: must be JSON: Expecting value at character 23"),
        ('{"n": ' + "9" * 5000 + ', "a": 1, "a": 2}', "a: is given twice"),
        ('{"n": ' + "9" * 5000 + ", ", "$: must be JSON: "),
        ('{"a": {"b": 1, "b": 2}, "n": ' + "9" * 5000 + "}", "a.b: is given twice"),
    ],
)
def test_two_faults_of_one_text_are_one_refusal(text: str, refusal: str) -> None:
    """A key that is given twice and a text that breaks off: `fairlead decide` ended with 70."""
    with pytest.raises(BadInput) as caught:
        parse_json(text.encode())
    assert str(caught.value).startswith(refusal)


def test_a_search_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """With what it started; and its stacks say where it was."""
    child = "import time; print('child', flush=True); time.sleep(600)"
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print('process', child.pid, file=sys.stderr, flush=True)\n"
        "def hang(): time.sleep(600)\n"
        "hang()\n"
    )
    ended, said = run_bounded([sys.executable, "-c", code], tmp_path, within_s=5)
    assert ended == -signal.SIGABRT
    assert "in hang" in said
    pid = int(said.split()[1])
    assert wait_until(lambda: not _runs(pid), within_s=60)


def _runs(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
