"""Examples in the design pages, as they stand: what is typed is run, what is answered compared."""

import re
from pathlib import Path

import pytest

from tests.docs.test_tutorial import ROOT, Typist, environment, steps

PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
__all__ = ["environment"]  # the fixture


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_examples_as_they_stand(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """In one folder, in order."""
    typist, compared = Typist(tmp_path, environment), 0
    for step in steps(page):
        shown = typist.type(step.commands)
        if step.answer is not None:
            assert shown.rstrip() + "\n" == step.answer, step.commands
            compared += 1
    typist.process.stdin.close()  # type: ignore[union-attr]
    assert typist.process.wait(timeout=30) == 0
    assert compared >= 4


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_pages_lead_to_pages_that_are_there(page: Path) -> None:
    """Every link inside the repository."""
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
