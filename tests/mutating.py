"""The mutants of one module of core, each in a fork of one test session; `tests.mutants` starts it.

The tests are collected once. A first fork runs them all and says which lines of the module each
test reaches, and how long it takes. Then each mutant gets a fork: it puts the changed code into
the function, and runs the tests that reach the changed statement, the shortest first, until one
fails. Which changes are made is mutmut's.

    python -m tests.mutating MODULE.py RESULT.json TEST...

FAIRLEAD_MUTANTS: names, a line each; only these are played.
"""

import __future__

import ast
import difflib
import gc
import importlib
import inspect
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace
from mutmut.mutation.trampoline_templates import mangle_function_name

OPTIONS = ("-q", "--tb=native", "--assert=plain", "-p", "no:cacheprovider", "-p", "pytest_timeout")
PATIENCE_S, PATIENCE = 1.0, 5
"""A test may use a second, and five times the CPU it used while its lines were noted."""
MEMORY_BYTES = 4 << 30
_OURS = ("fairlead.", "tests.")
Outcome = dict[str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed function; `lines` are those of the statement that the change is in."""

    name: str
    change: str
    owner: str | None
    function: str
    source: str
    lines: range


@dataclass(frozen=True, slots=True)
class Reach:
    """What a test reaches of the module, and the CPU time it takes."""

    lines: frozenset[int]
    cpu_s: float


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change that mutmut knows of the functions and methods of a module."""
    text = path.read_text()
    module, mutations, _, _ = create_mutations(str(path), text)
    of_function: dict[cst.CSTNode, list[Mutation]] = {}
    for mutation in mutations:
        if mutation.contained_by_top_level_function is not None:
            of_function.setdefault(mutation.contained_by_top_level_function, []).append(mutation)
    dotted = _dotted(path)
    for (owner, node), (_, parsed) in zip(
        _functions(module.body), _functions(ast.parse(text).body), strict=True
    ):
        before = module.code_for_node(node).splitlines()
        top = min([parsed.lineno, *(row.lineno for row in parsed.decorator_list)])
        for number, mutation in enumerate(of_function.get(node, ()), 1):
            changed: Any = deep_replace(node, mutation.original_node, mutation.mutated_node)
            after = module.code_for_node(changed).splitlines()
            mangled = mangle_function_name(name=parsed.name, class_name=owner)
            yield Mutant(
                name=f"{dotted}.{mangled}__mutmut_{number}",
                change=_change(before, after),
                owner=owner,
                function=parsed.name,
                source="\n".join(after),
                lines=_statement(parsed, top - len(node.leading_lines) + _first(before, after)),
            )


def _root(path: Path) -> Path:
    return next(folder for folder in path.parents if folder.name == "src")


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(_root(path)).with_suffix("").parts)


def _functions(body: Sequence[Any], owner: str | None = None) -> Iterator[tuple[str | None, Any]]:
    """Functions with the class they are in, in the order of the file; of either kind of tree."""
    for node in body:
        if isinstance(node, cst.FunctionDef | ast.FunctionDef):
            yield owner, node
        elif owner is None and isinstance(node, cst.ClassDef):
            yield from _functions(node.body.body, node.name.value)
        elif owner is None and isinstance(node, ast.ClassDef):
            yield from _functions(node.body, node.name)


def _change(before: list[str], after: list[str]) -> str:
    """What a mutant changes: lines with - and +."""
    rows = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return "\n".join(f"{row[0]} {row[1:].strip()}" for row in rows if row[0] in "-+")


def _first(before: list[str], after: list[str]) -> int:
    pairs = zip(before, after, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if old != new), len(after))


def _statement(function: ast.FunctionDef, line: int) -> range:
    """The lines of the innermost statement; of a compound one those before its body."""
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    whole = range(function.lineno, (function.end_lineno or 0) + 1)
    if not around or (inner := min(around, key=_length)) is function:
        return whole
    body = getattr(inner, "body", None)
    if body and inner.lineno <= line < body[0].lineno:
        return range(inner.lineno, body[0].lineno)
    return range(inner.lineno, (inner.end_lineno or 0) + 1)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno


