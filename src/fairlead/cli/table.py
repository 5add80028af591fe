"""Output of every command: one table renderer, JSON and YAML, chosen by `-o`; progress."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self

import click

from fairlead.cli.terminal import printable, raw
from fairlead.core.canonical import canonical


class Column(NamedTuple):
    """One column: its title and how its value is read from a row."""

    title: str
    read: Callable[[Any], object]
    wide: bool = False
    """Shown with `-o wide` only."""
    right: bool = False


Described = str | tuple[str, Callable[[Any], object]] | Column


def as_called(text: str) -> str:
    """A text that names commands, as they are called here: `kubectl runs` has names of its own."""
    ctx = click.get_current_context(silent=True)
    program = None if ctx is None else ctx.find_root().command
    spell = getattr(program, "as_called", None)
    return text if spell is None else str(spell(text))


def columns(*described: Described, wide: Sequence[Described] = ()) -> list[Column]:
    """Columns from `"owner LENT=lent_gpus START@start"` or `("GPUS", function)`.

    Dots in a path go deeper; what `@` names is a time.
    """
    shown = [column for item in described for column in _columns(item)]
    return shown + [col._replace(wide=True) for item in wide for col in _columns(item)]


def _columns(described: Described) -> Iterable[Column]:
    if isinstance(described, tuple):
        yield Column(*described)
        return
    for title, sign, path in re.findall(r"(?:(\S+)([=@]))?(\S+)", described):
        yield Column(title or path.upper(), partial(_read, path.split("."), is_time=sign == "@"))


def _read(path: Sequence[str], row: Any, *, is_time: bool) -> object:
    for key in path:
        row = row[key] if isinstance(row, dict) else getattr(row, key)
    return moment(row) if is_time else row


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's result goes: a table or text for people, documents for programs."""

    format: str = "table"
    dry_run: bool = False

    @property
    def is_table(self) -> bool:
        return self.format in ("table", "wide")

    def rows(self, rows: Sequence[Any], shown: Sequence[Column], *, empty: str = "") -> None:
        """A list; `empty` is noted on stderr where a table would have no row."""
        if self.format == "name":
            for row in rows:
                click.echo(_name(row) or cell(shown[0].read(row)))
            return
        if not self.is_table:
            show(rows, self.format)
            return
        print_table(rows, shown, wide=self.format == "wide")
        if not rows and empty:
            note(empty)

    def each(self, documents: Iterable[Any], tell: Callable[[Any], None]) -> None:
        """Several changes: `tell` prints one for people as soon as it is made."""
        made = []
        for document in documents:
            made.append(document)
            if self.is_table:
                tell(document)
        if not self.is_table:
            show(made, self.format)

    def done(self, document: Any, line: str) -> None:
        """A change: one line with `(dry run)` where nothing was written, or the document."""
        if self.is_table:
            click.echo(f"{line}{' (dry run)' if self.dry_run else ''}")
        else:
            show(document, self.format)

    def text(self, document: Any, lines: Callable[[], Iterable[str] | None]) -> None:
        """A document, or what `lines` returns or prints for people."""
        if not self.is_table:
            show(document, self.format)
            return
        for line in lines() or ():
            click.echo(line)


def show(value: Any, output: str) -> None:
    if output == "json":
        click.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False)))
    elif output == "name":
        for item in value if isinstance(value, list) else [value]:
            name = _name(item)
            if name is None:
                raise click.UsageError("-o name: what is shown has no name")
            click.echo(name)
    else:
        click.echo(to_yaml(value), nl=False)


def _name(value: Any) -> str | None:
    """`run/train-7`, of an object or of what became of one."""
    document = value.get("object", value) if isinstance(value, dict) else None
    if not isinstance(document, dict) or "metadata" not in document or "kind" not in document:
        return None
    return f"{document['kind'].lower()}/{cell(document['metadata']['name'])}"


def show_canonical(document: dict[str, Any], output: str = "json") -> None:
    """A signed or hashed document: canonical JSON in a pipe, indented on a terminal, or YAML."""
    if output == "json" and not sys.stdout.isatty():
        click.echo(canonical(document))
    else:
        show(document, output)


def note(text: str) -> None:
    click.echo(text, err=True)


def to_yaml(value: Any) -> str:
    """Block style, in the order given; several objects become several documents."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what `escaped` escapes."""

    def write(dumper: Dumper, text: str) -> Any:
        style = None if printable(text) == text else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, write)
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    if (
        isinstance(value, list)
        and value
        and all(isinstance(item, dict) and "kind" in item and "metadata" in item for item in value)
    ):
        return escaped(yaml.dump_all(value, Dumper=Dumper, explicit_start=True, **options))
    return escaped(yaml.dump(value, Dumper=Dumper, **options))


