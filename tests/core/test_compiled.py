"""Which form of the core runs: the tests of the compiled one must not run on the other."""

import os
from pathlib import Path

from fairlead.core import apportion


def test_the_form_that_was_asked_for_runs() -> None:
    """`tests.compiled` asks for the compiled form; everything else runs the sources as they are."""
    compiled = Path(apportion.__file__).suffix != ".py"
    assert compiled is (os.environ.get("FAIRLEAD_TEST_FORM") == "compiled")