class Player:
    """A plugin of pytest that plays mutants instead of running the tests once."""

    def __init__(self, path: Path) -> None:
        sys.path.insert(0, str(_root(path)))
        self._module = importlib.import_module(_dotted(path))
        chosen = os.environ.get("FAIRLEAD_MUTANTS", "").split()
        every = mutants_of(path)
        self.mutants = [each for each in every if not chosen or each.name in chosen]
        self.outcomes: Outcome = {}
        self.survived: dict[str, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every mutant has an outcome when this returns."""
        _warm_up()
        caches = (each for each in gc.get_objects() if isinstance(each, _lru_cache_wrapper))
        _CACHES.extend(each for each in caches if each.__module__.startswith(_OURS))
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        reaches = _reaches(session, str(self._module.__file__))
        for mutant in self.mutants:
            touched = frozenset(mutant.lines)
            reached = [(row.cpu_s, name) for name, row in reaches.items() if row.lines & touched]
            chosen = [(items[name], cpu_s) for cpu_s, name in sorted(reached)]
            outcome = self._play(session, mutant, chosen) if chosen else "survived"
            self.outcomes[mutant.name] = outcome
            if outcome == "survived":
                self.survived[mutant.name] = mutant.change
        return True

    def _play(
        self, session: pytest.Session, mutant: Mutant, chosen: list[tuple[pytest.Item, float]]
    ) -> str:
        def child() -> int:
            _forget()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            plant(self._module, mutant)
            return 0 if _pass(session, chosen) else 1

        status = _wait(_fork(child))
        if os.WIFSIGNALED(status):
            return "timeout" if os.WTERMSIG(status) == signal.SIGPROF else "killed"
        if os.WEXITSTATUS(status) == _BROKEN:
            raise RuntimeError(f"{mutant.name} could not be played:\n{mutant.change}")
        return "killed" if os.WEXITSTATUS(status) else "survived"


def plant(module: ModuleType, mutant: Mutant) -> None:
    """Give a function of the module the changed code; all that hold the function run it."""
    scope = dict(vars(module))
    tree = ast.parse(mutant.source)
    if mutant.owner is not None:
        tree.body = [ast.ClassDef(mutant.owner, [], [], list(tree.body), [])]
        ast.fix_missing_locations(tree)
    flags = __future__.annotations.compiler_flag
    exec(compile(tree, str(module.__file__), "exec", flags, dont_inherit=True), scope)
    old, new = (_function(place, mutant) for place in (vars(module), scope))
    old.__code__, old.__defaults__ = new.__code__, new.__defaults__
    old.__kwdefaults__ = new.__kwdefaults__


def _function(scope: dict[str, Any], mutant: Mutant) -> FunctionType:
    place = scope if mutant.owner is None else vars(scope[mutant.owner])
    found = place[mutant.function]
    function = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(function, FunctionType)
    return function


def _reaches(session: pytest.Session, filename: str) -> dict[str, Reach]:
    """Which lines of a file each test reaches, by its id; noted in a fork, which leaves nothing."""
    reader, writer = os.pipe()

    def child() -> int:
        rows: dict[str, tuple[list[int], float]] = {}
        for item in session.items:
            lines: set[int] = set()
            _forget()
            began_s = time.process_time()
            sys.settrace(_tracer(filename, lines))
            passed = _pass(session, [(item, None)])
            sys.settrace(None)
            if not passed:
                return 1
            rows[item.nodeid] = (sorted(lines), time.process_time() - began_s)
        with os.fdopen(writer, "w") as pipe:
            json.dump(rows, pipe)
        return 0

    pid = _fork(child)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if _wait(pid):
        raise RuntimeError("a test fails, or cannot be run, without any change")
    return {
        name: Reach(frozenset(lines), cpu_s) for name, (lines, cpu_s) in json.loads(text).items()
    }


def _forget() -> None:
    """What is kept of former calls would hide who reaches a function, and what a change does."""
    for kept in _CACHES:
        kept.cache_clear()


_CACHES: list[Any] = []


def _tracer(filename: str, lines: set[int]) -> Callable[[FrameType, str, object], Any]:
    def note(frame: FrameType, _event: str, _arg: object) -> Any:
        lines.add(frame.f_lineno)
        return note

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        return note(frame, event, arg) if frame.f_code.co_filename == filename else None

    return enter


def _pass(session: pytest.Session, chosen: Sequence[tuple[pytest.Item, float | None]]) -> bool:
    """Run tests until one fails. A time limit ends the process."""
    following = [item for item, _ in chosen[1:]]
    for (item, cpu_s), then in zip(chosen, [*following, None], strict=True):
        if cpu_s is not None:
            signal.setitimer(signal.ITIMER_PROF, PATIENCE_S + PATIENCE * cpu_s)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
        if session.testsfailed:
            return False
    return True


_BROKEN = 70


def _fork(child: Callable[[], int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = _BROKEN
    try:
        code = child()
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def _warm_up() -> None:
    """What hypothesis does once in a process is done before the forks."""

    @given(st.integers(), st.text(), st.lists(st.booleans()))
    def draw(_number: int, _text: str, _flags: list[bool]) -> None:
        return None

    draw()


def main() -> int:
    path, result, *tests = sys.argv[1:]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # each costs time in each test
    player = Player(Path(path).resolve())
    code = player.mutants and pytest.main([*OPTIONS, *tests], plugins=[player])
    Path(result).write_text(json.dumps({"outcomes": player.outcomes, "survived": player.survived}))
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
