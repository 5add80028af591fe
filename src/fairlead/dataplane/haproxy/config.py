"""The configuration: what HAProxy does with every request, in its own rule language.

Per group one frontend at the virtual address and five backends: `_a` and `_b` hold the active and
the next table as weights, `_f` hashes flows when the agent is gone, `_soft` and `_hard` refuse. The
frontend reads the group's word (`words`), asks whether the heartbeat is still in its stick table,
takes a token if the mode has a bucket, and picks one of the five.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.canonical import digest
from fairlead.core.traffic.admission import fnv1a
from fairlead.dataplane.addresses import Door
from fairlead.dataplane.haproxy.words import HASHED, SIDES, TOKEN
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import fallback_members
from fairlead.ports.dataplane import FALLBACK_AFTER_MS, SCHEMA_VERSION, RouteGroup
from fairlead.ports.faults import PermanentFault

BEAT, TIMES, AGENT = "fairlead_beat", "fairlead_times", "agent"
BORN = "_born"
"""In the map of words: when a worker was meant to begin. No tamed name looks like that."""
WEIGHT_MAX = 256  # HAProxy's own limit
_RING_WEIGHT = 16  # 256 points of each server on the ring: shares even to some 6 %, 15 KiB each
_NUMBERS = 2**19  # times the 4096 points that a server can have it stays below 2^32
_FOLDER_BYTES_MAX = 80  # a socket's path has 107, of which HAProxy needs some for a while
_HOUR_US = 3_600_000_000
_REFUSALS = {"soft": 429, "hard": 503}


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may want different."""

    threads: int = 1
    """One thread makes the bucket exact: its rules read and write without a lock."""
    descriptors_max: int = 200_000
    """Connections follow from it and from the process's own limit, whichever is lower."""
    retries: int = 0
    """A retry hides the failure that the governor should see."""
    connect_timeout_ms: int = 5_000
    idle_timeout_ms: int = 60_000
    user: str | None = None
    """Whom the worker becomes once it listens; only root can ask for that."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything of the plane lives."""

    folder: Path

    def __post_init__(self) -> None:
        name = str(self.folder)
        if any(not char.isprintable() or char in " \\\"'#" for char in name):
            raise PermanentFault(f"folder: HAProxy cannot name {name!r}")
        if len(name.encode()) > _FOLDER_BYTES_MAX:
            raise PermanentFault(f"folder: too long for a socket's path: {name}")

    @property
    def config(self) -> Path:
        """What HAProxy reads at start and reload."""
        return self.folder / "haproxy.cfg"

    @property
    def words(self) -> Path:
        """The map of words, as it was at the last start or reload."""
        return self.folder / "words.map"

    @property
    def socket(self) -> Path:
        """The runtime socket of the worker."""
        return self.folder / "haproxy.sock"

    @property
    def master(self) -> Path:
        """The socket of the master, which reloads."""
        return self.folder / "master.sock"

    def counted(self, generation: str) -> Path:
        """What workers had counted before one of this generation began.

        One file per generation: whoever dies between writing it and the reload leaves the
        running worker's own file as it was.
        """
        return self.folder / f"counted-{generation.rpartition('/')[2]}.json"

    def ours(self) -> list[Path]:
        """All that may be there; the folder may be somebody else's too."""
        single = [self.config, self.words, self.socket, self.master, self.said]
        drafts = [path.with_name(path.name + ".draft") for path in single]
        found = [path for path in (*single, *drafts) if path.exists()]
        return found + sorted(self.folder.glob("counted-*.json*"))

    @property
    def said(self) -> Path:
        """What HAProxy said when it was last run."""
        return self.folder / "haproxy.log"


