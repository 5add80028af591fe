"""Types that several threads use for the first time at once."""

import subprocess
import sys

import msgspec
import pytest

from fairlead.schema.convert import convert, decode_json

RACE = """
import sys, threading
from dataclasses import make_dataclass
from fairlead.schema.convert import convert
sys.setswitchinterval(1e-6)
fields = [f"f{i}" for i in range(20)]
def race(number):
    inner = [make_dataclass(f"I{number}_{i}", [(f, "int | None", None) for f in fields])
             for i in range(5)]
    outer = make_dataclass(f"O{number}", [(f"a{i}", each, None) for i, each in enumerate(inner)])
    value = {f"a{i}": dict.fromkeys(fields, i) for i in range(5)}
    together = threading.Barrier(8)
    def go():
        together.wait()
        convert(value, outer)
    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
for number in range(60):
    race(number)
"""


def test_the_first_use_of_a_type_by_several_threads_ends_no_process() -> None:
    """By `msgspec.convert` itself it does, within the first of these."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_does_not_fit_is_refused_as_msgspec_does() -> None:
    assert convert([1, 2], list[int]) == [1, 2]
    assert convert({"a": "1"}, dict[str, int], strict=False) == {"a": 1}
    assert decode_json(b"null", int | None) is None  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
            decode_json(b'"x"', int)
