"""The documentation's site: complete, searchable, strict about links, and of this host alone."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from fairlead.api.app import ENDPOINTS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.component("mkdocs")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def site(maker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it: a link or an anchor that leads nowhere would end it."""
    try:
        return maker.build(tmp_path_factory.mktemp("site"))  # type: ignore[no-any-return]
    except SystemExit:
        pytest.fail("the site could not be built: `make docs` says why", pytrace=False)


def test_every_page_of_the_repository_is_in_it_and_can_be_found(site: Path) -> None:
    """By the search, which runs in the browser on an index of the site's own."""
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT).with_suffix(".html")
        assert (site / str(built).replace("README.html", "index.html")).is_file(), page
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = [row["location"] for row in index["docs"] if "envelope" in row["text"]]
    assert any("concepts/budgets" in place for place in found)


def test_the_http_api_is_rendered_from_the_endpoints(site: Path) -> None:
    """Every method and path, and the shapes that they name."""
    text = re.sub(r"<[^>]+>", "", (site / "docs" / "reference" / "http-api.html").read_text())
    assert len(ENDPOINTS) > 30
    for endpoint in ENDPOINTS:
        assert f"{endpoint.method} {endpoint.path}" in text, endpoint.path
    assert "BudgetRow" in text
    assert "Needs the token of an agent or an admin." in text


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host."""
    loaded = re.compile(
        r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>"
    )
    for page in site.rglob("*.html"):
        foreign = [hit[0] for hit in loaded.finditer(page.read_text()) if "canonical" not in hit[0]]
        assert foreign == [], page


@pytest.mark.parametrize("text", ["[x](nowhere.md)", "[x](#nothing)", "[x](/absolute.md)"])
def test_a_link_that_leads_nowhere_ends_the_build(
    maker: ModuleType, tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also an anchor."""

    def gather(source: Path) -> None:
        source.mkdir()
        (source / "README.md").write_text(f"# One\n\n{text}\n")

    with pytest.raises(SystemExit):
        maker.build(tmp_path, gather)
    assert "README.md" in capfd.readouterr().err