def generation(groups: Sequence[RouteGroup], limits: Limits) -> str:
    """Names a configuration, tables apart; HAProxy shows it as its description."""
    shape = [
        [
            group.name,
            group.vip,
            group.port,
            group.proto.value,
            sorted([each.id, each.host, each.port] for each in group.backends),
        ]
        for group in sorted(groups, key=lambda group: group.name)
    ]
    knobs = [
        limits.threads,
        limits.descriptors_max,
        limits.retries,
        limits.connect_timeout_ms,
        limits.idle_timeout_ms,
        limits.user,
    ]
    return f"fairlead/{SCHEMA_VERSION}/{digest([shape, knobs])[:16]}"


def render(
    groups: Sequence[RouteGroup],
    slots: Mapping[str, Mapping[str, int]],
    *,
    files: Files,
    limits: Limits,
) -> str:
    """The whole configuration; `slots` per group are laid out on both sides."""
    sections = [_head(files, limits, generation(groups, limits))]
    for index, group in enumerate(sorted(groups, key=lambda group: group.name)):
        sections.append(_frontend(index, group, files))
        sections.extend(_backends(group, slots[group.name]))
    return "\n".join(sections)


def _head(files: Files, limits: Limits, description: str) -> str:
    user = f"\n    user {limits.user}" if limits.user else ""
    return f"""# Written by Fairlead; changes are lost at the next one.
global
    description {description}
    nbthread {limits.threads}
    fd-hard-limit {limits.descriptors_max}
    hard-stop-after 30s
    stats socket unix@{files.socket} mode 600 level admin expose-fd listeners
    stats timeout 1h{user}

ring {TIMES}
    format raw
    maxlen 512
    size 1048576

defaults
    mode http
    log ring@{TIMES} format raw local0
    log-format "%b %s %ST %ts %Ta"
    retries {limits.retries}
    timeout connect {limits.connect_timeout_ms}ms
    timeout client {limits.idle_timeout_ms}ms
    timeout server {limits.idle_timeout_ms}ms
    timeout queue {limits.connect_timeout_ms}ms

backend {BEAT}
    stick-table type string len 16 size 16 expire {FALLBACK_AFTER_MS}ms store gpt0
"""


def _frontend(index: int, group: RouteGroup, files: Files) -> str:
    """The rules. `proc` variables belong to the process: they are the group's bucket."""
    name, tokens, at = tame(group.name), f"proc.tokens{index}", f"proc.at{index}"
    return f"""frontend {name}
    bind {address(group.vip, group.port)}
    acl alive str({AGENT}),in_table({BEAT})
    # A new worker has an empty table: until a first heartbeat can have come, its age counts.
    acl alive date(0,ms),sub(txn.born) 0:{FALLBACK_AFTER_MS - 1}
    acl open var(txn.mode) -m str normal
    acl dry var({tokens}),sub({TOKEN}) lt 0
    acl bounded var(txn.most) -m int gt 0
    acl full var(txn.inside),sub(txn.most) ge 0
    http-request set-var(txn.born) str({BORN}),map_str({files.words}),add(0) unless alive
    http-request set-var(txn.word) str({name}),map_str({files.words})
    http-request set-var(txn.door) var(txn.word),field(3,|)
    http-request set-var(txn.door) var(txn.word),field(2,|) if alive
    http-request set-var(txn.port) src_port unless alive
    http-request set-var(txn.flow) src,concat(:,txn.port) unless alive
    http-request set-var(txn.side) var(txn.door),field(1,:)
    http-request set-var(txn.mode) var(txn.door),field(2,:)
    http-request set-var(txn.rate) var(txn.door),field(3,:),add(0) unless open
    http-request set-var(txn.size) var(txn.door),field(4,:),add(0) unless open
    http-request set-var(txn.retry) var(txn.door),field(5,:) unless open
    # How much may be inside; without an agent any number.
    http-request set-var(txn.most) var(txn.word),field(1,|),field(3,:),add(0) if alive
    http-request set-var(txn.inside) be_conn({name}_a) if bounded
    http-request set-var(txn.inside) be_conn({name}_b),add(txn.inside) if bounded
    http-request set-var(txn.inside) be_conn({name}_f),add(txn.inside) if bounded
    http-request set-var(txn.retry) str(1) if bounded full
    http-request set-var(txn.side) str(soft) if bounded full {{ var(txn.side) -m str a b }}
    # Refill, cap, test, subtract. The bucket starts full; time backwards refills nothing.
    http-request set-var(txn.now) date(0,us) unless open
    http-request set-var({at}) var(txn.now) unless open || {{ var({at}) -m found }}
    http-request set-var({tokens}) var(txn.size) unless open || {{ var({tokens}) -m found }}
    http-request set-var(txn.past) var(txn.now),sub({at}) unless open
    http-request set-var({at}) var(txn.now) unless open
    http-request set-var(txn.past) int(0) if !open {{ var(txn.past) -m int lt 0 }}
    http-request set-var(txn.past) int({_HOUR_US}) if !open {{ var(txn.past) -m int gt {_HOUR_US} }}
    http-request set-var({tokens}) var(txn.past),mul(txn.rate),div(1000),add({tokens}) unless open
    http-request set-var({tokens}) var(txn.size) if !open {{ var({tokens}),sub(txn.size) gt 0 }}
    http-request set-var(txn.side) var(txn.mode) if !open dry !full
    http-request set-var({tokens}) var({tokens}),sub({TOKEN}) if !open !dry !full
    use_backend {name}_%[var(txn.side)]
"""


