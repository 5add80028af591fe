"""The maps' keys and values as the agent sees them: `bpf/layout.h` once more, field by field.

What only the programs read is left out. The kernel is asked for every map's sizes when the plane
opens it, so the two cannot drift apart unnoticed; what means something else in the same place needs
a new `SCHEMA_VERSION`.
"""

import ctypes
import ipaddress
import socket
from ctypes import c_char, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass
from enum import IntEnum

from fairlead.ports.dataplane import Mode, Proto

SLOTS_MAX = BUCKETS = 1024
NAME_BYTES = 128
NOBODY = 0xFFFF_FFFF
TOKEN = 10**12
EPOCH_MAX = 2**48 - 1
EPOCH_SHIFT, TURN_MASK = 16, 0x7FFF
INDEX_BITS = 20
BACKENDS_MAX = 1 << INDEX_BITS
UINT32_MAX = 0xFFFF_FFFF

MODES = (Mode.NORMAL, Mode.SOFT, Mode.HARD)
"""By their number in the kernel."""
PROTOCOLS = {Proto.TCP: socket.IPPROTO_TCP, Proto.UDP: socket.IPPROTO_UDP}


class Order(IntEnum):
    """What the agent asks of the kernel."""

    BEAT, FLIP, RESHAPE, LOOK, FORGET = range(5)


class Answer(IntEnum):
    """What the kernel says to it."""

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


class Tuple(ctypes.Structure):
    """One end of a flow, in network order."""

    _fields_ = [
        ("addr", c_uint8 * 16),
        ("port", c_uint8 * 2),
        ("proto", c_uint8),
        ("zero", c_uint8),
    ]

    @classmethod
    def of(cls, host: str, port: int, proto: Proto) -> "Tuple":
        """Raises ValueError where `host` is no address."""
        address = ipaddress.ip_address(host)
        packed = address.packed
        if address.version == 4:
            packed = bytes(10) + b"\xff\xff" + packed
        return cls.from_buffer_copy(packed + port.to_bytes(2, "big") + bytes((PROTOCOLS[proto], 0)))


class Budget(ctypes.Structure):
    """A bucket's rate and size in its own units."""

    _fields_ = [("rate", c_uint64), ("cap", c_uint64), ("full_us", c_uint64)]


class Table(ctypes.Structure):
    """One decision for one group."""

    _fields_ = [
        ("word", c_uint64),
        ("total", c_uint32),
        ("mode", c_uint32),
        ("inside_max", c_uint32),
        ("zero", c_uint32),
        ("budget", Budget),
        ("decayed", Budget),
        ("slots", c_uint64 * SLOTS_MAX),
        ("rendezvous", c_uint32 * BUCKETS),
    ]


class Group(ctypes.Structure):
    """A group's selector, cursor and address."""

    _fields_ = [
        ("selector", c_uint64),
        ("cursor", c_uint64),
        ("vip", Tuple),
        ("live", c_uint32),
        ("name", c_char * NAME_BYTES),
    ]


class Backend(ctypes.Structure):
    """Where a slot leads."""

    _fields_ = [("to", Tuple), ("group", c_uint32), ("name", c_char * NAME_BYTES)]


class Bucket(ctypes.Structure):
    """A group's tokens; the kernel's lock comes first."""

    _fields_ = [
        ("lock", c_uint32),
        ("zero", c_uint32),
        ("level", c_uint64),
        ("filled_us", c_uint64),
    ]


class GroupCount(ctypes.Structure):
    """Of one CPU."""

    _fields_ = [("admitted", c_uint64), ("refused_soft", c_uint64), ("refused_hard", c_uint64)]


class BackendCount(ctypes.Structure):
    """Of one CPU."""

    _fields_ = [
        ("admitted", c_uint64),
        ("established", c_uint64),
        ("failed", c_uint64),
        ("retransmitted", c_uint64),
    ]


class Health(ctypes.Structure):
    """Failed connects in a row, and the smoothed round trip."""

    _fields_ = [
        ("failures_in_a_row", c_uint32),
        ("srtt_eighths_us", c_uint32),
        ("off_eighths_us", c_uint32),
        ("zero", c_uint32),
    ]


class Load(ctypes.Structure):
    """A backend's generation and the connections in it, in one word that only the kernel writes."""

    _fields_ = [("word", c_uint64)]


class Settings(ctypes.Structure):
    """What the programs are told before they are loaded."""

    _fields_ = [
        ("hold_after_ns", c_uint64),
        ("fallback_after_ns", c_uint64),
        ("errno_soft", c_uint32),
        ("errno_hard", c_uint32),
        ("has_retval", c_uint32),
        ("origins_mask", c_uint32),
        ("held_least", c_uint32),
        ("zero", c_uint32),
    ]


class OrderSheet(ctypes.Structure):
    """An order as the kernel reads it."""

    _fields_ = [("kind", c_uint32), ("group", c_uint32), ("expected", c_uint64), ("word", c_uint64)]


def word_of(epoch: int, turn: int, side: int) -> int:
    """The selector: which table is active and which decision it is."""
    return epoch << EPOCH_SHIFT | (turn & TURN_MASK) << 1 | side


def next_word(word: int, epoch: int) -> int:
    """The word of the other side, one turn later."""
    return word_of(epoch, (word >> 1 & TURN_MASK) + 1, word & 1 ^ 1)


def epoch_of(word: int) -> int:
    """The decision that a selector names."""
    return word >> EPOCH_SHIFT


def stamp_of(word: int) -> int:
    """What every slot of a table carries to show that it is of this table."""
    return word >> 1 & UINT32_MAX


def index_of(slot: int) -> int:
    """The backend that a slot leads to."""
    return slot & BACKENDS_MAX - 1


def open_of(load: Load) -> int:
    """How many connections are in a backend."""
    return int(load.word) & UINT32_MAX
