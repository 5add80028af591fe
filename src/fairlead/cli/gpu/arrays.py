"""Arrays: the name of an array means all of its tasks, for `--after`, `wait` and `cancel`."""

from collections.abc import Iterable, Iterator
from typing import Any

from fairlead.cli.client import ARRAY, Client, ServerError, segment
from fairlead.core.units import counted

ENDED = ("Completed", "Failed")


def tasks_of(client: Client, name: str) -> list[dict[str, Any]]:
    """The tasks of an array by their indices; none where there is no such array."""
    tasks = client.objects("Run", label=f"{ARRAY}={name}")
    return sorted(tasks, key=lambda task: _index(task["metadata"]["name"]))


def _index(name: str) -> tuple[int, str]:
    last = name.rpartition("-")[2]
    return (int(last) if last.isascii() and last.isdigit() else 0, name)


def _is_run(client: Client, name: str) -> bool:
    try:
        client.get(f"/v1/objects/Run/{segment(name)}")
    except ServerError as error:
        if error.status != 404:
            raise
        return False
    return True


def runs_named(client: Client, names: Iterable[str]) -> Iterator[str]:
    """The runs that are meant: each by its own name, or by that of its array. A name that is
    neither stays as it is: what is done with it says that there is no such run."""
    for name in names:
        tasks = [] if _is_run(client, name) else tasks_of(client, name)
        yield from (task["metadata"]["name"] for task in tasks) if tasks else (name,)


def open_runs_named(client: Client, names: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The same without the tasks that have ended, and whether each is a task. The last task comes
    first: each may wait for one before it, and would start when that one ends."""
    for name in names:
        tasks = [] if _is_run(client, name) else tasks_of(client, name)
        going = [task for task in reversed(tasks) if task["status"]["phase"] not in ENDED]
        if tasks and not going:
            over = f"array {name!r} has ended, all of its {counted(len(tasks), 'task')}"
            raise ServerError(409, {"code": "RunEnded", "message": over})
        yield from ((task["metadata"]["name"], True) for task in going)
        if not tasks:
            client.get_object("Run", name)  # a wrong name is told before anything is done
            yield name, False


def refuse_taken(client: Client, name: str | None, *, array: bool) -> None:
    """A run and an array never have the same name: it would be unclear which is meant."""
    if name is None:
        return
    other = "an array" if tasks_of(client, name) else ""
    if array and not other and _is_run(client, name):
        other = "a run"
    if other:
        message = f"the name {name!r} is taken by {other}: give another name"
        raise ServerError(409, {"code": "Conflict", "message": message})
