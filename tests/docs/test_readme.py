"""The README: an entry for each reader, figures as the results have them, links that hold."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of a table below its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_reader_has_an_entry_of_about_ten_lines() -> None:
    """Commands first, then where to read on."""
    entries = section("Start here").split("\n### ")[1:4]
    assert len(entries) == 3
    for entry in entries:
        (block,) = re.findall(r"^```sh\n(.*?)^```", entry, re.MULTILINE | re.DOTALL)
        assert 5 <= len(block.splitlines()) <= 10, entry.splitlines()[0]
        assert all(line.startswith("fairlead ") for line in block.splitlines())
        assert LINK.findall(entry), entry.splitlines()[0]


@pytest.mark.parametrize("row", rows(section("Figures")), ids=lambda row: row[0][:30])
def test_every_figure_is_in_the_results_that_it_links(row: list[str]) -> None:
    """As it stands there; and each has its caveat."""
    (link,) = LINK.findall(row[0])
    results = (ROOT / link).read_text().replace("\u00a0", " ")
    for cell in row[1:]:
        found = re.findall(r"\d+\.\d+|\d{2,}(?! 000)", re.sub(r"\d+ 000", "", cell))
        assert found, f"a figure is missing: {cell}"
        assert [number for number in found if number not in results] == [], cell


def test_it_says_when_to_use_something_else() -> None:
    """Of each neighbour, both ways."""
    found = rows(section("When to use something else"))
    names = [re.findall(r"\[(\w+)\]", row[0])[0] for row in found]
    assert names == ["Slurm", "Kueue", "VPA", "HAProxy", "Envoy"]
    assert all(len(row[1]) > 40 and len(row[2]) > 20 for row in found)


def test_limits_come_before_figures() -> None:
    """A reader meets them first."""
    assert README.index("## Limits") < README.index("## Figures")
    assert len(section("Limits").split("\n- ")) >= 6


def test_its_links_lead_somewhere() -> None:
    """Inside the repository."""
    links = LINK.findall(README)
    assert len(links) > 50
    assert [link for link in links if not (ROOT / link).exists()] == []