def _backends(group: RouteGroup, slots: Mapping[str, int]) -> list[str]:
    name = tame(group.name)
    laid = {side: weights(slots) for side in SIDES}
    laid[HASHED] = hashed_weights(slots)
    balances = dict.fromkeys(SIDES, "balance roundrobin")
    # A flow is a client's connection; the ring places it by points.
    balances[HASHED] = "balance hash var(txn.flow)\n    hash-type consistent sdbm avalanche"
    numbers = _numbers([each.id for each in group.backends])
    parts = [
        f"backend {name}_{side}\n    {balances[side]}\n"
        + "".join(
            f"    server {tame(each.id)} {address(each.host, each.port)}"
            f" id {numbers[each.id]} weight {laid[side][each.id]}\n"
            for each in sorted(group.backends, key=lambda backend: backend.id)
        )
        for side in (*SIDES, HASHED)
    ]
    return parts + [_refusal(name, mode, status) for mode, status in _REFUSALS.items()]


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


def _refusal(name: str, mode: str, status: int) -> str:
    headers = f"hdr Fairlead-Refused {mode}"
    if mode == "soft":
        headers += " hdr Retry-After %[var(txn.retry)]"
    body = f'content-type text/plain string "refused by fairlead: {mode}"'
    return f"""backend {name}_{mode}
    http-request return status {status} {body} {headers}
"""


def address(host: str, port: int) -> str:
    """An address as HAProxy writes it; it knows both families by their look."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def doors(text: str) -> set[Door]:
    """The virtual addresses in a configuration that was rendered here."""
    found = re.findall(r"^    bind \[?([^\]\n]+?)\]?:(\d+)$", text, re.MULTILINE)
    return {(host, int(port)) for host, port in found}


def weights(slots: Mapping[str, int]) -> dict[str, int]:
    """Slots as HAProxy's weights: the same numbers as long as they fit."""
    most = max(slots.values(), default=0)
    if most <= WEIGHT_MAX:
        return dict(slots)
    # Nobody who has a slot is rounded down to nothing.
    return {id: max(1, each * WEIGHT_MAX // most) if each else 0 for id, each in slots.items()}


def hashed_weights(slots: Mapping[str, int]) -> dict[str, int]:
    """Equal weights for whom a flow may hash to without an agent, 0 for the others."""
    members = set(fallback_members(slots))
    return {id: _RING_WEIGHT if id in members else 0 for id in slots}
