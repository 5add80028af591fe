"""docs/architecture.md against the tree: its decisions, files and packages are those there are."""

import re
from pathlib import Path

import fairlead
from fairlead.schema.kinds import KINDS

SOURCE = Path(fairlead.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


def test_the_table_of_governors_names_every_decision_of_gpus() -> None:
    """All that `decide` knows, but for the question that no record holds by itself."""
    (row,) = re.findall(r"^\| gpu \|.*$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(gpu\.\w+)`", row))
    assert named == {kind for kind in KINDS if kind.startswith("gpu.")} - {"gpu.cover"}


def test_files_that_are_named_exist() -> None:
    """By their path from the package."""
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", PAGE))
    assert len(named) > 15
    assert sorted(path for path in named if not (SOURCE / path).exists()) == []


def test_the_tree_has_every_package() -> None:
    """And no other."""
    tree = PAGE.partition("src/fairlead/\n")[2].partition("scenarios/")[0]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert set(re.findall(r"^  ([a-z]+)/", tree, re.MULTILINE)) == packages


def test_the_gpu_page_names_every_service_and_every_file() -> None:
    """Of `ControlPlane` and of its package."""
    package = SOURCE / "engine" / "gpu"
    page = (package / "README.md").read_text()
    plane = (package / "plane.py").read_text()
    services = set(re.findall(r"self\.([a-z]\w*) = (?:\w+ = )?[A-Z]\w*\(", plane))
    assert len(services) > 20
    assert sorted(name for name in services if f"`{name}`" not in page) == []
    files = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    files = {path for path in files if not path.endswith("__init__.py")}
    assert sorted(path for path in files if f"`{path}`" not in page) == []
