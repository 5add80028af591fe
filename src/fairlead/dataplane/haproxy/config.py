"""The configuration: what HAProxy does with every request, in its own rule language.

Per group one frontend at the virtual address and five backends: `_a` and `_b` hold the active and
the next table as weights, `_f` hashes flows when the agent is dead, `_soft` and `_hard` refuse. The
state of a group is all that a flip changes, in one value of one HAProxy map:

    7:a:60:41|a:hard:1000:1000000:1|f:soft:100000:100000000:1|60:240:3:5000:240

The epoch, the side its table is laid out on, how many requests may be inside (0: no bound), the
recorded decision and, in groups with retries, below how many inside a request may be repeated;
admission while the agent lives; admission without it; how many may be inside
without it: at first, at the most, the step, after how many ms, and how long requests are to stay
(`core.traffic.alone`). An admission is the side
that serves (`hard` when no backend may be sent anything), the mode, and for modes with a bucket the
refill in thousandths of a token per second, the size in millionths, and the Retry-After.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from fairlead.core.canonical import digest
from fairlead.core.traffic.admission import FALLBACK_AFTER_MS, fnv1a
from fairlead.core.traffic.limits import FULL_RETRY_AFTER_S
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.retries import IDEMPOTENT, RetryLimit
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane import proxy
from fairlead.dataplane.tables import Active
from fairlead.host.clock import now_ms
from fairlead.ports.dataplane import SCHEMA_VERSION, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

BEAT, REQUESTS, AGENT = "fairlead_beat", "fairlead_requests", "agent"
BORN = "_born"
"""In the map of states: when a worker was meant to begin. No escaped name looks like that."""
NONE = "hard"  # a side that is no side: the backend that refuses
WEIGHT_MAX = 256  # HAProxy's own limit
TOKEN = 1_000_000  # a token in the bucket's own unit; fractions of one are kept to the millionth
_REFILL_MAX = 10**9  # a million tokens per second; times an hour in µs it stays below 2^63
_SIZE_MAX = 10**15
_RING_WEIGHT = 16  # 256 points of each server on the ring: shares even to some 6 %, 15 KiB each
_NUMBERS = 2**19  # times the 4096 points that a server can have it stays below 2^32
_FOLDER_BYTES_MAX = 80  # a socket's path has 107, of which HAProxy needs some for a while
_RETRY_RULES = f"""
    # Repeated at another server: idempotent requests, while the table has a number for it and fewer
    # than that are inside. A connection that failed carried nothing, and is always tried elsewhere.
    http-request set-var(txn.again) var(txn.state),field(1,|),field(5,:),add(0)
    http-request set-var(txn.held) int(0)
    http-request set-var(txn.held) var(txn.inside) if bounded
    acl again var(txn.again),sub(txn.held) gt 0
    http-request disable-l7-retry unless again beating {{ method {" ".join(IDEMPOTENT)} }}"""
_RETRY_SERVERS = """    retries 1
    option redispatch 1
    retry-on all-retryable-errors"""
_ANY_NUMBER = 2**31
"""More than can be inside."""
_FIXED = {
    **{"agent": AGENT, "beat": BEAT, "born": BORN, "requests": REQUESTS, "token": TOKEN},
    "hour_us": 3_600_000_000,
    "connect_timeout_ms": proxy.CONNECT_TIMEOUT_MS,
    "idle_timeout_ms": proxy.IDLE_TIMEOUT_MS,
    "fallback_after_ms": FALLBACK_AFTER_MS,
    "alive_ms_max": FALLBACK_AFTER_MS - 1,
    "full_retry_after_s": FULL_RETRY_AFTER_S,
    **{f"{mode}_status": status for mode, status in proxy.REFUSED_STATUS.items()},
}
"""What the templates name and nothing changes."""


class HaproxyFiles(proxy.ProxyFiles):
    """Where everything of the dataplane lives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FOLDER_BYTES_MAX)
        if any(not char.isprintable() or char in " \\\"'#" for char in str(folder)):
            raise PermanentFault(f"folder: HAProxy cannot name {str(folder)!r}")
        self.config = folder / "haproxy.cfg"
        self.states = folder / "states.map"  # as it was at the last start or reload
        self.socket = folder / "haproxy.sock"  # the runtime socket of the worker
        self.master = folder / "master.sock"  # the socket of the master, which reloads
        self.log = folder / "haproxy.log"  # what HAProxy printed when it was last run

    def counted(self, generation: str) -> Path:
        """What workers had counted before one of this generation began. One file for each: an agent
        that dies before the reload leaves the running worker's own file as it was."""
        return self.folder / f"counted-{generation.rpartition('/')[2]}.json"

    def laid(self, group: str, side: str) -> Path:
        """The table that is laid out on a side of a group, for the next agent."""
        return self.folder / f"laid-{proxy.escape(group)}_{side}.json"

    def more(self) -> list[Path]:
        return [path for kind in ("counted", "laid") for path in self.folder.glob(f"{kind}-*.json")]


def generation(groups: Sequence[RouteGroup], worker: Mapping[str, object]) -> str:
    """Names a configuration, tables apart; HAProxy shows it as its description."""
    shape = [
        [g.name, g.vip, g.port, g.proto.value, sorted([b.id, b.host, b.port] for b in g.backends)]
        + ["retry"] * g.retry
        for g in sorted(groups, key=lambda group: group.name)
    ]
    return f"fairlead/{SCHEMA_VERSION}/{digest([shape, dict(worker)])[:16]}"


