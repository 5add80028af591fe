"""Refund: which leases of a budget lose their funding, or have it again, from plain values alone.

`funding.py` decides on accounts, which a control plane keeps as running totals. Here the accounts
are made from what is recorded of them: their open leases and what is posted in their period.

A lease that began as overdraft is not funded while a run of its owner waits that comes before its
own, by priority and then by age: room that comes free pays first for what has waited for it.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.gpu.accounts import Account, Accounts, Held
from fairlead.core.gpu.funding import Demotion, demotions, restorations
from fairlead.core.gpu.model import Budget, Lease
from fairlead.core.gpu.usage import calendar
from fairlead.core.units import Count, Gpus, Integer, Name, OutOfRange, Time, Written, repeats


@dataclass(frozen=True, slots=True)
class OwnerPlace:
    """Where a run stands among those of its owner."""

    submitted: Count
    """The number of its submission: smaller is earlier."""
    priority: Integer = 0

    @property
    def key(self) -> tuple[int, int]:
        return -self.priority, self.submitted


@dataclass(frozen=True, slots=True)
class OwnerClaim:
    """A run of the budget's owner that waits, and that envelopes could pay for if no run used
    them. The first of each flavor says it all."""

    run: Name
    flavor: Name
    place: OwnerPlace


@dataclass(frozen=True, slots=True)
class OpenLease:
    """A lease that an envelope pays for, or would; `unfunded` null: it is funded."""

    id: Name
    owner: Name
    gpus: Gpus
    start_ms: Annotated[int, Time(), Written("start")]
    expected_end_ms: Annotated[int, Time(), Written("expected_end")] | None
    borrowed: bool
    held_until_ms: Annotated[int, Time(), Written("held_until")] | None
    """Up to when hours of this period are promised to it."""
    unfunded_ms: Annotated[int, Time(), Written("unfunded")] | None
    restored_ms: Annotated[int, Time(), Written("restored")]
    """Since when it has been funded without a break; its start, where it always was."""
    recalled: bool = False
    """The owner of the envelope recalled it for a run that still waits: it is not restored."""
    overdraft: OwnerPlace | None = None
    """It began without funding, and its run stands here; None: a cap stopped paying for it."""


@dataclass(frozen=True, slots=True)
class OpenAccount:
    """An envelope's open leases, and the GPU-milliseconds of its period that are charged."""

    envelope: Name
    period_ms: Annotated[int, Time(), Written("period")]
    """A time in the period that the account is in."""
    edited_ms: Annotated[int, Time(), Written("edited")]
    posted_ms: Count
    lent_ms: Count
    overdraft_ms: Count
    lent_overdraft_ms: Count
    leases: tuple[OpenLease, ...]


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """A budget and its accounts at a time."""

    at_ms: Annotated[int, Time(), Written("at")]
    budget: Budget
    accounts: tuple[OpenAccount, ...]
    claims: tuple[OwnerClaim, ...] = ()

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("accounts", "envelope", [account.envelope for account in self.accounts])
        envelopes = {envelope.name for envelope in self.budget.envelopes}
        seen: set[str] = set()
        for i, account in enumerate(self.accounts):
            if account.envelope not in envelopes:
                text = f"is no envelope of the budget: {account.envelope!r}"
                yield OutOfRange(f"accounts[{i}].envelope", text)
            for j, lease in enumerate(account.leases):
                if lease.id in seen:
                    yield OutOfRange(f"accounts[{i}].leases[{j}].id", "is given twice")
                seen.add(lease.id)


@dataclass(frozen=True, slots=True)
class Refund:
    """Leases that are unfunded from now on, or funded again; both, never in one decision.

    A lease that was just demoted would else be restored at once.
    """

    unfunded: tuple[Demotion, ...] = ()
    funded: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unfunded or self.funded)


