"""Which open leases lose their funding, and which get it back: the caps, asked again over time.

A lease that nothing pays for is not killed; it is *unfunded*: visible, and first in line to be
cut. Caps are asked in a fixed order (envelopes by name, then aggregate caps by name; GPUs before
hours, own before lent), each seeing what the one before it demoted.

- Too many GPUs: newest first (ties by lease id) until the cap fits.
- Hours run out: the leases that hold none (no duration, or past it) are what eats them, so all of
  these are demoted, at the very moment of exhaustion. What is promised to others stays promised.
- Promises alone pass the cap (it was lowered): newest first until it fits.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from operator import attrgetter

from fairlead.core.gpu.accounts import Account, Accounts, Held
from fairlead.core.gpu.model import Budget


@dataclass(frozen=True, slots=True)
class Demotion:
    """A lease and the cap that no longer pays for it, since `at_ms`."""

    lease: str
    at_ms: int
    kind: str
    budget: str
    name: str
    hours: bool


@dataclass(frozen=True, slots=True)
class _Cap:
    """One limit over the leases of some accounts; `lent` counts only loans."""

    kind: str
    name: str
    accounts: tuple[Account, ...]
    limit: int
    hours: bool = False
    lent: bool = False


def caps_of(budget: Budget, accounts: Accounts) -> Iterator[_Cap]:
    """Every cap of a budget that has a limit, in the order in which they are asked."""
    for envelope in sorted(budget.envelopes, key=attrgetter("name")):
        account = accounts.get(budget.name, envelope.name)
        if account is None:
            continue
        own, lending = (account,), envelope.lending
        yield _Cap("envelope", envelope.name, own, envelope.gpus)
        if envelope.max_hours_ms is not None:
            yield _Cap("envelope", envelope.name, own, envelope.max_hours_ms, hours=True)
        if lending.max_gpus is not None:
            yield _Cap("lending", envelope.name, own, lending.max_gpus, lent=True)
        if lending.max_hours_ms is not None:
            yield _Cap("lending", envelope.name, own, lending.max_hours_ms, hours=True, lent=True)
    for cap in sorted(budget.aggregate_caps, key=attrgetter("name")):
        found = (accounts.get(budget.name, name) for name in sorted(set(cap.envelopes)))
        members = tuple(account for account in found if account is not None)
        if cap.max_gpus is not None:
            yield _Cap("aggregate", cap.name, members, cap.max_gpus)
        if cap.max_hours_ms is not None:
            yield _Cap("aggregate", cap.name, members, cap.max_hours_ms, hours=True)


def demotions(budget: Budget, accounts: Accounts, now_ms: int) -> list[Demotion]:
    """The leases of a budget that are funded and can be no longer.

    Asked at a time, the accounts are in that time: a period that ended before it is over.
    """
    found: dict[str, Demotion] = {}
    for cap in _caps_at(budget, accounts, now_ms):
        if not _reached(cap, now_ms):
            continue  # the sums say that nothing is over: no lease is looked at
        for lease, at_ms in _over(cap, now_ms, found):
            found[lease] = Demotion(lease, at_ms, cap.kind, budget.name, cap.name, cap.hours)
    return list(found.values())


def _caps_at(budget: Budget, accounts: Accounts, now_ms: int) -> list[_Cap]:
    caps = list(caps_of(budget, accounts))
    for cap in caps:
        for account in cap.accounts:
            account.advance(now_ms)
    return caps


def _reached(cap: _Cap, now_ms: int) -> bool:
    """GPUs may fill a cap; hours that are all used up or promised pay for nothing more."""
    if cap.hours:
        return sum(_funded_ms(account, cap, now_ms) for account in cap.accounts) >= cap.limit
    return sum(_funded_gpus(account, cap) for account in cap.accounts) > cap.limit


def _funded_gpus(account: Account, cap: _Cap) -> int:
    if cap.lent:
        return account.lent.gpus - account.lent_over.gpus
    return account.all.gpus - account.over.gpus


def _funded_ms(account: Account, cap: _Cap, now_ms: int) -> int:
    usage = account.usage(now_ms)
    used, held = usage.used_ms, usage.held_ms
    if cap.lent:
        used, held = usage.lent_used_ms, usage.lent_held_ms
    return used + held - account.overdraft_ms(now_ms, lent=cap.lent)


def _over(cap: _Cap, now_ms: int, gone: dict[str, Demotion]) -> Iterator[tuple[str, int]]:
    funded = [
        held
        for account in cap.accounts
        for held in account.leases.values()
        if held.unfunded_ms is None and (held.lease.borrowed or not cap.lent)
    ]
    staying = sorted(
        (held for held in funded if held.lease.id not in gone),
        key=lambda held: (-held.lease.start_ms, held.lease.id),
    )
    if not cap.hours:
        total = sum(held.lease.gpus for held in staying)
        for held in staying:
            if total <= cap.limit:
                return
            total -= held.lease.gpus
            yield held.lease.id, now_ms
        return
    yield from _out_of_hours(cap, now_ms, funded, staying, gone)


def _out_of_hours(
    cap: _Cap, now_ms: int, funded: list[Held], staying: list[Held], gone: dict[str, Demotion]
) -> Iterator[tuple[str, int]]:
    total = sum(_funded_ms(account, cap, now_ms) for account in cap.accounts)
    for held in funded:
        if held.lease.id in gone:
            over_ms = now_ms - max(gone[held.lease.id].at_ms, held.since_ms)
            total -= _hold_ms(held, now_ms) + held.lease.gpus * max(0, over_ms)
    bare = [held for held in staying if held.hold_end_ms is None]
    if bare and total >= cap.limit:
        stretches = {held.lease.id: _bare_stretch(cap, held, now_ms) for held in bare}
        at_ms = _moment(
            total - cap.limit,
            now_ms,
            [(held.lease.gpus, *stretches[held.lease.id]) for held in bare],
        )
        for held in bare:
            since_ms, until_ms = stretches[held.lease.id]
            since_ms = max(at_ms, since_ms)
            total -= held.lease.gpus * max(0, until_ms - since_ms)
            yield held.lease.id, min(since_ms, now_ms)
    for held in staying:
        if total <= cap.limit:
            return
        if held.hold_end_ms is not None:
            total -= _hold_ms(held, now_ms)
            yield held.lease.id, now_ms


def _bare_stretch(cap: _Cap, held: Held, now_ms: int) -> tuple[int, int]:
    """From when to when a lease used hours that were not promised to it.

    Not before the budget's last edit: what elapsed under other caps was funded by them.
    """
    account = next(account for account in cap.accounts if held.lease.id in account.leases)
    since_ms = max(held.since_ms, account.defined_ms, held.restored_ms)
    expected_ms = held.lease.expected_end_ms
    if expected_ms is not None and expected_ms <= now_ms:
        since_ms = max(since_ms, expected_ms)
    return since_ms, min(now_ms, account.period.end_ms)


def _moment(excess_ms: int, now_ms: int, bare: list[tuple[int, int, int]]) -> int:
    """The last moment at which the cap still held, going back from now.

    `bare` are (gpus, from, until); between their ends the rate is constant.
    """
    times = {time_ms for _, since_ms, until_ms in bare for time_ms in (since_ms, until_ms)}
    later_ms = now_ms
    for time_ms in sorted((time_ms for time_ms in times if time_ms < now_ms), reverse=True):
        rate = sum(gpus for gpus, since, until in bare if since <= time_ms and until >= later_ms)
        if excess_ms <= rate * (later_ms - time_ms):
            break
        excess_ms -= rate * (later_ms - time_ms)
        later_ms = time_ms
    else:
        return later_ms
    return later_ms - (-(-excess_ms // rate) if rate else 0)


def _hold_ms(held: Held, now_ms: int) -> int:
    return 0 if held.hold_end_ms is None else held.lease.gpus * (held.hold_end_ms - now_ms)


def restorations(
    budget: Budget, accounts: Accounts, now_ms: int, left: Set[str] = frozenset()
) -> list[str]:
    """Unfunded leases that every cap has room for again, oldest first; those in `left` stay as
    they are, and their room is for others.

    Room in hours is what cover sees: overdraft counts as use until its period ends, so running on
    unfunded is no way to more hours.
    """
    caps = _caps_at(budget, accounts, now_ms)
    waiting = _unfunded(caps)
    found: list[Held] = []
    for held in waiting:
        if held.lease.id not in left and all(
            _room(cap, held, found, now_ms) for cap in caps if _counts(cap, held)
        ):
            found.append(held)
    return [held.lease.id for held in found]


def _unfunded(caps: Iterable[_Cap]) -> list[Held]:
    found = {
        held.lease.id: held
        for cap in caps
        for account in cap.accounts
        if account.over.gpus
        for held in account.leases.values()
        if held.unfunded_ms is not None
    }
    return sorted(found.values(), key=lambda held: (held.lease.start_ms, held.lease.id))


def _counts(cap: _Cap, held: Held) -> bool:
    if cap.lent and not held.lease.borrowed:
        return False
    return any(held.lease.id in account.leases for account in cap.accounts)


def _room(cap: _Cap, held: Held, found: list[Held], now_ms: int) -> bool:
    earlier = [other for other in found if _counts(cap, other)]
    if not cap.hours:
        taken = sum(_funded_gpus(account, cap) for account in cap.accounts)
        taken += sum(other.lease.gpus for other in earlier)
        return taken + held.lease.gpus <= cap.limit
    taken = sum(
        _funded_ms(account, cap, now_ms) + account.overdraft_ms(now_ms, lent=cap.lent)
        for account in cap.accounts
    )
    taken += sum(_need_ms(cap, other, now_ms) for other in earlier)
    need = _need_ms(cap, held, now_ms)
    return taken + need <= cap.limit if need else taken < cap.limit


def _need_ms(cap: _Cap, held: Held, now_ms: int) -> int:
    """The hours that a lease would hold: what is left of it, cut at its period's end."""
    lease = held.lease
    if lease.expected_end_ms is None:
        return 0
    period_end_ms = next(
        account.period.end_ms for account in cap.accounts if lease.id in account.leases
    )
    return lease.gpus * max(0, min(lease.expected_end_ms, period_end_ms) - now_ms)
