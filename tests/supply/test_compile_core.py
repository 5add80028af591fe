"""What is compiled of the core, and what is refused: the rules of `deploy/compiled`."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOT = (
    "apportion",
    "claims",
    "cpu/market",
    "gpu/resolve",
    "gpu/scope",
    "lottery/draw",
    "traffic/admission",
    "traffic/tick",
)


@pytest.fixture
def compile_core(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "compiled"))
    import compile_core  # noqa: PLC0415 - a script, found by its path

    module: ModuleType = compile_core
    return module


def test_loops_are_compiled_and_values_only_where_it_is_said(compile_core: ModuleType) -> None:
    """Documents are derived from the annotations of dataclasses, which mypyc erases."""
    found = {str(path) for path in compile_core.compiled_modules()}
    assert {f"fairlead/core/{name}.py" for name in HOT} <= found
    assert {f"fairlead/core/{name}" for name in compile_core.NATIVE} <= found
    assert not any(name.endswith(("cpu/model.py", "/units.py", "/canonical.py")) for name in found)


VALUES = '''"""Values."""
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plain:
    name: str
    parts: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    count: int | None = None

    def __post_init__(self) -> None:
        if self.name == "":
            raise ValueError("name")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithDefault:
    factor: float = 4.0


@dataclass(frozen=True, slots=True)
class WithMethod:
    count: int

    def half(self) -> int:
        return self.count // 2
'''


def test_a_compiled_value_has_the_constructor_that_dataclass_makes(
    compile_core: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by Python without `slots` and `frozen`: only the constructor counts here."""
    text = compile_core.with_constructors(VALUES)
    plain = text.replace("frozen=True, slots=True", "init=False")
    module = ModuleType("values")
    module.__dict__["mypyc_attr"] = lambda **_: lambda cls: cls
    monkeypatch.setitem(sys.modules, "values", module)
    exec(compile(plain, "values", "exec"), module.__dict__)
    value = module.Plain("a", count=3)
    assert (value.name, value.parts, value.labels, value.count) == ("a", (), {}, 3)
    assert value.labels is not module.Plain("a").labels
    with pytest.raises(ValueError, match="name"):
        module.Plain("")
    assert module.Plain.__annotations__["parts"] == tuple[int, ...]
    assert module.Plain.__annotations__["count"] == int | None


def test_classes_are_marked_where_collection_would_find_nothing(compile_core: ModuleType) -> None:
    """Each class of such a module, and nothing else of it, is written otherwise."""
    source = (compile_core.CORE / "claims.py").read_text()
    marked = compile_core.without_collection(source)
    mark = "@mypyc_attr(acyclic=True)\nclass Claim:"
    assert mark in marked
    lines = [line for line in marked.splitlines() if line not in source.splitlines()]
    head = import_module("native_values").MARK.splitlines()
    assert lines == [*head, mark.partition("\n")[0]]
    compiled = {str(path) for path in compile_core.compiled_modules()}
    assert {f"fairlead/core/{name}" for name in compile_core.ACYCLIC} <= compiled


def test_a_value_that_zeroed_memory_would_falsify_stays_interpreted(
    compile_core: ModuleType,
) -> None:
    """msgspec makes values without their constructor: no default but 0, and no methods."""
    text = compile_core.with_constructors(VALUES)
    marks = [line for line in text.splitlines() if line.startswith(("@mypyc_attr", "@_stays"))]
    assert marks == ["@mypyc_attr(acyclic=True)", "@_stays_python", "@_stays_python"]
    assert text.count("def __init__") == 1


def test_integers_that_are_divided_as_doubles_are_found(compile_core: ModuleType) -> None:
    """mypyc divides integers up to 2^62 as doubles, Python rounds once: the build refuses that."""
    source = "\n".join(
        (
            "double CPyDef_slots___share(CPyTagged cpy_r_a, CPyTagged cpy_r_b) {",
            "    cpy_r_r0 = CPyTagged_TrueDivide(cpy_r_a, cpy_r_b);",
            "}",
            "double CPyDef_slots___half(double cpy_r_a) {",
            "    cpy_r_r0 = cpy_r_a / 2.0;",
            "}",
        )
    )
    assert compile_core.inexact_divisions(source) == ["slots___share"]


def test_a_change_of_the_source_is_another_build(
    compile_core: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder is found by the hash of all that it was built from, so it is never stale."""
    module = tmp_path / "src" / "fairlead" / "core" / "market.py"
    module.parent.mkdir(parents=True)
    module.write_text("def clear() -> int:\n    return 1\n")
    script = tmp_path / "compile_core.py"
    script.write_text("")
    monkeypatch.setattr(compile_core, "ROOT", tmp_path)
    monkeypatch.setattr(compile_core, "CORE", module.parent)
    monkeypatch.setattr(compile_core, "__file__", str(script))
    before = compile_core.key()
    assert compile_core.key() == before
    module.write_text("def clear() -> int:\n    return 2\n")
    assert compile_core.key() != before


def test_without_a_c_compiler_the_script_says_so() -> None:
    """Nothing is built, and the sources do."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "compiled" / "compile_core.py")],
        env={"PATH": "/nonexistent", "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "not compiled: there is no C compiler, no-such-compiler\n"