def refund(asked: RefundRequest) -> Refund:
    accounts, envelopes = Accounts(), {own.name: own for own in asked.budget.envelopes}
    for state in asked.accounts:
        account = Account(envelopes[state.envelope], state.period_ms)
        account.defined_ms = state.edited_ms
        for lease in state.leases:
            account.adopt(_held(asked.budget.name, state.envelope, lease))
        posted = (state.posted_ms, state.lent_ms, state.overdraft_ms, state.lent_overdraft_ms)
        for meter, posted_ms in zip(account.meters, posted, strict=True):
            meter.posted_ms = posted_ms
        accounts.put((asked.budget.name, state.envelope), account)
    left = {
        lease.id
        for state in asked.accounts
        for lease in state.leases
        if lease.recalled or _is_behind(lease, envelopes[state.envelope].flavor, asked.claims)
    }
    return refund_of(asked.budget, accounts, asked.at_ms, left)


def _is_behind(lease: OpenLease, flavor: str, claims: tuple[OwnerClaim, ...]) -> bool:
    place = lease.overdraft
    if place is None:
        return False
    return any(claim.flavor == flavor and claim.place.key < place.key for claim in claims)


def refund_of(
    budget: Budget, accounts: Accounts, at_ms: int, left: Set[str] = frozenset()
) -> Refund:
    """The same on the running totals: whether there is anything to record. `left`: leases that
    are not restored."""
    lost = demotions(budget, accounts, at_ms)
    if lost:
        return Refund(unfunded=tuple(lost))
    return Refund(funded=tuple(restorations(budget, accounts, at_ms, left)))


def refund_request(
    budget: Budget,
    accounts: Accounts,
    at_ms: int,
    recalled: Set[str] = frozenset(),
    *,
    overdrafts: Mapping[str, OwnerPlace] | None = None,
    claims: tuple[OwnerClaim, ...] = (),
) -> RefundRequest:
    """What is recorded of the accounts of a budget. `overdrafts`: leases that began as such, and
    where their runs stand."""
    found = []
    for envelope in sorted(budget.envelopes, key=lambda envelope: envelope.name):
        account = accounts.get(budget.name, envelope.name)
        if account is not None:
            found.append(_open_account(account, at_ms, recalled, overdrafts or {}))
    return RefundRequest(at_ms, budget, tuple(found), claims)


def _open_account(
    account: Account, at_ms: int, recalled: Set[str], overdrafts: Mapping[str, OwnerPlace]
) -> OpenAccount:
    account.advance(at_ms)
    held = sorted(account.leases.values(), key=lambda held: held.lease.id)
    recurrence, period_ms = account.envelope.recurrence, at_ms
    if recurrence is not None and calendar(recurrence, at_ms).end_ms != account.until_ms:
        period_ms = account.until_ms - 1  # rolled over before an earlier end became known
    used, lent, over, lent_over = (meter.posted_ms for meter in account.meters)
    leases = tuple(
        OpenLease(
            own.lease.id,
            own.lease.owner,
            own.lease.gpus,
            own.lease.start_ms,
            own.lease.expected_end_ms,
            own.lease.borrowed,
            own.hold_end_ms,
            own.unfunded_ms,
            own.restored_ms,
            own.lease.id in recalled,
            overdrafts.get(own.lease.id),
        )
        for own in held
    )
    posted = (used, lent, over, lent_over)
    return OpenAccount(account.envelope.name, period_ms, account.defined_ms, *posted, leases)


def _held(budget: str, envelope: str, lease: OpenLease) -> Held:
    made = Lease(
        lease.id,
        lease.owner,
        budget,
        envelope,
        lease.gpus,
        lease.start_ms,
        expected_end_ms=lease.expected_end_ms,
        borrowed=lease.borrowed,
    )
    spells = [(lease.restored_ms, lease.restored_ms)] if lease.restored_ms > lease.start_ms else []
    return Held(made, lease.start_ms, lease.held_until_ms, lease.unfunded_ms, spells)
