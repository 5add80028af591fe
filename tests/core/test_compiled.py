"""Which form of the core runs: the tests of the compiled one must not run on the other."""

import gc
import os
from pathlib import Path

from fairlead.core import apportion
from fairlead.core.claims import Claim


def test_the_form_that_was_asked_for_runs() -> None:
    """`tests.compiled` asks for the compiled form; everything else runs the sources as they are."""
    compiled = Path(apportion.__file__).suffix != ".py"
    assert compiled is (os.environ.get("FAIRLEAD_TEST_FORM") == "compiled")


def test_garbage_is_not_looked_for_in_what_a_compiled_decision_makes() -> None:
    """A clearing has a claim for every pod, and no claim refers back to anything."""
    compiled = Path(apportion.__file__).suffix != ".py"
    assert gc.is_tracked(Claim(0, 1, 0, 1)) is not compiled
