"""The types of columns, the integer codes inside them, and which pods each node holds.

Enums travel as small integers: the code is the position in the enum, which is closed, so that a
column of policies is one byte per node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.core import units
from fairlead.core.cpu import CpuMode, Policy
from fairlead.core.reasons import CpuReason
from fairlead.core.units import OutOfRange

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]

Item = TypeVar("Item", bound=np.generic)

POLICIES = tuple(Policy)
MODES = tuple(CpuMode)

UNKNOWN = -1
"""What a column of optional sizes (or of previous modes) holds where core says `None`: sizes are
never negative, so one column is enough where a mask would double it."""

MODE_CODE = {mode: code for code, mode in enumerate(MODES)}
POLICY_CODE = {policy: code for code, policy in enumerate(POLICIES)}
# Reasons are a set of bits, in the order in which core lists a pod's reasons: what became of its
# minimum, where its need comes from, what was bent.
_FIRST, _LAST = CpuReason.MIN_ABOVE_MAX, CpuReason.GUARDRAIL_RELAXED
_REASONS = (_FIRST, *(reason for reason in CpuReason if reason not in (_FIRST, _LAST)), _LAST)
REASON_BIT = {reason: 1 << place for place, reason in enumerate(_REASONS)}


def whole(
    values: npt.ArrayLike, field: str, *, shape: tuple[int, ...], low: int, high: int
) -> Ints:
    """A read-only column of integers in [low, high], or `OutOfRange` naming the first culprit."""
    column = _shaped(values, field, shape)
    # uint64 would wrap around when it is cast, so it is not taken at all.
    if column.dtype.kind not in "iu" or not np.can_cast(column.dtype, np.int64):
        raise OutOfRange(field, f"must be a column of int64, got {column.dtype}")
    numbers = column.astype(np.int64, copy=False)
    _refuse_outside((numbers < low) | (numbers > high), numbers, field, f"{low} and {high}")
    return _frozen(numbers)


def real(values: npt.ArrayLike, field: str, *, shape: tuple[int, ...], high: float) -> Floats:
    """A read-only column of doubles in [0, high]; NaN is outside."""
    column = _shaped(values, field, shape)
    if column.dtype.kind not in "iuf" or column.dtype.itemsize > 8:
        raise OutOfRange(field, f"must be a column of doubles, got {column.dtype}")
    numbers = column.astype(np.float64, copy=False)
    _refuse_outside(~((numbers >= 0) & (numbers <= high)), numbers, field, f"0 and {high}")
    return _frozen(numbers)


def truth(values: npt.ArrayLike, field: str, *, shape: tuple[int, ...]) -> Bools:
    column = _shaped(values, field, shape)
    if column.dtype != np.bool_:
        raise OutOfRange(field, f"must be a column of booleans, got {column.dtype}")
    return _frozen(column.astype(np.bool_, copy=False))


def _shaped(values: npt.ArrayLike, field: str, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    column = np.ascontiguousarray(values)
    if column.shape != shape:
        raise OutOfRange(field, f"must have the shape {shape}, got {column.shape}")
    return column


def _refuse_outside(
    outside: Bools, column: npt.NDArray[np.generic], field: str, limits: str
) -> None:
    if outside.any():
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        where = "".join(f"[{i}]" for i in place)
        raise OutOfRange(field + where, f"must be between {limits}, got {column[place]!r}")


def _frozen(column: npt.NDArray[Item]) -> npt.NDArray[Item]:
    """A read-only view: the caller's own array stays writable, ours does not change through us."""
    view = column.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Node i holds the pods `uids[offsets[i]:offsets[i + 1]]`, ascending by code point.

    Core breaks ties by uid, so the position inside a node *is* the tie-break.
    """

    offsets: Ints
    uids: tuple[str, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.offsets)
        if not self.offsets.size or self.offsets[0] != 0 or (steps < 0).any():
            raise OutOfRange("offsets", "must start at 0 and never fall")
        if self.offsets[-1] != len(self.uids):
            raise OutOfRange("offsets", f"must end at the number of uids, {len(self.uids)}")
        starts = set(self.offsets.tolist())
        for index, uid in enumerate(self.uids):
            units.name(uid, f"uids[{index}]")
            if not uid:
                raise OutOfRange(f"uids[{index}]", "must be a non-empty string, got ''")
            if index not in starts and not self.uids[index - 1] < uid:
                raise OutOfRange(f"uids[{index}]", "must be above the uid before it in its node")

    @classmethod
    def of(cls, nodes: Iterable[Sequence[str]]) -> "Roster":
        """The roster of nodes given as lists of ascending uids."""
        members = [tuple(uids) for uids in nodes]
        offsets = np.array([0, *accumulate(map(len, members))], dtype=np.int64)
        return cls(offsets, tuple(uid for uids in members for uid in uids))

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def pods(self) -> int:
        return len(self.uids)

    @property
    def counts(self) -> Ints:
        return np.diff(self.offsets)

    def span(self, node: int) -> slice:
        """Where the pods of a node lie in every column of pods."""
        return slice(int(self.offsets[node]), int(self.offsets[node + 1]))
