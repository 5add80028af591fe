"""One name, one meaning: no two public classes of `src` share a name, but for those listed here."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "fairlead"

# The same idea in each governor, or the same thing inside and as the API's document, named alike on
# purpose.
SHARED = {
    *("Snapshot", "Plan", "Config", "Node", "Backend"),
    *("Proto", "HeadDocument", "Change", "Forecast"),
}


def test_no_two_classes_of_one_name() -> None:
    """A class is found by its name alone."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SRC).as_posix())
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in repeated.items() if name not in SHARED} == {}
    assert set(repeated) >= {"Snapshot", "Plan"}, "the walk must see what it allows"