def render(
    groups: Sequence[RouteGroup], active: Mapping[str, Active], values: Mapping[str, object]
) -> tuple[str, str]:
    """The whole configuration, with tables laid out on both sides, and the first map of states."""
    sections, states = [_filled("global.cfg", values)], [f"{BORN} {now_ms()}"]
    for index, group in enumerate(sorted(groups, key=lambda group: group.name)):
        name, now = proxy.escape(group.name), active[group.name]
        kept = ("tokens", "at", "most", "since", "done")
        of_group = {variable: f"proc.{variable}{index}" for variable in kept} | {"name": name}
        of_group["address"] = proxy.address(group.vip, group.port)
        of_group["retry"] = _RETRY_RULES if group.retry else ""
        of_group["backends"] = "\n".join(_backends(group, now.table))
        sections.append(_filled("group.cfg", {**values, **of_group}))
        states.append(f"{name} {write_state(now)}")
    return "\n".join(sections), "\n".join(states) + "\n"


def _filled(template: str, values: Mapping[str, object]) -> str:
    return Template(Path(__file__).with_name(template).read_text()).substitute(_FIXED, **values)


def _backends(group: RouteGroup, table: Table) -> list[str]:
    name = proxy.escape(group.name)
    # A flow is a client's connection; the ring places it by points.
    ring = (
        "hash var(txn.flow)\n    hash-type consistent sdbm avalanche\n"
        f"    hash-balance-factor {table.limits.fallback.bound.balance_percent}"
    )
    numbers = _numbers([backend.id for backend in group.backends])
    sections = []
    for side in proxy.COPIES:
        weighed = weights(table, side)
        balance = "roundrobin" if side in proxy.SIDES else ring
        lines = [f"backend {name}_{side}", f"    balance {balance}"]
        lines += [_RETRY_SERVERS] if group.retry and side in proxy.SIDES else []
        for backend in sorted(group.backends, key=lambda backend: backend.id):
            server = f"{proxy.escape(backend.id)} {proxy.address(backend.host, backend.port)}"
            number, weight = numbers[backend.id], weighed[backend.id]
            lines.append(f"    server {server} id {number} weight {weight}")
        sections.append("\n".join(lines) + "\n")
    return sections


def _numbers(ids: Sequence[str]) -> dict[str, int]:
    """A number per backend that follows from its id: HAProxy puts servers on its ring by number,
    and counting them would move every flow when the first one leaves."""
    numbers: dict[str, int] = {}
    for id in sorted(ids):
        number = fnv1a(id.encode()) % _NUMBERS
        while number + 1 in numbers.values():
            number = (number + 1) % _NUMBERS
        numbers[id] = number + 1
    return numbers


def addresses(text: str) -> set[proxy.Address]:
    binds = re.findall(r"^    bind \[?([^\]\n]+?)\]?:(\d+)$", text, re.MULTILINE)
    return {(host, int(port)) for host, port in binds}


def weights(table: Table, side: str) -> dict[str, int]:
    """Slots as HAProxy's weights, the same numbers as long as they fit; on the ring, members."""
    slots, members = table.slots, table.limits.fallback.members
    if side == proxy.HASHED:
        return {id: _RING_WEIGHT if id in members else 0 for id in slots}
    most = max(slots.values(), default=0)
    if most <= WEIGHT_MAX:
        return dict(slots)
    # A backend with a slot is never rounded down to nothing.
    return {id: max(1, count * WEIGHT_MAX // most) if count else 0 for id, count in slots.items()}


def laid_out(name: str, side: str, table: Table) -> dict[str, int]:
    """The weight of every server with a table on a side, and its fallback members on the hashed
    one."""
    return {
        f"{name}_{copy}/{proxy.escape(id)}": weight
        for copy in (side, proxy.HASHED)
        for id, weight in sorted(weights(table, copy).items())
    }


def lay_out(news: Mapping[str, int]) -> list[str]:
    """The commands that give servers these weights; one with a weight is no longer drained."""
    commands = []
    for server, weight in news.items():
        commands.append(f"set server {server} weight {weight}")
        if weight:
            commands.append(f"set server {server} state ready")
    return commands


def write_state(now: Active) -> str:
    """A group's state, for a table that was laid out on its side."""
    table, limits, fallback = now.table, now.table.limits, now.table.limits.fallback
    inside_max = limits.concurrency.inside_max if limits.concurrency else 0
    decision = "" if now.decision is None else now.decision
    served = now.side if any(table.slots.values()) else NONE
    hashed = proxy.HASHED if fallback.members else NONE
    # The side stands at the front too: the next table must go to the other one even when this one
    # serves nothing.
    head = f"{table.epoch}:{now.side}:{inside_max}:{decision}{_write_retries(limits.retries)}"
    alive = _write_admission(served, limits.admission, limits.retry_after_s)
    alone = _write_admission(hashed, fallback.admission, fallback.retry_after_s)
    bound = fallback.bound
    numbers = (bound.inside_max, bound.most, bound.step, bound.every_ms, bound.stay_ms)
    return f"{head}|{alive}|{alone}|{':'.join(map(str, numbers))}"


def read_head(state: str) -> tuple[int, str]:
    """The epoch and the side of a state."""
    epoch, side, *_ = state.split(":")
    return int(epoch), side


def _write_retries(retries: RetryLimit | None) -> str:
    """Below how many inside a request may be repeated; 0: none is."""
    if retries is None:
        return ""
    most = _ANY_NUMBER if retries.inside_max is None else retries.inside_max
    return f":{most if retries.times else 0}"


def _write_admission(side: str, admission: Admission, retry_after_s: int) -> str:
    if admission.mode == AdmissionMode.NORMAL:
        return f"{side}:{admission.mode}"
    rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
    refill, size = min(round(rate * 1000), _REFILL_MAX), min(round(burst * TOKEN), _SIZE_MAX)
    return f"{side}:{admission.mode}:{refill}:{size}:{retry_after_s}"
