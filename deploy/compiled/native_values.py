"""Writes what `dataclass` makes at import into a copy of the source, so that mypyc compiles it.

`dataclass` makes a constructor of the annotations, which mypyc would leave interpreted, and mypyc
erases annotations, from which documents are derived (`fairlead.schema.derive`). So the copy of a
module of values that is compiled gets for each dataclass the constructor that `dataclass` would
make, and for each class the annotations of its fields as they are in the source.

A compiled field holds values of its type only. What a constructor is given of another type goes
through the rules of the fields (`units.refit`), which refuse it as `units.check` would. Values are
frozen, so no cycle can go through them: the garbage collector need not look at them.

msgspec makes values without their constructor, from zeroed memory. A compiled class has no table of
methods then, and a number there is 0, not missing. So only classes without methods, whose numbers
have no default but 0, are compiled; the others of the module stay Python's.
"""

import ast
import builtins

MARK = """\
import typing as _typing
if _typing.TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
"""
HEAD = f"""\
{MARK}import fairlead.core.units as _units
_unset = object()
_Cls = _typing.TypeVar("_Cls")
def _stays_python(cls: type[_Cls]) -> type[_Cls]:
    return cls
"""


def with_constructors(source: str) -> str:
    """The source of a module of values, as it is compiled."""
    module, lines = ast.parse(source), source.splitlines()
    for node in reversed(module.body):
        if not isinstance(node, ast.ClassDef):
            continue
        options, fields, end = dataclass_of(node), _fields(node), node.end_lineno
        if options is not None:
            native = is_native(node)
            made = _constructor(node, fields, options) if native else []
            lines[end:end] = [*made, *_annotations(node, fields)]
            mark = "@mypyc_attr(acyclic=True)" if native else "@_stays_python"
            lines.insert(node.decorator_list[0].lineno - 1, mark)
        elif [ast.unparse(base) for base in node.bases] == ["NamedTuple"]:
            lines[end:end] = _annotations(node, fields)
    docstring = module.body[0].end_lineno or 0
    return "\n".join([*lines[:docstring], HEAD, *lines[docstring:], ""])


def without_collection(source: str) -> str:
    """The source of a module whose classes are left out of garbage collection."""
    module, lines = ast.parse(source), source.splitlines()
    for node in reversed(module.body):
        if isinstance(node, ast.ClassDef):
            lines.insert(node.lineno - 1, "@mypyc_attr(acyclic=True)")
    docstring = module.body[0].end_lineno or 0
    return "\n".join([*lines[:docstring], MARK, *lines[docstring:], ""])


def dataclass_of(node: ast.ClassDef) -> dict[str, bool] | None:
    """The options of a class's `dataclass`; None: it is none."""
    for mark in node.decorator_list:
        call = mark if isinstance(mark, ast.Call) else None
        if ast.unparse(mark if call is None else call.func) == "dataclass":
            keywords = [] if call is None else call.keywords
            return {str(k.arg): ast.unparse(k.value) == "True" for k in keywords}
    return None


def is_native(node: ast.ClassDef) -> bool:
    """Whether a dataclass may be made of zeroed memory, field by field."""
    methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return methods <= {"__post_init__"} and all(
        _is_zero_or_object(field.value) for field in _fields(node).values()
    )


def _is_zero_or_object(default: ast.expr | None) -> bool:
    """A name may stand for any number; a call and a member of an enum are objects."""
    if isinstance(default, ast.Constant):
        return isinstance(default.value, str) or not default.value
    return default is None or isinstance(default, ast.Call | ast.Attribute | ast.Tuple)


def _fields(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    return {
        ast.unparse(part.target): part
        for part in node.body
        if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)
    }


def _constructor(
    node: ast.ClassDef, fields: dict[str, ast.AnnAssign], options: dict[str, bool]
) -> list[str]:
    parameters, made = ["self", "*"] if options.get("kw_only") else ["self"], list[str]()
    for name, field in fields.items():
        default = None if field.value is None else ast.unparse(field.value)
        if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "field":
            given = {str(k.arg): ast.unparse(k.value) for k in field.value.keywords}
            default = given.get("default")
            if "default_factory" in given:
                default = "_unset"
                made += [f"if {name} is _unset:", f"    {name} = {given['default_factory']}()"]
        parameters.append(f"{name}: _typing.Any" + ("" if default is None else f" = {default}"))
    # An integer or a double would take a boolean.
    numbers = [n for n, field in fields.items() if "bool" not in ast.unparse(field.annotation)]
    booleans = [f"{name} is True or {name} is False" for name in numbers]
    # The dataclass is frozen for all but its constructor: mypyc is told to let it assign.
    body = [
        *made,
        "try:",
        *([f"    if {' or '.join(booleans)}:", "        raise TypeError"] if booleans else []),
        *[f"    self.{name} = {name}  # type: ignore[misc]" for name in fields],
        "except TypeError:",
        f"    _fit = _units.refit({node.name}, {{{', '.join(f'{n!r}: {n}' for n in fields)}}})",
        *[f"    self.{name} = _fit[{name!r}]  # type: ignore[misc]" for name in fields],
    ]
    if any(
        isinstance(part, ast.FunctionDef) and part.name == "__post_init__" for part in node.body
    ):
        body.append("self.__post_init__()")
    head = f"    def __init__({', '.join(parameters)}) -> None:"
    return ["", head, *[f"        {line}" for line in body if fields]]


def _annotations(node: ast.ClassDef, fields: dict[str, ast.AnnAssign]) -> list[str]:
    """As an expression: mypyc does not keep the arguments of generic types."""
    hints = {name: ast.unparse(field.annotation) for name, field in fields.items()}
    names = {
        part.id
        for field in fields.values()
        for part in ast.walk(field.annotation)
        if isinstance(part, ast.Name) and not hasattr(builtins, part.id)
    }
    text = "{" + ", ".join(f"{name!r}: {hint}" for name, hint in hints.items()) + "}"
    known = ", ".join(f"{name!r}: {name}" for name in sorted(names))
    return ["", f"setattr({node.name}, '__annotations__', eval({text!r}, {{{known}}}))"]
