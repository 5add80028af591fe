"""Scripts with #SBATCH lines: what of them a Run can say, and the names of what it cannot."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.cli.gpu.jobs import JobRequest
from fairlead.cli.input import BadFile, reading

SCRIPT_BYTES_MAX = 100_000
_SHELLS = re.compile(r"(ba|da|z|k)?sh|python[0-9.]*", re.ASCII)
_SHORT = {"-J": "job-name", "-t": "time", "-o": "output", "-e": "error", "-a": "array"}
_SHORT |= {"-d": "dependency", "-D": "chdir", "-G": "gpus", "-A": "account", "-p": "partition"}
_SHORT |= {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task"}
_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_NUMBER = re.compile(r"0{0,8}[1-9][0-9]{0,8}", re.ASCII)
_ONE = {"nodes": "1", "ntasks": "1", "ntasks-per-node": "1"}
"""Directives that change nothing where they say this."""


def read_script(words: Sequence[str], warn: Callable[[str], None]) -> JobRequest:
    """The script as it is now, with its arguments, and what its directives ask for."""
    path = Path(words[0])
    if not path.exists():
        raise BadFile(
            f"{path}: there is no such script; for a command write `fairlead submit -- …`"
        )
    with reading(path):
        data = path.read_bytes()
    first = data.partition(b"\n")[0].decode(errors="replace")
    if not first.startswith("#!"):
        raise BadFile(f"{path}: must begin with #! (for a command write `fairlead submit -- …`)")
    job = JobRequest(
        command=_command(path, first, data, words[1:]), title=_slug(path.stem), ends_at_time=True
    )
    for number, name, value in _directives(path, data):
        place = f"{path}, line {number}: --{name}"
        changed = _apply(job, name, value, place)
        if changed is not None:
            job = changed
        elif _ONE.get(name) != value:
            warn(f"warning: {place}{'=' + value if value else ''} is not carried over")
    return job


def _slug(text: str) -> str | None:
    """What its runs are called; letters are added, so that it can be submitted again."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip(".-") or None


def _command(path: Path, first: str, data: bytes, arguments: Sequence[str]) -> tuple[str, ...]:
    """The script's text as an argument of its interpreter: later edits do not change the run."""
    interpreter = _words(first[2:], f"{path}, line 1")
    program = Path(interpreter[-1] if interpreter else "").name
    if not _SHELLS.fullmatch(program):
        raise BadFile(
            f"{path}: its interpreter {program!r} takes no script as an argument: write `fairlead "
            f"submit -- {path}`, which runs the file as it is at the start"
        )
    if len(data) > SCRIPT_BYTES_MAX or b"\0" in data:
        raise BadFile(f"{path}: must be text of at most {SCRIPT_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: must be UTF-8: {error.reason}") from error
    named = () if program.startswith("python") else (str(path),)
    return (*interpreter, "-c", text, *named, *arguments)


def _words(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise BadFile(f"{place}: cannot be read as words of a shell: {error}") from error


def _directives(path: Path, data: bytes) -> Iterator[tuple[int, str, str]]:
    """Each directive with its line, up to the first command, as Slurm reads them."""
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if not line.startswith("#SBATCH"):
            continue
        words = _words(line.removeprefix("#SBATCH"), f"{path}, line {number}")
        while words:
            word = words.pop(0)
            name, sign, value = word.partition("=")
            if word[:2] in _SHORT and not word.startswith("--"):
                name, value = _SHORT[word[:2]], word[2:].removeprefix("=")
                sign = value
            if not sign and words and not words[0].startswith("-"):
                value = words.pop(0)
            yield number, name.lstrip("-"), value


def _apply(job: JobRequest, name: str, value: str, place: str) -> JobRequest | None:
    """The job with one directive; None: it has no meaning here."""
    if name in ("gpus", "gres", "gpus-per-node", "gpus-per-task"):
        return _gpus(job, name, value, place)
    read: dict[str, tuple[str, Callable[[], Any]]] = {
        "time": ("time", lambda: slurm_time(value, place)),
        "job-name": ("title", lambda: _slug(value)),
        "dependency": ("after", lambda: _dependency(value, place)),
        "chdir": ("directory", lambda: str(Path(value).resolve())),
        "output": ("output", lambda: value),
        "error": ("error", lambda: value),
        "array": ("array", lambda: value),
        "account": ("owner", lambda: value),
        "cpus-per-task": ("cpus", lambda: _number(value, place)),
        "mem": ("memory", lambda: _memory(value, place)),
        "requeue": ("retry", lambda: 1),
        "no-requeue": ("retry", lambda: 0),
    }
    if name not in read:
        return None
    field, found = read[name]
    return replace(job, **{field: found()})


def _gpus(job: JobRequest, name: str, value: str, place: str) -> JobRequest | None:
    parts = value.split(":")
    if name == "gres":
        if parts[0] != "gpu":
            return None
        parts = parts[1:] or ["1"]
    if not (_NUMBER.fullmatch(parts[-1]) and len(parts) <= 2):
        raise BadFile(f"{place}: must be a number of GPUs such as 2 or h100:2, got {value!r}")
    flavor = parts[0].upper() if len(parts) == 2 else job.flavor
    return replace(job, gpus=int(parts[-1]), flavor=flavor)


def slurm_time(value: str, place: str) -> str:
    """Slurm's minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise BadFile(f"{place}: must be like 90, 30:00, 2:00:00 or 1-12, got {value!r}")
    days, *fields = match.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise BadFile(f"{place}: must be more than nothing, got {value!r}")
    return f"{total}s"


def _number(value: str, place: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise BadFile(f"{place}: must be a number, got {value!r}")
    return int(value)


def _memory(value: str, place: str) -> str | None:
    """Megabytes without a unit; 0 is all there is."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", value.upper(), re.ASCII)
    if match is None:
        raise BadFile(f"{place}: must be like 512M or 16G, got {value!r}")
    return f"{match[1]}{match[2] or 'M'}i" if int(match[1]) else None


def _dependency(value: str, place: str) -> tuple[tuple[str, str], ...]:
    """`afterok:a:b,afterany:c`; runs by their names, as there are no numbers."""
    found: list[tuple[str, str]] = []
    for part in value.split(","):
        how, *runs = part.split(":")
        known = {"afterok": "afterOK", "afterany": "afterAny"}.get(how)
        if known is None or not runs or not all(runs):
            raise BadFile(
                f"{place}: must be afterok:RUN or afterany:RUN, with names of runs, got {part!r}"
            )
        found += [(run, known) for run in runs]
    return tuple(found)
