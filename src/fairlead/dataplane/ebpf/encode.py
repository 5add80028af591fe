"""A decision in the kernel's terms: the order of the slots, the buckets of fallback, the budget.

Pure functions; `registry` writes what they make.
"""

import ctypes
import hashlib
import struct
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fairlead.dataplane.ebpf.layout import (
    BUCKETS,
    INDEX_BITS,
    MODES,
    NOBODY,
    TOKEN,
    UINT32_MAX,
    Budget,
    Table,
    index_of,
    stamp_of,
)
from fairlead.dataplane.tables import fallback_members
from fairlead.ports.dataplane import Admission

_FOR_EVER_US = 2**64 - 1
# No machine connects this often, so a larger budget is none; and below it nothing overflows.
_PER_SECOND_MAX = 4_000_000


def spread(slots: Mapping[str, int]) -> list[str]:
    """Every slot's backend, each backend's slots as evenly apart as they can be.

    One after the other would send a run of connections to the same backend.
    """
    places: list[tuple[float, str]] = []
    for id, share in slots.items():
        places += [((2 * number + 1) / share, id) for number in range(share)]
    return [id for _, id in sorted(places)]


@lru_cache(maxsize=4096)
def rendezvous_buckets(members: tuple[str, ...]) -> tuple[str, ...]:
    """Who gets each bucket of flows: the member with the highest random weight there.

    A weight depends on the member and the bucket alone, so whoever leaves gives up its own buckets
    and nobody else's move.
    """
    columns = [zip(_weights(id), (id,) * BUCKETS, strict=True) for id in members]
    return tuple(max(weights)[1] for weights in zip(*columns, strict=True))


@lru_cache(maxsize=8192)
def _weights(id: str) -> tuple[int, ...]:
    return struct.unpack(f"<{BUCKETS}I", hashlib.shake_128(id.encode()).digest(4 * BUCKETS))


def budget_of(rate_per_s: float | None, burst: float | None) -> Budget:
    """A budget as the bucket counts; no numbers, as in `normal`, let nobody through."""
    # 1e-12 admissions per µs are 1e-6 per s.
    rate = round(min(rate_per_s or 0.0, _PER_SECOND_MAX) * 1e6)
    cap = round(min(burst or 0.0, _PER_SECOND_MAX) * TOKEN)
    return Budget(rate=rate, cap=cap, full_us=cap // rate + 1 if rate else _FOR_EVER_US)


def encode_admission(table: Table, admission: Admission) -> None:
    """Write the door into a table, with what it becomes in fallback."""
    table.mode = MODES.index(admission.mode)
    table.budget = budget_of(admission.rate_per_s, admission.burst)
    stored = admission.stored_rate_per_s is not None
    table.decayed = (
        budget_of(admission.stored_rate_per_s, admission.stored_burst) if stored else table.budget
    )


def encode_bound(table: Table, inside_max: int | None) -> None:
    """Write how much may be inside the group."""
    table.inside_max = min(inside_max or 0, UINT32_MAX)  # so many connections nobody has


def decode_bound(table: Table) -> int | None:
    """How much may be inside by a table."""
    return int(table.inside_max) or None


def encode_slots(table: Table, word: int, slots: Mapping[str, int], at: Mapping[str, int]) -> None:
    """Write slots and fallback into a new table, which the selector will name by `word`.

    `at` is each backend's index.
    """
    order = spread(slots)
    stamp = stamp_of(word) << 32
    stamped = {id: stamp | slots[id] << INDEX_BITS | index for id, index in at.items()}
    table.word, table.total = word, len(order)
    _write(table.slots, array("Q", [stamped[id] for id in order]))
    members = tuple(fallback_members(slots))
    _write(table.rendezvous, _fallback(members, tuple(at[id] for id in members)))


@lru_cache(maxsize=1024)
def _fallback(members: tuple[str, ...], indices: tuple[int, ...]) -> "array[int]":
    """It changes when somebody joins, leaves or is isolated: not in most ticks."""
    if not members:
        return array("I", [NOBODY] * BUCKETS)
    at = dict(zip(members, indices, strict=True))
    return array("I", [at[id] for id in rendezvous_buckets(members)])


def _write(target: "ctypes.Array[Any]", numbers: "array[int]") -> None:
    """One copy: assigning a thousand elements one by one takes as long as all the rest."""
    ctypes.memmove(target, numbers.buffer_info()[0], len(numbers) * numbers.itemsize)


def decode_slots(table: Table, at: Mapping[str, int]) -> dict[str, int]:
    """How many slots each backend has in a table."""
    found = [index_of(slot) for slot in table.slots[: table.total]]
    return {id: found.count(index) for id, index in at.items()}
