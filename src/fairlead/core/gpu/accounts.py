"""Running totals per envelope: what `tally` would say of all leases, without walking them.

Accrual is linear between events: Σ gpus × (t − start) = (Σ gpus) × t − Σ (gpus × start), so two
sums answer for any number of open leases. Holds likewise. A period's end rolls an account over
once, which costs its open leases and nothing of its history. Who only looks at one with open leases
rolls nothing over: what ran out in the old period has to be settled first.

    hold     a lease starts: gpus × what is left of its duration is promised, cut at period ends
    post     it closes: what it used is charged for good, day by day
    void     what was promised and not used is promised no longer

Overdraft: from the moment a lease is unfunded its hours are counted a second time in a separate
meter, so that spent = used − overdraft never passes what was granted.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from fairlead.core.gpu.model import Budget, Envelope, Lease, Window
from fairlead.core.gpu.usage import DAY_MS, FOREVER, Charge, Key, Usage, calendar, period_at, settle
from fairlead.core.invariant import require


@dataclass(slots=True)
class Meter:
    """GPUs and GPU-milliseconds of one kind of use in one period."""

    gpus: int = 0
    starts_ms: int = 0
    """Σ gpus × start; accrual at t is gpus × t − starts."""
    posted_ms: int = 0
    holding_gpus: int = 0
    ends_ms: int = 0
    """Σ gpus × end of the hold; held at t is ends − holding × t."""

    def used_ms(self, at_ms: int) -> int:
        """Posted and accrued."""
        return self.posted_ms + self.gpus * at_ms - self.starts_ms

    def held_ms(self, now_ms: int) -> int:
        """Promised beyond now."""
        return self.ends_ms - self.holding_gpus * now_ms


@dataclass(slots=True)
class Held:
    """An open lease in the books. Times are cut to the account's current period."""

    lease: Lease
    since_ms: int
    hold_end_ms: int | None = None
    unfunded_ms: int | None = None
    """Since when its hours go to the overdraft, uncut; None: funded."""
    spells: list[tuple[int, int]] = field(default_factory=list)
    """Closed stretches of overdraft, uncut."""

    def restate(self, shift_ms: int) -> None:
        lease, end_ms = self.lease, self.lease.expected_end_ms
        expected_ms = None if end_ms is None else end_ms + shift_ms
        self.lease = replace(lease, start_ms=lease.start_ms + shift_ms, expected_end_ms=expected_ms)
        if self.unfunded_ms is not None:
            self.unfunded_ms += shift_ms
        self.spells = [(start_ms + shift_ms, to_ms + shift_ms) for start_ms, to_ms in self.spells]

    @property
    def restored_ms(self) -> int:
        """Since when it has been funded without a break, where it ever was not."""
        return self.spells[-1][1] if self.spells else self.lease.start_ms


@dataclass(frozen=True, slots=True)
class Statement:
    """The funded account of a period: free + held + spent = granted. `granted` None: no cap."""

    granted_ms: int | None
    spent_ms: int
    held_ms: int
    free_ms: int | None
    overdraft_ms: int


@dataclass(frozen=True, slots=True)
class AccountState:
    """An account as plain values, for a checkpoint. They are the account's own: to be looked at."""

    envelope: Envelope
    defined_ms: int
    period: Window
    until_ms: int
    meters: tuple[Meter, Meter, Meter, Meter]
    days: dict[int, list[int]]
    leases: list[Held]


