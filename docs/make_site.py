"""Builds the documentation as a site with search, into out/site; `make docs` runs it.

The pages link to each other by their places in the repository. So the site's source is a copy of
them at the same places, with every file that they link to; a link or an anchor that leads nowhere
ends the build. The site loads nothing from elsewhere. Search needs a server:
`python3 -m http.server -d out/site`.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import make_http_api  # noqa: E402 - a script beside this one: found by the line before

HTTP_API = "docs/reference/http-api.md"
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
# By reader: what one needs first comes first.
NAV: dict[str, tuple[str, ...]] = {
    "Start": ("README.md", "docs/faq.md", "docs/reference/glossary.md"),
    "GPU lab": (
        "docs/tutorials/first-budget.md",
        "docs/tutorials/*.md",
        *("docs/concepts/budgets.md", "docs/concepts/queue.md", "docs/concepts/lottery*.md"),
        *("docs/operate/control-plane.md", "docs/operate/install-many-users.md"),
        *("docs/operate/preemption.md", "docs/design/*.md"),
    ),
    "Node CPU": ("docs/concepts/cpu.md", "docs/operate/node.md", "docs/operate/whatif.md"),
    "Traffic": (
        "docs/concepts/traffic.md",
        *("docs/operate/traffic.md", "docs/operate/running-proxy.md"),
        "docs/operate/dataplane-*.md",
    ),
    "Kubernetes": ("docs/kubernetes.md", "docs/kubernetes-*.md", "docs/reference/chart.md"),
    "Operate": (
        "docs/reference/metrics.md",
        "docs/operate/conditions.md",
        "docs/compatibility.md",
        *("docs/operate/*.md", "SECURITY.md"),
    ),
    "Reference": ("docs/reference/cli.md", HTTP_API, "docs/reference/*.md"),
    "Inside": (
        *("docs/architecture.md", "docs/promises.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        "docs/decisions/README.md",
        *("docs/*.md", "src/**/README.md", "bench/**/*.md", "scenarios/*.md"),
    ),
    "Decisions": ("docs/decisions/*.md",),
}


def collect(source: Path) -> None:
    """Copy the pages, and what they link to, to the same places below `source`."""
    waiting = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    copied: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in copied:
            continue
        copied.add(path)
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if path.suffix == ".md":
            linked = ((path.parent / link).resolve() for link in _LINK.findall(path.read_text()))
            waiting += [file for file in linked if file.is_file() and ROOT in file.parents]
    (source / HTTP_API).write_text(make_http_api.page())


def navigation(source: Path) -> Iterator[dict[str, list[str]]]:
    """Every page once, under the first title that names it."""
    seen: set[str] = set()
    for title, patterns in NAV.items():
        pages: list[str] = []
        for pattern in patterns:
            found = sorted(str(path.relative_to(source)) for path in source.glob(pattern))
            pages += [page for page in found if page not in seen]
            seen |= set(found)
        yield {title: pages}


def settings(source: Path, site: Path) -> dict[str, Any]:
    """Of MkDocs; what it doubts ends the build."""
    strict = {"not_found": "warn", "absolute_links": "warn", "unrecognized_links": "warn"}
    features = ["navigation.tabs", "navigation.indexes", "navigation.top", "search.suggest"]
    palettes = [
        {"media": f"(prefers-color-scheme: {scheme})", "scheme": name}
        for scheme, name in (("light", "default"), ("dark", "slate"))
    ]
    return {
        "site_name": "Fairlead",
        "docs_dir": str(source),
        "site_dir": str(site),
        "nav": list(navigation(source)),
        "theme": {"name": "material", "font": False, "features": features, "palette": palettes},
        "use_directory_urls": False,
        "plugins": ["search"],
        "markdown_extensions": [
            *("tables", "admonition", "pymdownx.superfences", "pymdownx.highlight"),
            {"toc": {"permalink": True, "slugify": "SLUGIFY"}},
        ],
        "validation": {"nav": {"omitted_files": "warn"}, "links": {**strict, "anchors": "warn"}},
    }


def build(folder: Path, gather: Callable[[Path], None] = collect) -> Path:
    """Build the site below a folder; exits with MkDocs' code where a page is not right."""
    source, site, config = folder / "site-source", folder / "site", folder / "site.yaml"
    shutil.rmtree(source, ignore_errors=True)
    gather(source)
    text = yaml.safe_dump(settings(source, site), sort_keys=False)
    # Anchors as the usual hosts of repositories make them: the same links hold there and here.
    slugify = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    config.write_text(text.replace("SLUGIFY", slugify))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    # `--quiet` would silence the warnings, and with them `--strict`.
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(done.returncode)
    return site


if __name__ == "__main__":
    print(f"the site: {build(ROOT / 'out').relative_to(ROOT) / 'index.html'}")
