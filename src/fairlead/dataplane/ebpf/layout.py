"""The maps' keys and values as the agent sees them, and how a table is written into them.

The structures are `bpf/layout.h` once more, field by field, without what only the programs read.
The kernel is asked for every map's sizes when the dataplane opens it, so the two cannot drift apart
unnoticed; what means something else in the same place needs a new `SCHEMA_VERSION`.
"""

import ctypes
import hashlib
import ipaddress
import socket
import struct
from array import array
from collections.abc import Mapping
from ctypes import c_char, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from fairlead.core.traffic.limits import Concurrency, Fallback, Limits
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import Proto, Table

SLOTS_MAX = BUCKETS = 1024
NAME_BYTES = 128
NONE = 0xFFFF_FFFF
TOKEN = 10**12
EPOCH_MAX = 2**48 - 1
EPOCH_SHIFT, TURN_MASK = 16, 0x7FFF
INDEX_BITS = 20
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


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much the maps hold. Kernel memory, taken at once: 25 KB for a group with its two tables,
    200 bytes for a backend and 32 more on each CPU, 64 for a connection, 120 for a reply."""

    groups: int = 256
    backends: int = 4096
    """At most `BACKENDS_MAX`."""
    connections: int = 65_536
    """That are seen to live and end, rounded up to a power of two; those that find no place are
    routed all the same. From half of it on some will find none."""
    replies: int = 65_536
    """Answers that unconnected UDP sockets wait for; the oldest is forgotten first."""


def fields(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Fields of one type, for a structure."""
    return [(name, kind) for name in names.split()]


class KernelTuple(ctypes.Structure):
    """One end of a flow, in network order."""

    _fields_ = [("addr", c_uint8 * 16), ("port", c_uint8 * 2), *fields(c_uint8, "proto zero")]

    @classmethod
    def of(cls, host: str, port: int, proto: Proto) -> "KernelTuple":
        """Raises ValueError where `host` is no address."""
        address = ipaddress.ip_address(host)
        packed = address.packed
        if address.version == 4:
            packed = bytes(10) + b"\xff\xff" + packed
        return cls.from_buffer_copy(packed + port.to_bytes(2, "big") + bytes((PROTOCOLS[proto], 0)))


class KernelBudget(ctypes.Structure):
    """A bucket's rate and size in its own units."""

    _fields_ = fields(c_uint64, "rate cap full_us")


class KernelTable(ctypes.Structure):
    """One decision for one group."""

    _fields_ = [
        *fields(c_uint64, "word decision"),
        *fields(c_uint32, "total mode fallback_mode inside_max room_least zero"),
        *fields(KernelBudget, "budget fallback"),
        ("slots", c_uint64 * SLOTS_MAX),
        ("rendezvous", c_uint32 * BUCKETS),
    ]


class KernelGroup(ctypes.Structure):
    """A group's selector, cursor and address."""

    _fields_ = [
        *fields(c_uint64, "selector cursor"),
        ("vip", KernelTuple),
        ("live", c_uint32),
        ("name", c_char * NAME_BYTES),
    ]


class KernelBackend(ctypes.Structure):
    """Where a slot leads."""

    _fields_ = [("to", KernelTuple), ("group", c_uint32), ("name", c_char * NAME_BYTES)]


class KernelBucket(ctypes.Structure):
    """A group's tokens; the kernel's lock comes first."""

    _fields_ = [*fields(c_uint32, "lock zero"), *fields(c_uint64, "level filled_us")]


class KernelGroupCount(ctypes.Structure):
    """Of one CPU."""

    _fields_ = fields(c_uint64, "admitted refused_soft refused_hard")


class KernelBackendCount(ctypes.Structure):
    """Of one CPU."""

    _fields_ = fields(c_uint64, "admitted established failed retransmitted")


class KernelHealth(ctypes.Structure):
    """Failed connects in a row, and the smoothed round trip."""

    _fields_ = fields(c_uint32, "failures_in_a_row srtt_eighths_us off_eighths_us zero")


class KernelLoad(ctypes.Structure):
    """A backend's generation and the connections in it, in one word that only the kernel writes."""

    _fields_ = [("word", c_uint64)]


class KernelSettings(ctypes.Structure):
    """What the programs know before they are loaded."""

    _fields_ = [
        *fields(c_uint64, "hold_after_ns fallback_after_ns"),
        *fields(c_uint32, "errno_soft errno_hard has_retval origins_mask"),
    ]