def escaped(text: str) -> str:
    """What no terminal should get, such as characters that turn the direction of the text, as JSON
    and YAML write it inside quotes."""
    if printable(text) == text:
        return text
    # YAML's writer has escaped by itself what JSON needs a pair of escapes for.
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in text)


def print_table(
    rows: Sequence[Any], shown: Sequence[Column], indent: str = "", *, wide: bool = False
) -> None:
    """Bold, coloured and folded to the width on a terminal, plain columns in a pipe."""
    shown = [column for column in shown if wide or not column.wide]
    cells = [[cell(column.read(row)) for column in shown] for row in rows]
    if sys.stdout.isatty():
        _print_rich(shown, cells, indent)
        return
    for line in plain_table(shown, cells):
        click.echo(indent + line)


def plain_table(shown: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    titles = [column.title for column in shown]
    widths = [max(len(row[i]) for row in (titles, *cells)) for i in range(len(titles))]
    for row in (titles, *cells):
        padded = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, shown, strict=True)
        )
        yield "  ".join(padded).rstrip()


def figures(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Rows that are text already: the first column to the left, figures to the right."""
    names = (title.upper().replace(" ", "-") for title in titles)
    shown = [Column(name, str, right=place > 0) for place, name in enumerate(names)]
    return plain_table(shown, rows)


def _print_rich(shown: Sequence[Column], cells: Sequence[Sequence[str]], indent: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        justify = "right" if column.right else "left"
        table.add_column(column.title, overflow="fold", justify=justify)  # type: ignore[arg-type]  # one of its literals
    for row in cells:
        table.add_row(*[Text(text, style=_style(text)) for text in row])
    Console(file=raw(sys.stdout)).print(Padding(table, (0, 0, 0, len(indent))))


def _style(text: str) -> str:
    """The worst of the words in a cell decides."""
    words = text.split(",")
    styles = {style for style, known in _STYLES.items() if not known.isdisjoint(words)}
    return next((style for style in ("red", "yellow", "green") if style in styles), "")


_STYLES = {
    "red": {"Failed", "Exhausted", "Overcommitted", "unfunded", "Blocked"},
    "yellow": {"Pending", "NearLimit", "UnusedLendingEntry", "idle", "Reserved", "Shrunk"},
    "green": {"Running", "Completed", "Healthy", "Active"},
}


def cell(value: object) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        value = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return printable(str(value), kept="")


def moment(text: str | None) -> str:
    """A time in the reader's zone on a terminal, as it is in a pipe."""
    if not text or not sys.stdout.isatty():
        return text or "-"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def about(text: str) -> str:
    """An estimated time: to the minute on a terminal, with the day unless that is today."""
    time = datetime.fromisoformat(text)
    if not sys.stdout.isatty():
        return time.isoformat(timespec="seconds").replace("+00:00", "Z")
    local = time.astimezone()
    return local.strftime(
        "%H:%M" if local.date() == datetime.now().astimezone().date() else "%F %H:%M"
    )


def moment_ms(time_ms: int) -> str:
    """A recorded time: UTC, to the millisecond."""
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return text.replace("+00:00", "Z")


def used_of(used: float, limit: float | None) -> str:
    """`3/8`, hours with two digits."""
    text = f"{used:.2f}" if isinstance(used, float) else str(used)
    return f"{text}/-" if limit is None else f"{text}/{round(limit, 2):.12g}"


def percent(value: float | None, digits: int = 0) -> str:
    """`12%`, `-` where it is unknown."""
    return "-" if value is None else f"{value:.{digits}%}"


# --- progress on a terminal while a command waits or works; silent in a pipe

WAIT_QUIET_S, WAIT_EVERY_S = 1.0, 0.5
WORK_QUIET_S, WORK_EVERY_S = 0.5, 0.1
_CLEAR = "\r\033[K"


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Prints how long the command has been waiting: after a second, then twice a second."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        wait_s = WAIT_QUIET_S
        while not done.wait(wait_s):
            _write(f"\r{doing}, {int(time.monotonic() - began)} s")
            wait_s = WAIT_EVERY_S
        _write(_CLEAR if wait_s == WAIT_EVERY_S else "")

    thread = threading.Thread(target=tell, daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()


class Counter:
    """Prints how much of long work is done; called with the count and, if known, the total."""

    def __init__(self, doing: str, unit: str = "entries") -> None:
        self._doing, self._unit, self._shown = doing, unit, False
        self._next = time.monotonic() + WORK_QUIET_S

    def __call__(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._shown = now + WORK_EVERY_S, True
        share = "" if total is None else f" of {total}"
        ratio = "" if total is None else f" ({100 * done // max(1, total)} %)"
        _write(f"\r{self._doing} {done}{share} {self._unit}{ratio}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            _write(_CLEAR)


def _write(text: str) -> None:
    stream = raw(sys.stderr)
    stream.write(text)
    stream.flush()
