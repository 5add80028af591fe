"""Writes what `dataclass` makes at run time into the source, so that mypyc can compile it.

`dataclass` makes a constructor of the annotations when a module is imported, and mypyc erases
annotations: documents are derived from them (`fairlead.schema.derive`). So the copy of a module of
values that is compiled gets, for each frozen dataclass, the constructor that `dataclass` would
make, and for each of its classes the annotations as they are in the source.
"""

import ast
import builtins

_UNSET = "_unset"


def with_constructors(source: str) -> str:
    """The source of a module of values, as it is compiled."""
    module, added = ast.parse(source), list[tuple[int, str]]()
    for node in module.body:
        if isinstance(node, ast.ClassDef) and (_is_tuple(node) or dataclass_of(node) is not None):
            fields = _fields(node)
            end = node.end_lineno or node.lineno
            options = dataclass_of(node)
            constructor = "" if options is None else _constructor(node, fields, options)
            added.append((end, constructor + _annotations(node.name, fields)))
    lines = source.splitlines()
    for end, text in reversed(added):
        lines[end:end] = text.splitlines()
    # After the docstring and the imports that must come first.
    after = next(i for i, node in enumerate(module.body) if i and not _is_import(node))
    start = module.body[after - 1].end_lineno or 0
    shift = sum(len(text.splitlines()) for end, text in added if end <= start)
    lines[start + shift : start + shift] = ["import typing as _typing", f"{_UNSET} = object()"]
    return "\n".join(lines) + "\n"


def dataclass_of(node: ast.ClassDef) -> dict[str, bool] | None:
    """The options of a class's `dataclass`; None: it is none."""
    for mark in node.decorator_list:
        call = mark if isinstance(mark, ast.Call) else None
        if ast.unparse(mark if call is None else call.func) == "dataclass":
            return {} if call is None else {k.arg or "": _flag(k.value) for k in call.keywords}
    return None


def _flag(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_tuple(node: ast.ClassDef) -> bool:
    return [ast.unparse(base) for base in node.bases] == ["NamedTuple"]


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [
        part
        for part in node.body
        if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)
    ]


def _constructor(node: ast.ClassDef, fields: list[ast.AnnAssign], options: dict[str, bool]) -> str:
    parameters = ["self"] + (["*"] if options.get("kw_only") else [])
    body = []
    for part in fields:
        name = ast.unparse(part.target)
        default, value = "", name
        if isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "field":
            given = {k.arg: ast.unparse(k.value) for k in part.value.keywords}
            if "default_factory" in given:
                default = f" = {_UNSET}"
                value = f"{given['default_factory']}() if {name} is {_UNSET} else {name}"
            elif "default" in given:
                default = f" = {given['default']}"
        elif part.value is not None:
            default = f" = {ast.unparse(part.value)}"
        parameters.append(f"{name}: _typing.Any{default}")
        body.append(f"        self.{name} = {value}  # type: ignore[misc]")
    defined = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    if "__post_init__" in defined:
        body.append("        self.__post_init__()")
    return "\n".join(
        ["", f"    def __init__({', '.join(parameters)}) -> None:", *(body or ["        pass"]), ""]
    )


def _annotations(cls: str, fields: list[ast.AnnAssign]) -> str:
    pairs = ", ".join(f"{ast.unparse(f.target)!r}: {ast.unparse(f.annotation)}" for f in fields)
    names = {
        part.id
        for field in fields
        for part in ast.walk(field.annotation)
        if isinstance(part, ast.Name) and not hasattr(builtins, part.id)
    }
    known = ", ".join(f"{name!r}: {name}" for name in sorted(names))
    made = f"eval({'{' + pairs + '}'!r}, {{{known}}})"
    return f"\nsetattr({cls}, '__annotations__', {made})\n"
