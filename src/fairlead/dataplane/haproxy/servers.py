"""The servers of a HAProxy that its operator runs: what they are set to, and what they counted.

Read from `show servers state`, `show stat` and `show info`; columns go by their names, because each
version of HAProxy has more of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from fairlead.dataplane.haproxy.runtime import ask, hidden_failures
from fairlead.dataplane.proxy import BackendCount, Place
from fairlead.ports.faults import PermanentFault, TemporaryFault

READY, DRAIN, MAINT = "ready", "drain", "maint"
_MAINT_BITS, _DRAIN_BITS = 0x01 | 0x04 | 0x20, 0x08
"""Of `srv_admin_state`: maintenance by command, by configuration, by DNS; drained by command."""
_STATIC = ("static-rr",)
"""Ways to balance that take no weights while HAProxy runs."""
_COUNTED = (
    *("qcur", "scur", "stot", "econ", "eresp", "wretr", "wredis", "req_tot", "rtime"),
    *(f"hrsp_{kind}xx" for kind in "12345"),
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All that Fairlead changes of a server."""

    weight: int
    maxconn: int
    """0: any number."""
    state: str = READY

    def commands(self, server: str, now: "ServerSettings") -> list[str]:
        """What brings a server from `now` back to this. Maintenance is its operator's."""
        commands = []
        if self.weight != now.weight:
            commands.append(f"set server {server} weight {self.weight}")
        if self.maxconn != now.maxconn:
            commands.append(f"set maxconn server {server} {self.maxconn}")
        if now.state == DRAIN and self.state == READY:
            commands.append(f"set server {server} state {READY}")
        return commands


@dataclass(frozen=True, slots=True)
class Server:
    """One server line of a backend."""

    name: str
    host: str
    port: int
    settings: ServerSettings
    checked: bool
    backend: str
    """The number of its backend: a frontend may have the backend's name."""


def read_worker(place: Place) -> str:
    """Names the process that serves: another one begins with what its configuration says."""
    return worker_of(ask(place, "show info"))


def worker_of(info: str) -> str:
    pairs = {name: value.strip() for name, _, value in map(_pair, info.splitlines())}
    if "Pid" not in pairs:
        raise TemporaryFault(f"HAProxy answers 'show info' with rubbish: {info[:80]!r}")
    return f"{pairs['Pid']}/{pairs.get('Start_time_sec', '')}"


def _pair(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def check_level(place: Place) -> None:
    """Refuse a socket that is not there, or that may not set anything."""
    try:
        level = ask(place, "show cli level").strip()
    except TemporaryFault as fault:
        line = f"`stats socket {place} level admin` in its global section"
        raise PermanentFault(f"plane.haproxy.socket: {fault}; HAProxy needs {line}") from fault
    if level != "admin":
        problem = f"{place} has the level {level.splitlines()[0] if level else 'none'!r}"
        hint = "add `level admin` to its `stats socket` line"
        raise PermanentFault(f"plane.haproxy.socket: {problem}; {hint}")


def read_servers(place: Place, backend: str) -> dict[str, Server]:
    """By name. `PermanentFault` says what is missing."""
    answer = ask(place, f"show servers state {backend}").lstrip("1\n")
    if not answer.startswith("#"):
        names = ask(place, "show backend").splitlines()[1:]
        known = ", ".join(sorted(name for name in names if name and not name.startswith("#")))
        raise PermanentFault(f"HAProxy has no backend {backend!r}; it has {known or 'none'}")
    states = _rows(answer.splitlines(), " ")
    if not states:
        hint = "add `server` or `server-template` lines"
        raise PermanentFault(f"backend {backend!r} has no servers: {hint}")
    rows, _ = read_counted(place, [states[0]["be_id"]])
    stats = {row["svname"]: row for row in rows[backend]}
    algorithm = stats["BACKEND"].get("algo", "")
    if algorithm in _STATIC:
        hint = "use roundrobin, leastconn or random"
        raise PermanentFault(f"backend {backend!r}: balance {algorithm} takes no weights; {hint}")
    return {row["srv_name"]: _server(row, stats[row["srv_name"]]) for row in states}


def _server(state: Mapping[str, str], stat: Mapping[str, str]) -> Server:
    bits = int(state["srv_admin_state"])
    word = MAINT if bits & _MAINT_BITS else DRAIN if bits & _DRAIN_BITS else READY
    settings = ServerSettings(int(state["srv_uweight"]), int(stat.get("slim") or 0), word)
    name, port, checked = state["srv_name"], int(state["srv_port"]), stat["status"] != "no check"
    return Server(name, state["srv_addr"], port, settings, checked, state["be_id"])


def check_server(server: Server, backend: str) -> None:
    """Refuse one that could not be driven, or that nothing would take out without us."""
    name = f"server {server.name!r} of backend {backend!r}"
    try:
        ip_address(server.host)
    except ValueError:
        raise PermanentFault(f"{name} has no address: {server.host!r}") from None
    if not server.checked:
        problem = "has no `check`: without the agent nothing would take it out when it fails"
        raise PermanentFault(f"{name} {problem}; add `check` to its line")


def read_counted(
    place: Place, backends: Iterable[str]
) -> tuple[dict[str, list[dict[str, str]]], str]:
    """The lines of `show stat` of these backends (their numbers) and their servers, by the name of
    the backend, and the worker that counted."""
    commands = [f"show stat {backend} 6 -1" for backend in backends]
    answer = ask(place, "; ".join([*commands, "show info"]))
    rows: dict[str, list[dict[str, str]]] = {}
    table, _, info = answer.rpartition("\nName:")
    for block in table.split("# pxname,"):
        lines = block.strip().splitlines()
        for row in _rows([f"# pxname,{lines[0]}", *lines[1:]], ",") if lines else ():
            rows.setdefault(row["pxname"], []).append(row)
    return rows, worker_of(f"Name:{info}")


def _rows(lines: Sequence[str], separator: str) -> list[dict[str, str]]:
    names = lines[0].removeprefix("# ").split(separator)
    return [
        dict(zip(names, line.split(separator), strict=False))
        for line in lines[1:]
        if line and not line.startswith("#")
    ]


def count(row: Mapping[str, str]) -> tuple[BackendCount, int, int]:
    """What a server has counted, how many of that were repeated elsewhere, and the average of its
    latest response times in ms. In TCP mode a connection is a success once it has ended."""
    try:
        number = {name: int(row.get(name) or 0) for name in _COUNTED}
    except ValueError as error:
        raise TemporaryFault(f"HAProxy answers 'show stat' with rubbish: {error}") from error
    repeated = hidden_failures(number)
    failed = number["eresp"] + repeated
    if row.get("mode") == "http":
        errors = number["hrsp_5xx"] + failed
        successes = sum(number[f"hrsp_{kind}xx"] for kind in "1234")
    else:
        errors = failed
        successes = max(0, number["stot"] - errors - number["econ"] - number["scur"])
    counted = BackendCount(
        admitted=number["stot"],
        connect_failures=number["econ"],
        successes=successes,
        errors=errors,
        open=number["scur"],
        queue=number["qcur"],
    )
    return counted, repeated, number["rtime"]
