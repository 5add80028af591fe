"""The maps' keys and values as the agent sees them, and how a table is written into them.

Structures and numbers are read from `bpf/layout.h`, so agent and programs cannot drift apart. What
means something else in the same place needs a new `SCHEMA_VERSION`.
"""

import ctypes
import hashlib
import ipaddress
import re
import socket
import struct
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairlead.core.traffic.alone import FallbackBound
from fairlead.core.traffic.limits import Concurrency, Fallback, Limits
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import Proto, Table


def _read_header() -> tuple[dict[str, int], dict[str, type[ctypes.Structure]]]:
    """The header's `#define`s, and its structures as ctypes lays them out."""
    text = Path(__file__).with_name("bpf").joinpath("layout.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    defined = re.findall(r"^#define (\w+) +(0x[0-9a-f]+|\d+)", text, re.MULTILINE)
    numbers = {name: int(value, 0) for name, value in defined}
    types: dict[str, Any] = {f"__u{8 * n}": getattr(ctypes, f"c_uint{8 * n}") for n in (1, 2, 4, 8)}
    types |= {"__s64": ctypes.c_int64, "char": ctypes.c_char, "bpf_spin_lock": ctypes.c_uint32}
    structures: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
        fields = [
            (field, types[kind] * (numbers.get(count) or int(count)) if count else types[kind])
            for kind, field, count in re.findall(r"(\w+) (\w+)(?:\[(\w+)\])?;", body)
        ]
        structures[name] = types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return numbers, structures


NUMBERS, STRUCTURES = _read_header()  # of the header, by their names there
SLOTS_MAX, BUCKETS, NAME_BYTES = (NUMBERS[name] for name in ("SLOTS_MAX", "BUCKETS", "NAME_BYTES"))
NONE, TOKEN, INDEX_BITS = (NUMBERS[name] for name in ("NONE", "TOKEN", "INDEX_BITS"))
EPOCH_MAX = 2**48 - 1
EPOCH_SHIFT, TURN_MASK = 16, 0x7FFF
BACKENDS_MAX = 1 << INDEX_BITS
UINT32_MAX = 0xFFFF_FFFF

MODES = (AdmissionMode.NORMAL, AdmissionMode.SOFT, AdmissionMode.HARD)
"""By their number in the kernel."""
_FOR_EVER_US = 2**64 - 1
# No machine connects this often, so a larger budget is none; and below it nothing overflows.
_PER_SECOND_MAX = 4_000_000
PROTOCOLS = {Proto.TCP: socket.IPPROTO_TCP, Proto.UDP: socket.IPPROTO_UDP}


class Command(IntEnum):
    """What the agent asks of the kernel."""

    BEAT, FLIP, RESHAPE, LOOK, FORGET = range(5)


class HookAnswer(IntEnum):
    """How the kernel answers."""

    DONE, HELD, OUTDATED, LOST = range(4)


_SIZES = ("groups", "backends", "connections", "replies")
CAPACITY = {name: NUMBERS[f"{name.upper()}_MAX"] for name in _SIZES}
"""How much the maps hold unless told otherwise. Kernel memory, taken at once: 25 KB for a group
with its two tables, 200 bytes for a backend (at most `BACKENDS_MAX`) and 32 more on each CPU, 64
for a connection, 120 for an answer that an unconnected UDP socket waits for, of which the oldest is
forgotten first. Connections are rounded up to a power of two; from half of it on some find no
place: they are routed, but not seen to live and end."""


def endpoint(host: str, port: int, proto: Proto) -> ctypes.Structure:
    """One end of a flow, in network order; ValueError where `host` is no address."""
    packed = ipaddress.ip_address(host).packed
    if len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    raw = packed + port.to_bytes(2, "big") + bytes((PROTOCOLS[proto], 0))
    return STRUCTURES["tuple"].from_buffer_copy(raw)


def word_of(epoch: int, turn: int, side: int) -> int:
    """The selector: which table is active and which decision it is."""
    return epoch << EPOCH_SHIFT | (turn & TURN_MASK) << 1 | side


def next_word(word: int, epoch: int) -> int:
    return word_of(epoch, (word >> 1 & TURN_MASK) + 1, word & 1 ^ 1)


def stamp_of(word: int) -> int:
    """What every slot of a table carries to show that it is of this table."""
    return word >> 1 & UINT32_MAX


def spread(slots: Mapping[str, int]) -> list[str]:
    """Every slot's backend, each backend's slots as evenly apart as they can be: otherwise a run of
    connections would go to the same backend."""
    places: list[tuple[float, str]] = []
    for id, count in slots.items():
        places += [((2 * number + 1) / count, id) for number in range(count)]
    return [id for _, id in sorted(places)]


@lru_cache(maxsize=4096)
def rendezvous_buckets(members: tuple[str, ...]) -> tuple[str, ...]:
    """The member that gets each bucket of flows: the one with the highest random weight there.
    Weights depend on member and bucket alone: only the buckets of a member that leaves move."""
    columns = [zip(_weights(id), (id,) * BUCKETS, strict=True) for id in members]
    return tuple(max(weights)[1] for weights in zip(*columns, strict=True))


@lru_cache(maxsize=8192)
def _weights(id: str) -> tuple[int, ...]:
    return struct.unpack(f"<{BUCKETS}I", hashlib.shake_128(id.encode()).digest(4 * BUCKETS))


def budget_of(admission: Admission) -> ctypes.Structure:
    """A budget as the bucket counts; no numbers, as in `normal`, admit nothing."""
    # 1e-12 admissions per µs are 1e-6 per s.
    rate = round(min(admission.rate_per_s or 0.0, _PER_SECOND_MAX) * 1e6)
    cap = round(min(admission.burst or 0.0, _PER_SECOND_MAX) * TOKEN)
    full_us = cap // rate + 1 if rate else _FOR_EVER_US
    return STRUCTURES["budget"](rate=rate, cap=cap, full_us=full_us)


def encode(now: Active, word: int, at: Mapping[str, int]) -> ctypes.Structure:
    """A table that the selector will name by `word`; `at` is each backend's index."""
    slots, limits = now.table.slots, now.table.limits
    bound, fallback = limits.concurrency, limits.fallback
    order, stamp = spread(slots), stamp_of(word) << 32
    encoded = STRUCTURES["table"](
        word=word,
        decision=0 if now.decision is None else now.decision + 1,
        total=len(order),
        mode=MODES.index(limits.admission.mode),
        fallback_mode=MODES.index(fallback.admission.mode),
        # No machine has so many connections.
        inside_max=min(bound.inside_max, UINT32_MAX) if bound else 0,
        room_least=bound.room_least if bound else 0,
        members=len(fallback.members),
        budget=budget_of(limits.admission),
        fallback=budget_of(fallback.admission),
        alone=STRUCTURES["alone"](
            **{name: min(value, UINT32_MAX) for name, value in asdict(fallback.bound).items()}
        ),
    )
    stamped = {id: stamp | slots[id] << INDEX_BITS | index for id, index in at.items()}
    _write(encoded.slots, array("Q", [stamped[id] for id in order]))
    indices = tuple(at[id] for id in fallback.members)
    _write(encoded.rendezvous, _fallback(fallback.members, indices))
    return encoded


@lru_cache(maxsize=1024)
def _fallback(members: tuple[str, ...], indices: tuple[int, ...]) -> "array[int]":
    """It changes when a backend joins, leaves or is isolated: not in most ticks."""
    if not members:
        return array("I", [NONE] * BUCKETS)
    at = dict(zip(members, indices, strict=True))
    return array("I", [at[id] for id in rendezvous_buckets(members)])


def _write(target: "ctypes.Array[Any]", numbers: "array[int]") -> None:
    """One copy: assigning a thousand elements one by one takes as long as all the rest."""
    ctypes.memmove(target, numbers.buffer_info()[0], len(numbers) * numbers.itemsize)


def slot_indices(table: ctypes.Structure) -> list[int]:
    """The place that each slot of a table leads to."""
    return [slot & BACKENDS_MAX - 1 for slot in table.slots[: table.total]]


def decode(table: ctypes.Structure, group: str, at: Mapping[str, int]) -> Active:
    """What a table in the kernel stands for."""
    indices, led = slot_indices(table), set(table.rendezvous)
    slots = {id: indices.count(index) for id, index in at.items()}
    members = tuple(sorted(id for id, index in at.items() if index in led))
    kept = {name: int(getattr(table.alone, name)) for name, *_ in STRUCTURES["alone"]._fields_}
    admission = _admission(table.fallback_mode, table.fallback)
    fallback = Fallback(members, admission, bound=FallbackBound(**kept))
    most = int(table.inside_max)
    bound = Concurrency(most, int(table.room_least)) if most else None
    limits = Limits(fallback, _admission(table.mode, table.budget), concurrency=bound)
    decision = int(table.decision) - 1 if table.decision else None
    return Active(Table(group, table.word >> EPOCH_SHIFT, slots, limits), decision)


def _admission(number: int, budget: ctypes.Structure) -> Admission:
    mode = MODES[number]
    if mode is AdmissionMode.NORMAL:
        return Admission(mode)
    return Admission(mode, budget.rate / 1e6, budget.cap / TOKEN)
