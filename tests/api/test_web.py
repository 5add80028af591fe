"""The web page: nothing from elsewhere, nothing to write with. tests/web opens it in a browser."""

import posixpath
import re
from importlib.resources import files
from pathlib import Path

from fairlead.api.web import PAGES, POLICY, SCRIPTS, VERIFIER, VIEWS, content
from fairlead.core.gpu.family import Tier
from fairlead.engine.gpu import reclaim
from fairlead.engine.gpu.entries import TYPES
from tests.api.servers import Running

NAMES = ("page.html", "page.css", *SCRIPTS)
TEXTS = {name: content(name).decode() for name in NAMES}
SVG = '"http://www.w3.org/2000/svg"'  # a name, not an address: nothing is loaded from it


def test_nothing_comes_from_elsewhere() -> None:
    """No address but our own, nothing inline, nothing that turns text into markup; and small."""
    for name, text in TEXTS.items():
        bare = text.replace("// ", "").replace(SVG, "")
        assert not re.search(r"https?:|//[a-z]|@import|url\(", bare), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|\bFunction\b", text
        ), name
    html = TEXTS["page.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="/web/app.js">']
    # The verifier is loaded by the views that prove something.
    assert sum(len(text) for name, text in TEXTS.items() if name != VERIFIER) < 250_000


def test_the_verifier_of_the_page_is_the_published_one(server: Running) -> None:
    """Byte by byte: there is no second implementation that could say something else."""
    published = (Path(__file__).parents[2] / "verify" / "verify.mjs").read_bytes()
    assert server.send("GET", f"/web/{VERIFIER}", tcp=True).data == published


def test_every_block_of_the_style_sheet_is_closed() -> None:
    """A merge that loses a brace hides all that follows in a media query."""
    depth = 0
    for number, text in enumerate(TEXTS["page.css"].splitlines(), 1):
        depth += text.count("{") - text.count("}")
        assert 0 <= depth <= 2, (number, text)
        assert not text.startswith("@media") or text.count("}") or depth == 1, (number, text)
    assert depth == 0


def test_every_module_is_served_and_every_import_is_of_one() -> None:
    """A module that is not in the list would be missing in the browser alone."""
    folder = files("fairlead.api.web")
    kept = {
        f"{part}/{each.name}" for part in ("lib", "views") for each in (folder / part).iterdir()
    }
    assert kept | {"app.js", VERIFIER} == set(SCRIPTS)
    for name in SCRIPTS:
        for other in re.findall(r"""(?:from |import\()"(\.[^"]+)\"""", TEXTS[name]):
            assert posixpath.normpath(posixpath.join(posixpath.dirname(name), other)) in SCRIPTS


def test_the_shell_answers_at_the_address_of_every_view() -> None:
    """So that each can be linked to; and `app.js` knows no address that the server does not."""
    assert set(VIEWS) <= {page.path for page in PAGES}
    known = re.findall(r'^  \["(/[^"]*)"', TEXTS["app.js"], re.MULTILINE)
    assert known
    assert set(known) <= set(VIEWS)


def test_the_policy_lets_nothing_else_in(server: Running) -> None:
    """Every file with the policy; no cookie, no frame; asked again each time; only GET."""
    paths = {"/": "page.html", "/gpu?text=a&owner=b": "page.html", "/runs/a": "page.html"}
    for path, name in {**paths, **{f"/web/{name}": name for name in NAMES[1:]}}.items():
        reply = server.send("GET", path, tcp=True)
        assert (reply.status, reply.data.decode()) == (200, TEXTS[name])
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-cache"
        assert "set-cookie" not in reply.headers
        assert server.send("POST", path, tcp=True).status == 405
        kept = {"If-None-Match": reply.headers["etag"]}
        assert server.send("GET", path, tcp=True, headers=kept).status == 304
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["form-action"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}


def _keys(script: str, table: str) -> set[str]:
    """The keys of an object that a script has as a constant."""
    found = re.search(rf"const {table} = \{{(.*?)\}};", TEXTS[script], re.DOTALL)
    assert found is not None, (script, table)
    return set(re.findall(r'(?:^|[,{\s])"?([\w.-]+)"?: ["`]', found[1]))


def test_what_the_page_says_in_words_is_complete() -> None:
    """Events, causes of a preemption and payers: none is shown by its code."""
    assert _keys("lib/words.js", "EVENTS") >= set(TYPES)
    causes = {"scope", "cap", "reservation", "run", "drain", reclaim.CAUSE}
    assert _keys("views/outcome.js", "CAUSES") == _keys("views/outcome.js", "FOR") == causes
    tiers = {tier.value.removesuffix("-elsewhere") for tier in Tier}
    assert _keys("lib/words.js", "TIERS") == tiers