class CommandBlock(ctypes.Structure):
    """A command as the kernel reads it."""

    _fields_ = [*fields(c_uint32, "kind group"), *fields(c_uint64, "expected word")]


def word_of(epoch: int, turn: int, side: int) -> int:
    """The selector: which table is active and which decision it is."""
    return epoch << EPOCH_SHIFT | (turn & TURN_MASK) << 1 | side


def next_word(word: int, epoch: int) -> int:
    return word_of(epoch, (word >> 1 & TURN_MASK) + 1, word & 1 ^ 1)


def epoch_of(word: int) -> int:
    return word >> EPOCH_SHIFT


def stamp_of(word: int) -> int:
    """What every slot of a table carries to show that it is of this table."""
    return word >> 1 & UINT32_MAX


def index_of(slot: int) -> int:
    return slot & BACKENDS_MAX - 1


def spread(slots: Mapping[str, int]) -> list[str]:
    """Every slot's backend, each backend's slots as evenly apart as they can be.

    One after the other would send a run of connections to the same backend.
    """
    places: list[tuple[float, str]] = []
    for id, count in slots.items():
        places += [((2 * number + 1) / count, id) for number in range(count)]
    return [id for _, id in sorted(places)]


@lru_cache(maxsize=4096)
def rendezvous_buckets(members: tuple[str, ...]) -> tuple[str, ...]:
    """The member that gets each bucket of flows: the one with the highest random weight there.

    A weight depends on the member and the bucket alone, so only the buckets of a member that leaves
    move.
    """
    columns = [zip(_weights(id), (id,) * BUCKETS, strict=True) for id in members]
    return tuple(max(weights)[1] for weights in zip(*columns, strict=True))


@lru_cache(maxsize=8192)
def _weights(id: str) -> tuple[int, ...]:
    return struct.unpack(f"<{BUCKETS}I", hashlib.shake_128(id.encode()).digest(4 * BUCKETS))


def budget_of(admission: Admission) -> KernelBudget:
    """A budget as the bucket counts; no numbers, as in `normal`, admit nothing."""
    # 1e-12 admissions per µs are 1e-6 per s.
    rate = round(min(admission.rate_per_s or 0.0, _PER_SECOND_MAX) * 1e6)
    cap = round(min(admission.burst or 0.0, _PER_SECOND_MAX) * TOKEN)
    return KernelBudget(rate=rate, cap=cap, full_us=cap // rate + 1 if rate else _FOR_EVER_US)


def encode_limits(now: Active) -> KernelTable:
    """A table without its slots."""
    limits = now.table.limits
    bound, alone = limits.concurrency, limits.fallback.admission
    return KernelTable(
        decision=0 if now.decision is None else now.decision + 1,
        mode=MODES.index(limits.admission.mode),
        fallback_mode=MODES.index(alone.mode),
        # No machine has so many connections.
        inside_max=min(bound.inside_max, UINT32_MAX) if bound else 0,
        room_least=bound.room_least if bound else 0,
        budget=budget_of(limits.admission),
        fallback=budget_of(alone),
    )


def encode_slots(
    encoded: KernelTable,
    word: int,
    slots: Mapping[str, int],
    members: tuple[str, ...],
    at: Mapping[str, int],
) -> None:
    """Write slots and fallback members into a new table, which the selector will name by `word`.

    `at` is each backend's index.
    """
    order = spread(slots)
    stamp = stamp_of(word) << 32
    stamped = {id: stamp | slots[id] << INDEX_BITS | index for id, index in at.items()}
    encoded.word, encoded.total = word, len(order)
    _write(encoded.slots, array("Q", [stamped[id] for id in order]))
    _write(encoded.rendezvous, _fallback(members, tuple(at[id] for id in members)))


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


def decode(table: KernelTable, group: str, word: int, at: Mapping[str, int]) -> Active:
    """What a table in the kernel stands for, its budgets apart: those stay in the kernel."""
    indices = [index_of(slot) for slot in table.slots[: table.total]]
    slots = {id: indices.count(index) for id, index in at.items()}
    led = set(table.rendezvous)
    members = tuple(sorted(id for id, index in at.items() if index in led))
    fallback = Fallback(members, Admission(MODES[table.fallback_mode]))
    most = int(table.inside_max)
    bound = Concurrency(most, int(table.room_least)) if most else None
    limits = Limits(fallback, Admission(MODES[table.mode]), concurrency=bound)
    decision = int(table.decision) - 1 if table.decision else None
    return Active(Table(group, epoch_of(word), slots, limits), decision)