class Account:
    """One envelope's totals in its current period."""

    def __init__(self, envelope: Envelope, now_ms: int) -> None:
        self.envelope = envelope
        self.defined_ms = now_ms
        """When the budget was last edited."""
        self.leases: dict[str, Held] = {}
        self.days: dict[int, list[int]] = {}
        """Posted per UTC day: used, lent, overdraft, lent overdraft."""
        self.all, self.lent, self.over, self.lent_over = Meter(), Meter(), Meter(), Meter()
        self._ends: list[tuple[int, str]] = []
        self.period = FOREVER
        self.until_ms = now_ms
        """When the account rolls over next."""
        self._enter(now_ms)

    @property
    def meters(self) -> tuple[Meter, Meter, Meter, Meter]:
        return (self.all, self.lent, self.over, self.lent_over)

    def state(self) -> AccountState:
        leases, meters = list(self.leases.values()), self.meters
        return AccountState(
            self.envelope, self.defined_ms, self.period, self.until_ms, meters, self.days, leases
        )

    @classmethod
    def of_state(cls, state: AccountState) -> "Account":
        account = cls(state.envelope, state.defined_ms)
        account.period, account.until_ms = state.period, state.until_ms
        account.all, account.lent, account.over, account.lent_over = state.meters
        account.days = state.days
        account.leases = {held.lease.id: held for held in state.leases}
        for held in state.leases:
            if held.hold_end_ms is not None:
                heappush(account._ends, (held.hold_end_ms, held.lease.id))
        return account

    def usage(self, now_ms: int) -> Usage:
        """What `tally` says, with holds cut at the period's end."""
        if now_ms >= self.until_ms and self.leases:
            return self._ahead(now_ms).usage(now_ms)
        if now_ms >= self.until_ms or (self._ends and self._ends[0][0] <= now_ms):
            self.advance(now_ms)
        at_ms, own, lent = _cut(now_ms, self.period), self.all, self.lent
        return Usage(
            own.gpus,
            own.used_ms(at_ms),
            own.held_ms(now_ms),
            lent.gpus,
            lent.used_ms(at_ms),
            lent.held_ms(now_ms),
        )

    def paid_usage(self, now_ms: int) -> Usage:
        """The same without the GPUs of unfunded leases: these leave room for leases that are paid.
        Hours of overdraft count: running on unfunded is no way to more hours."""
        used = self.usage(now_ms)
        if not self.over.gpus:
            return used
        lent = used.lent_gpus - self.lent_over.gpus
        return used._replace(gpus=used.gpus - self.over.gpus, lent_gpus=lent)

    def overdraft_ms(self, now_ms: int, *, lent: bool = False) -> int:
        """Hours of the period that were used without funding."""
        if now_ms >= self.until_ms and self.leases:
            return self._ahead(now_ms).overdraft_ms(now_ms, lent=lent)
        self.advance(now_ms)
        return (self.lent_over if lent else self.over).used_ms(_cut(now_ms, self.period))

    def statement(self, now_ms: int) -> Statement:
        usage, over_ms = self.usage(now_ms), self.overdraft_ms(now_ms)
        granted, spent = self.envelope.max_hours_ms, usage.used_ms - over_ms
        if granted is None:
            return Statement(None, spent, usage.held_ms, None, over_ms)
        # A cap lowered below what elapsed cannot take it back: the excess shows as overdraft.
        spent = min(spent, granted)
        held = min(usage.held_ms, granted - spent)
        return Statement(granted, spent, held, granted - spent - held, usage.used_ms - spent)

    def _ahead(self, now_ms: int) -> "Account":
        """The account as it will be, for a look; this one stays in its period."""
        ahead = Account.of_state(deepcopy(self.state()))
        ahead.advance(now_ms)
        return ahead

    def advance(self, now_ms: int) -> None:
        """Roll over at a period's end; let holds end that now has passed."""
        if now_ms >= self.until_ms:
            self._enter(now_ms)
        while self._ends and self._ends[0][0] <= now_ms:
            end_ms, name = heappop(self._ends)
            held = self.leases.get(name)
            if held is not None and held.hold_end_ms == end_ms:
                self._void(held)

    def hold(self, lease: Lease) -> None:
        """A lease starts; hours for the rest of its duration are promised."""
        require(lease.id not in self.leases, "a lease starts once")
        self.advance(lease.start_ms)
        held = Held(lease, _cut(lease.start_ms, self.period))
        self.leases[lease.id] = held
        self._open(lease, held.since_ms)
        self._promise(held, lease.start_ms)

    def adopt(self, held: Held) -> None:
        """An open lease as it is in the books, counted in this period."""
        lease, end_ms = held.lease, held.hold_end_ms
        held.since_ms = _cut(lease.start_ms, self.period)
        self.leases[lease.id] = held
        self._open(lease, held.since_ms)
        if held.unfunded_ms is not None:
            self._open(lease, _cut(held.unfunded_ms, self.period), over=True)
        if end_ms is not None:
            self._hold_until(held, end_ms)

    def post(self, lease_id: str, end_ms: int) -> Charge:
        """A lease closes; its use is charged and the rest of its hold void."""
        self.advance(end_ms)
        held = self.leases.pop(lease_id)
        lease = held.lease
        require(end_ms >= lease.start_ms, "a lease ends after its start")
        funded = held.unfunded_ms is None
        self._end_spell(held, end_ms)
        self._void(held)
        self._close(lease, held.since_ms, end_ms)
        charge = settle(lease, end_ms, held.spells, funded=funded)
        for part in charge.parts:
            sums = self.days.setdefault(part.day, [0, 0, 0, 0])
            lent = int(lease.borrowed)
            for place, amount in enumerate((part.used_ms, part.overdraft_ms)):
                sums[2 * place] += amount
                sums[2 * place + 1] += lent * amount
        return charge

    def quote(self, lease_id: str, end_ms: int) -> Charge:
        held = self.leases[lease_id]
        spells = list(held.spells)
        if held.unfunded_ms is not None:
            spells.append((held.unfunded_ms, end_ms))
        return settle(held.lease, end_ms, spells, funded=held.unfunded_ms is None)

    def demote(self, lease_id: str, at_ms: int) -> int:
        """A lease becomes unfunded; returns the hold that is void with it."""
        held = self.leases[lease_id]
        require(held.unfunded_ms is None, "a lease is demoted once")
        lease, end_ms = held.lease, held.lease.expected_end_ms
        self._void(held)
        held.unfunded_ms = max(at_ms, lease.start_ms)
        self._open(lease, _cut(held.unfunded_ms, self.period), over=True)
        return 0 if end_ms is None else lease.gpus * max(0, end_ms - held.unfunded_ms)

    def restore(self, lease_id: str, at_ms: int) -> None:
        """An unfunded lease is funded again, for what is left of it."""
        self.advance(at_ms)
        held = self.leases[lease_id]
        require(held.unfunded_ms is not None, "only an unfunded lease is restored")
        self._end_spell(held, at_ms)
        self._promise(held, at_ms)

    def _end_spell(self, held: Held, at_ms: int) -> None:
        if held.unfunded_ms is None:
            return
        from_ms = held.unfunded_ms
        self._close(held.lease, _cut(from_ms, self.period), at_ms, over=True)
        held.spells.append((from_ms, max(at_ms, from_ms)))
        held.unfunded_ms = None

    def redefine(self, envelope: Envelope, now_ms: int) -> None:
        """Other caps, another window: what elapsed stays charged.

        Charges of the days that the new period touches count in full: an edit of a window never
        gives hours of a started day back.
        """
        self.advance(now_ms)
        same = (envelope.window, envelope.recurrence) == (
            self.envelope.window,
            self.envelope.recurrence,
        )
        self.envelope, self.defined_ms = envelope, now_ms
        if not same:
            self._enter_with_charges(now_ms)

    def restate(self, shift_ms: int, now_ms: int) -> None:
        """Time was set forward: open leases began, and end, so much later; none is charged for it.
        Charges of the days that the new period touches count in full, as after an edit."""
        for held in self.leases.values():
            held.restate(shift_ms)
        self._enter_with_charges(now_ms)

    def _enter_with_charges(self, now_ms: int) -> None:
        self._enter(now_ms)
        period = self.period
        for day, sums in self.days.items():
            if (day + 1) * DAY_MS > period.start_ms and day * DAY_MS < period.end_ms:
                for meter, amount in zip(self.meters, sums, strict=True):
                    meter.posted_ms += amount

    def _enter(self, now_ms: int) -> None:
        """Begin the period around now; only open leases carry over."""
        envelope = self.envelope
        period = period_at(envelope, now_ms)
        # A calendar period outside the window is empty, not negative.
        self.period = Window(min(period.start_ms, period.end_ms), period.end_ms)
        self.until_ms = FOREVER.end_ms
        if envelope.recurrence is not None:
            self.until_ms = calendar(envelope.recurrence, now_ms).end_ms
        self.all, self.lent, self.over, self.lent_over = Meter(), Meter(), Meter(), Meter()
        self._ends.clear()
        for held in self.leases.values():
            self._carry(held, now_ms)

    def _carry(self, held: Held, now_ms: int) -> None:
        lease = held.lease
        held.since_ms, held.hold_end_ms = _cut(lease.start_ms, self.period), None
        self._open(lease, held.since_ms)
        for from_ms, to_ms in held.spells:
            inside = _cut(to_ms, self.period) - _cut(from_ms, self.period)
            for meter in self._meters(lease, over=True):
                meter.posted_ms += lease.gpus * inside
        if held.unfunded_ms is None:
            self._promise(held, now_ms)
        else:
            self._open(lease, _cut(held.unfunded_ms, self.period), over=True)

    def _open(self, lease: Lease, since_ms: int, *, over: bool = False) -> None:
        """Its GPUs count from `since_ms`."""
        for meter in self._meters(lease, over=over):
            meter.gpus += lease.gpus
            meter.starts_ms += lease.gpus * since_ms

    def _close(self, lease: Lease, since_ms: int, end_ms: int, *, over: bool = False) -> None:
        """They count no more; what they used in the period is posted."""
        for meter in self._meters(lease, over=over):
            meter.gpus -= lease.gpus
            meter.starts_ms -= lease.gpus * since_ms
            meter.posted_ms += lease.gpus * max(0, _cut(end_ms, self.period) - since_ms)

    def _promise(self, held: Held, now_ms: int) -> None:
        lease = held.lease
        if lease.expected_end_ms is None:
            return
        end_ms = min(lease.expected_end_ms, self.period.end_ms)
        if end_ms > now_ms:
            self._hold_until(held, end_ms)

    def _hold_until(self, held: Held, end_ms: int) -> None:
        held.hold_end_ms = end_ms
        heappush(self._ends, (end_ms, held.lease.id))
        for meter in self._meters(held.lease):
            meter.holding_gpus += held.lease.gpus
            meter.ends_ms += held.lease.gpus * end_ms

    def _void(self, held: Held) -> None:
        end_ms = held.hold_end_ms
        if end_ms is None:
            return
        held.hold_end_ms = None
        for meter in self._meters(held.lease):
            meter.holding_gpus -= held.lease.gpus
            meter.ends_ms -= held.lease.gpus * end_ms

    def _meters(self, lease: Lease, *, over: bool = False) -> Iterator[Meter]:
        yield self.over if over else self.all
        if lease.borrowed:
            yield self.lent_over if over else self.lent


