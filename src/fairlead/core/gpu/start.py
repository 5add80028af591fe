"""Start: whether a run starts now, how wide, who pays and on which devices; growth likewise.

A malleable run starts at the widest width that is funded and placed. Where it lacks devices, no
more is freed for it than its minimum. What a running one lacks comes as whole groups by whole
steps, the lowest numbers first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import lcm

from fairlead.core.gpu.cover import Book, Plan, cover
from fairlead.core.gpu.devices import FreeDevices
from fairlead.core.gpu.model import Request
from fairlead.core.gpu.place import GANG_GPUS_MAX, Gang, Placement
from fairlead.core.gpu.remedy import Remedy, cover_or_remedy
from fairlead.core.invariant import known
from fairlead.core.reasons import StartReason
from fairlead.core.units import Count, Gpus, Name, OutOfRange

_SLOT = re.compile(r".+#[0-9]{1,4}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GangShape:
    """How a run's GPUs form groups, and the spares of each. `group_gpus` None: one group."""

    group_gpus: Gpus | None = None
    spares_per_group: Count = 0

    def with_spares(self, gpus: int) -> int:
        groups = 1 if self.group_gpus is None else -(-gpus // self.group_gpus)
        return gpus + groups * self.spares_per_group

    def without_spares(self, gpus: int) -> int:
        """The active GPUs of a covered number; the inverse of `with_spares`."""
        if self.group_gpus is None or not self.spares_per_group:
            return gpus - self.spares_per_group
        return gpus * self.group_gpus // (self.group_gpus + self.spares_per_group)

    def request_faults(self, request: Request) -> Iterator[OutOfRange]:
        """Of a request in this shape, spares included."""
        for name in ("gpus", "min_gpus", "step_gpus"):
            gpus: int | None = getattr(request, name)
            if gpus is not None and not 1 <= self.without_spares(gpus) <= GANG_GPUS_MAX:
                message = f"must leave 1 to {GANG_GPUS_MAX} GPUs without the spares"
                yield OutOfRange(f"request.{name}", message)

    def gang(self, request: Request, plan: Plan) -> Gang:
        """What is placed; also elsewhere, where an envelope elsewhere pays for a part."""
        return Gang(
            flavor=request.flavor,
            gpus=self.without_spares(plan.gpus),
            group_gpus=self.group_gpus,
            spares_per_group=self.spares_per_group,
            location=request.location,
            elsewhere=any(line.tier.value.endswith("elsewhere") for line in plan.lines),
        )


@dataclass(frozen=True, slots=True)
class RunGrowth:
    """What a run has, and the width that it asked for, or that an outcome took it from; spares do
    not count."""

    width: Count
    grows_to: Gpus
    groups: tuple[Count, ...]
    """Groups that it has, by number."""

    def faults(self) -> Iterator[OutOfRange]:
        if self.grows_to <= self.width:
            yield OutOfRange("grows_to", f"must be above the width, {self.width}")


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What a run asks for, spares included, and in which shape.

    With `growth` it is about the groups that the run lacks. With `freed`, a run that cannot start
    is asked about again at its minimum, as if these devices were free.
    """

    request: Request
    shape: GangShape = field(default_factory=GangShape)
    growth: RunGrowth | None = None
    freed: tuple[Name, ...] | None = None

    def faults(self) -> Iterator[OutOfRange]:
        request, growth = self.request, self.growth
        yield from self.shape.request_faults(request)
        if growth is not None and (request.step_gpus is None or self.shape.group_gpus is None):
            yield OutOfRange("growth", "is for a malleable run of groups")
        if growth is not None and growth.grows_to > GANG_GPUS_MAX:
            yield OutOfRange("growth.grows_to", f"must be at most {GANG_GPUS_MAX}")
        for i, slot in enumerate(self.freed or ()):
            if not _SLOT.fullmatch(slot):
                yield OutOfRange(f"freed[{i}]", f"must be node#ordinal, got {slot!r}")


@dataclass(frozen=True, slots=True)
class Start:
    """Who pays and which devices, at the width of `request`; or why it does not start.

    `placement` None: it is not funded. A run that does not start is shown at its full width, or
    at its minimum where `freed` was given. `groups` are the numbers of the groups that come back.
    """

    reason: StartReason
    request: Request
    plan: Plan
    remedy: Remedy | None = None
    gang: Gang | None = None
    placement: Placement | None = None
    groups: tuple[int, ...] = ()

    @property
    def starts(self) -> bool:
        return self.reason is StartReason.STARTS


def start(asked: StartRequest, book: Book, devices: FreeDevices, now_ms: int) -> Start:
    search = _Search(asked.shape, book, devices, now_ms)
    if asked.growth is not None:
        return _grow(search, asked.request, asked.growth)
    found = search.widest(asked.request)
    if found.reason is not StartReason.NO_DEVICES or asked.freed is None:
        return found
    request = replace(asked.request, gpus=asked.request.enough_gpus)
    later = replace(search, devices=devices.after(asked.freed)).at(request)
    return replace(later, reason=StartReason.STARTS_LATER) if later.starts else later


@dataclass(frozen=True, slots=True)
class _Search:
    shape: GangShape
    book: Book
    devices: FreeDevices
    now_ms: int
    remedies: bool = True
    """A remedy is only for people to read, and costs ten times the cover."""

    def at(self, request: Request) -> Start:
        if self.remedies:
            plan, remedy = cover_or_remedy(self.book, request, self.now_ms)
        else:
            plan, remedy = cover(self.book, request, self.now_ms), None
        if not plan.funded:
            return Start(StartReason.NOT_FUNDED, request, plan, remedy)
        gang = self.shape.gang(request, plan)
        placement = self.devices.place(gang)
        reason = StartReason.STARTS if placement.placed else StartReason.NO_DEVICES
        return Start(reason, request, plan, remedy, gang, placement)

    def widest(self, request: Request) -> Start:
        """The widest start; where there is none, what was found at the full width."""
        first = found = self.at(request)
        least, step = request.min_gpus, request.step_gpus or 1
        while found.reason is StartReason.NO_DEVICES and least is not None:
            # Wider than all free devices nothing is placed: of 100 000 widths on 8, 8 are tried.
            free = self.devices.gpus(request.flavor)
            width = min(found.plan.gpus - step, least + (free - least) // step * step)
            if width < least:
                break
            found = self.at(replace(request, gpus=width))
        return found if found.starts else first


def _grow(search: _Search, request: Request, growth: RunGrowth) -> Start:
    """The widest growth. Failed growth is asked about at every turn: no remedy is looked for."""
    search, shape = replace(search, remedies=False), search.shape
    for wanted in _growth_requests(shape, request, growth):
        found = search.widest(wanted)
        if found.starts:
            count = len(Gang(request.flavor, growth.grows_to, shape.group_gpus).groups())
            missing = [number for number in range(count) if number not in growth.groups]
            placed = known(found.placement, "what starts was placed").groups
            return replace(found, groups=tuple(missing[: len(placed)]))
    return found


def _growth_requests(shape: GangShape, request: Request, growth: RunGrowth) -> Iterator[Request]:
    """Everything, where its last group is a smaller one; then as many steps of groups as go."""
    lacking = growth.grows_to - growth.width
    unit = lcm(shape.group_gpus or 1, shape.without_spares(request.step_gpus or 1))
    if lacking % unit:
        gpus = shape.with_spares(lacking)
        yield replace(request, gpus=gpus, min_gpus=None, step_gpus=None)
    if lacking >= unit:
        gpus, least = shape.with_spares(lacking // unit * unit), shape.with_spares(unit)
        yield replace(request, gpus=gpus, min_gpus=least, step_gpus=least)
