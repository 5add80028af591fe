"""Tidiness that no linter knows: purity of core, integers where promised, docstrings."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "fairlead").rglob("*.py"))
CORE = [path for path in SOURCES if "core" in path.relative_to(ROOT / "src" / "fairlead").parts[:1]]
OTHERS = sorted(
    path for folder in ("tests", "bench", "docs") for path in (ROOT / folder).rglob("*.py")
)

BANNED_NAMES = {"utils", "helpers", "common", "manager", "util", "helper", "misc"}
# Calls that would make a decision depend on something outside its snapshot.
IMPURE = {
    "now",
    "utcnow",
    "today",
    "time",
    "monotonic",
    "perf_counter",
    "open",
    "print",
    "input",
    "hash",
    "id",
    "getenv",
}
# Verbs that act on the world; decisions never do.
ACT_VERBS = ("append_", "write_", "apply_", "send_", "fetch_")
# Exact arithmetic lives here: no float may creep in.
INTEGER_ONLY = ("apportion.py", "claims.py")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", [*SOURCES, *OTHERS], ids=names([*SOURCES, *OTHERS]))
def test_every_file_says_what_it_is_for(path: Path) -> None:
    """No file without a docstring, no module named after nothing."""
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} has no docstring"
    assert path.stem not in BANNED_NAMES


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_core_is_pure(path: Path) -> None:
    """No call that reads a clock, a hash seed or the world; no act-verbs; no global state."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            assert name not in IMPURE, f"{path.name}:{node.lineno} calls {name}()"
        if isinstance(node, ast.FunctionDef):
            assert not node.name.lstrip("_").startswith(ACT_VERBS), node.name
        assert not isinstance(node, ast.Global | ast.Nonlocal), f"{path.name}: global state"


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_integers_where_integers_are_promised(path: Path) -> None:
    """Money-like quantities are annotated int; no function of the exact arithmetic has a float."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else getattr(node.target, "id", "")
            if name.endswith(("_millicores", "_ms", "_us", "_milliseconds", "_bytes", "_count")):
                assert "float" not in ast.unparse(node.annotation), f"{path.name}: {name}"
    # A claim also carries the doubles by which `rough` finds what integers then need not.
    exact = [part for part in tree.body if not isinstance(part, ast.ClassDef)]
    for node in (node for part in exact for node in ast.walk(part)):
        if path.name in INTEGER_ONLY:
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
            assert not (isinstance(node, ast.Name) and node.id == "float")


def test_core_cpu_imports_nothing_heavy() -> None:
    """A fresh interpreter: of third parties no module, and of the standard library a few."""
    script = (
        "import sys; before = set(sys.modules); import fairlead.core.cpu\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = out.stdout.split()
    strangers = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert strangers == {"fairlead"}
    assert len(loaded) < 70, loaded