def _cut(time_ms: int, period: Window) -> int:
    return min(max(time_ms, period.start_ms), period.end_ms)


class Accounts:
    """All envelopes' accounts, and which of them each open lease is in."""

    def __init__(self) -> None:
        self._accounts: dict[Key, Account] = {}
        self._payer: dict[str, Key] = {}

    def define(self, budget: Budget, now_ms: int) -> None:
        """A budget is new or edited. Accounts of envelopes that it lost keep their charges."""
        for envelope in budget.envelopes:
            key = (budget.name, envelope.name)
            account = self._accounts.get(key)
            if account is None:
                self._accounts[key] = Account(envelope, now_ms)
            else:
                account.redefine(envelope, now_ms)

    def hold(self, lease: Lease) -> None:
        key = (lease.budget, lease.envelope)
        self._accounts[key].hold(lease)
        self._payer[lease.id] = key

    def post(self, lease_id: str, end_ms: int) -> Charge:
        """A lease closes. It settles once: a second time is a bug."""
        require(lease_id in self._payer, "a lease settles once")
        return self._accounts[self._payer.pop(lease_id)].post(lease_id, end_ms)

    def of_lease(self, lease_id: str) -> Account:
        return self._accounts[self._payer[lease_id]]

    def put(self, key: Key, account: Account) -> None:
        self._accounts[key] = account
        self._payer.update((lease, key) for lease in account.leases)

    def states(self) -> list[tuple[Key, AccountState]]:
        return [(key, account.state()) for key, account in sorted(self._accounts.items())]

    @classmethod
    def of_states(cls, states: Iterable[tuple[Key, AccountState]]) -> "Accounts":
        accounts = cls()
        for key, state in states:
            accounts.put(key, Account.of_state(state))
        return accounts

    def get(self, budget: str, envelope: str) -> Account | None:
        return self._accounts.get((budget, envelope))

    def has_leases(self, budget: Budget) -> bool:
        keys = ((budget.name, envelope.name) for envelope in budget.envelopes)
        return any(self._accounts[key].leases for key in keys)

    def paid_usage(self, key: Key, now_ms: int) -> Usage:
        """What funded leases use of one envelope; of an unknown one it is nothing."""
        account = self._accounts.get(key)
        return Usage() if account is None else account.paid_usage(now_ms)

    def rolls_over(self, now_ms: int) -> int | None:
        """The first end of a period, up to now, that an account with open leases has not seen."""
        ends = (account.until_ms for account in self._accounts.values() if account.leases)
        return min((end_ms for end_ms in ends if end_ms <= now_ms), default=None)

    def advance(self, now_ms: int) -> None:
        for account in self._accounts.values():
            account.advance(now_ms)

    def restate(self, shift_ms: int, now_ms: int) -> None:
        for account in self._accounts.values():
            account.restate(shift_ms, now_ms)

    def at(self, now_ms: int, *, paid: bool = False) -> Mapping[Key, Usage]:
        """Every envelope's usage at one moment, worked out when first looked at; `paid`: that of
        funded leases.

        For one decision: what is held or posted afterwards may not show.
        """
        return _Moment(self._accounts, now_ms, paid=paid)


class _Moment(Mapping[Key, Usage]):
    """Each envelope is worked out once: caps over several ask for the same ones again."""

    def __init__(self, accounts: Mapping[Key, Account], now_ms: int, *, paid: bool) -> None:
        self._accounts, self._now_ms, self._paid = accounts, now_ms, paid
        self._known: dict[Key, Usage] = {}

    def __getitem__(self, key: Key) -> Usage:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._of(self._accounts[key])
        return known

    def _of(self, account: Account) -> Usage:
        return account.paid_usage(self._now_ms) if self._paid else account.usage(self._now_ms)

    # `Mapping.get` would go through an exception for every unknown key.
    def get(self, key: Key, default: Any = None) -> Any:
        known = self._known.get(key)
        if known is None:
            account = self._accounts.get(key)
            if account is None:
                return default
            known = self._known[key] = self._of(account)
        return known

    def __iter__(self) -> Iterator[Key]:
        return iter(self._accounts)

    def __len__(self) -> int:
        return len(self._accounts)
