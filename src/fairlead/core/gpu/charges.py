"""Charges: when the envelopes that could pay for a run will have room for it again.

Envelopes are in use as devices are. A run whose owner's family uses all of them is refused, though
every charge ends at some time. What is looked at are the caps of `cover`, each with the GPUs that
it lets through now, and the leases that count against it. Hours do not come back when a lease
ends: a cap on hours lets through later what it lets through now, and so does a limit on loans.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.gpu.cover import Gate, Route
from fairlead.core.gpu.model import Request
from fairlead.core.units import Count, Gpus, Integer, Name, OutOfRange, Time, Written


@dataclass(frozen=True, slots=True)
class Payment:
    """GPUs that a run would take of an envelope, `budget/envelope`."""

    envelope: Name
    gpus: Gpus
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class LeaseCharge:
    """GPUs that a funded lease takes of an envelope, and when it is expected to end."""

    envelope: Name
    gpus: Gpus
    start_ms: Annotated[int, Time(), Written("start")]
    end_ms: Annotated[int, Time(), Written("expected_end")] | None = None
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class HeadCap:
    """A cap, and the GPUs that it lets through now; below 0 it is exceeded."""

    room_gpus: Integer
    envelopes: tuple[Name, ...] = ()
    """Leases that these pay for count against it; none: what it lets through stays the same."""
    loans: bool = False
    """Only borrowed GPUs count."""


@dataclass(frozen=True, slots=True)
class HeadFunding:
    """GPUs that have to be paid, and who could: payers in cover order, each behind its caps."""

    gpus: Gpus
    caps: tuple[HeadCap, ...]
    payers: tuple[tuple[Count, ...], ...]
    """The caps of each payer, by place."""

    def faults(self) -> Iterator[OutOfRange]:
        for i, payer in enumerate(self.payers):
            if any(cap >= len(self.caps) for cap in payer):
                yield OutOfRange(f"payers[{i}]", f"names a cap beyond the {len(self.caps)} given")


def head_funding(route: Route, request: Request) -> HeadFunding:
    """What a run needs at its least width, of all envelopes that could pay for it."""
    members = {
        (budget.name, cap.name): cap.envelopes
        for budget in {
            candidate.budget.name: candidate.budget for candidate in route.candidates
        }.values()
        for cap in budget.aggregate_caps
    }
    return HeadFunding(
        request.enough_gpus,
        tuple(_cap(gate, members) for gate in route.gates),
        tuple(candidate.gates for candidate in route.candidates),
    )


def _cap(gate: Gate, members: Mapping[tuple[str, str], Iterable[str]]) -> HeadCap:
    cap = gate.cap
    if cap.hours or cap.budget is None or cap.limit is None:
        return HeadCap(gate.gpus)
    names = members[cap.budget, cap.name] if cap.kind == "aggregate" else (cap.name,)
    envelopes = tuple(envelope_key(cap.budget, name) for name in sorted(names))
    return HeadCap(cap.limit - cap.used, envelopes, cap.kind == "lending")


def envelope_key(budget: str, envelope: str) -> str:
    return f"{budget}/{envelope}"


_Account = tuple[str, bool]
"""An envelope, and whether its GPUs are borrowed."""


class ChargeOutlook:
    """What funded leases take of envelopes, now and later."""

    def __init__(
        self, charges: Iterable[LeaseCharge], end_ms: Callable[[LeaseCharge], int]
    ) -> None:
        self._ends: list[tuple[int, _Account, int]] = sorted(
            (end_ms(charge), (charge.envelope, charge.borrowed), charge.gpus) for charge in charges
        )
        self._all: Counter[_Account] = Counter()
        for _, account, gpus in self._ends:
            self._all[account] += gpus

    def could_pay(self, funding: HeadFunding) -> bool:
        """Whether a head is paid when all leases have ended."""
        rooms = _Rooms(funding)
        for account, gpus in self._all.items():
            rooms.add(account, gpus)
        return rooms.pay()

    def start_ms(self, funding: HeadFunding, from_ms: int) -> int | None:
        """The first time, not before `from_ms`, at which a head is paid if nothing else starts.

        One after the other: where caps overlap, more room in one of them can leave less to others.
        """
        rooms, last, ends = _Rooms(funding), len(self._ends) - 1, self._ends
        if (not ends or ends[0][0] > from_ms) and rooms.pay():
            return from_ms
        for i, (end_ms, account, gpus) in enumerate(ends):
            rooms.add(account, gpus)
            next_ms = None if i == last else ends[i + 1][0]
            if next_ms == end_ms or (next_ms is not None and next_ms <= from_ms):
                continue
            if rooms.pay():
                return max(end_ms, from_ms)
        return None

    def pay(self, funding: HeadFunding, time_ms: int, without: Iterable[Payment]) -> bool:
        """Whether a head is paid at a time, of what other runs of then leave."""
        rooms = _Rooms(funding)
        for end_ms, account, gpus in self._ends:
            if end_ms > time_ms:
                break
            rooms.add(account, gpus)
        for payment in without:
            rooms.add((payment.envelope, payment.borrowed), -payment.gpus)
        return rooms.pay()


class _Rooms:
    """What the caps of a head let through, counted as charges come and go."""

    def __init__(self, funding: HeadFunding) -> None:
        self._funding = funding
        self._left = [cap.room_gpus for cap in funding.caps]
        self._counting: dict[_Account, list[int]] = {}
        for i, cap in enumerate(funding.caps):
            for envelope in cap.envelopes:
                self._counting.setdefault((envelope, True), []).append(i)
                if not cap.loans:
                    self._counting.setdefault((envelope, False), []).append(i)
        self._refused = False

    def add(self, account: _Account, gpus: int) -> None:
        caps = self._counting.get(account)
        if caps is not None:
            self._refused = False
            for cap in caps:
                self._left[cap] += gpus

    def pay(self) -> bool:
        """Whether a walk as that of `cover` grants all that the head needs."""
        if self._refused:
            return False
        left, wanted = list(self._left), self._funding.gpus
        for caps in self._funding.payers:
            gpus = max(0, min([wanted, *[left[cap] for cap in caps]]))
            for cap in caps:
                left[cap] -= gpus
            wanted -= gpus
            if not wanted:
                return True
        self._refused = True
        return False
