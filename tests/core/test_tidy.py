"""Tidiness that no linter knows: purity of core, integers where promised, names of modules."""

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
INTEGER_ONLY = ("core/apportion.py", "core/claims.py", "core/gpu/claims.py")
# What a claim carries for `core/rough.py`, which alone works with doubles and proves what it finds.
DOUBLES = {"weight", "demand", "pace", "least", "most"}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_no_module_is_named_after_nothing() -> None:
    """That each has a docstring, ruff sees (D100, D104)."""
    assert [path for path in (*SOURCES, *OTHERS) if path.stem in BANNED_NAMES] == []


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
    """Money-like quantities are annotated int."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else getattr(node.target, "id", "")
            if name.endswith(("_millicores", "_ms", "_us", "_milliseconds", "_bytes", "_count")):
                assert "float" not in ast.unparse(node.annotation), f"{path.name}: {name}"


@pytest.mark.parametrize("name", INTEGER_ONLY)
def test_exact_arithmetic_has_no_double(name: str) -> None:
    """It holds none, divides to none and reads none; that a claim has those of `rough` when it is
    made is all."""
    found = doubles_of(ast.parse((ROOT / "src" / "fairlead" / name).read_text()))
    made = [row for row in found if row.startswith("Claim.__init__: ")]
    assert found == (made if name == "core/claims.py" else [])
    allowed = {f"Claim.__init__: {each}" for each in (*DOUBLES, "float", "0.0", "1.0")}
    assert set(made) <= allowed


def doubles_of(tree: ast.AST, place: str = "") -> list[str]:
    """Each double below a node, behind the names of the class and function that have it."""
    found = []
    for node in ast.iter_child_nodes(tree):
        inner = (
            f"{place}.{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef) else place
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            found.append(f"{inner[1:]}: {node.value}")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            found.append(f"{inner[1:]}: {ast.unparse(node)}")
        if isinstance(node, ast.Name) and node.id == "float":
            found.append(f"{inner[1:]}: float")
        if isinstance(node, ast.Attribute) and node.attr in DOUBLES:
            found.append(f"{inner[1:]}: {node.attr}")
        found += doubles_of(node, inner)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "x = 0.5",
        "def f(a, b): return a / b",
        "class A:\n def f(self): return self.pace",
        "class Fill:\n level: float",
    ],
)
def test_a_double_is_found_where_it_hides(source: str) -> None:
    """In functions, classes and annotations."""
    assert doubles_of(ast.parse(source))


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
