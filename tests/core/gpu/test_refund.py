"""Refund as a function of recorded accounts: what it refuses, and an account that is ahead."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.gpu import Recurrence, refund, refund_of, refund_request
from fairlead.core.gpu.accounts import Accounts
from fairlead.core.gpu.model import Envelope
from fairlead.core.gpu.refund import (
    OpenAccount,
    OpenLease,
    OwnerClaim,
    OwnerPlace,
    Refund,
    RefundRequest,
)
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from tests.core.gpu.build import NOW, envelope
from tests.core.gpu.build import budget as budget_of
from tests.core.gpu.test_funding import HOUR_MS, at, budget, lease, world

LEASE: dict[str, Any] = {
    "id": "l",
    "owner": "t",
    "gpus": 4,
    "start": NOW,
    "expected_end": None,
    "borrowed": False,
    "held_until": None,
    "unfunded": None,
    "restored": NOW,
}


def document(*accounts: dict[str, Any]) -> bytes:
    rows = [
        {
            "envelope": "e",
            "period": NOW,
            "edited": NOW,
            "posted_ms": 0,
            "lent_ms": 0,
            "overdraft_ms": 0,
            "lent_overdraft_ms": 0,
            "leases": [LEASE],
            **account,
        }
        for account in accounts
    ]
    return json.dumps(
        {"at": NOW, "budget": budget_of("t", envelope("e", 3)), "accounts": rows}
    ).encode()


def test_a_lease_above_its_cap_is_unfunded() -> None:
    found = KINDS["gpu.refund"].run(document({})).result
    assert [row["lease"] for row in found["unfunded"]] == ["l"]
    assert found["funded"] == []
    assert KINDS["gpu.refund"].run(document()).result == {"unfunded": [], "funded": []}


def test_an_account_that_was_rolled_over_is_recorded_in_its_later_period() -> None:
    """An end of yesterday becomes known today: the totals are today's, and so is the decision."""
    daily = Envelope("x", "H100", 8, max_hours_ms=4 * HOUR_MS, recurrence=Recurrence.DAILY)
    found = budget(daily)
    accounts: Accounts = world(found, lease("a", 1))
    accounts.advance(at(25))
    asked = refund_request(found, accounts, at(23))
    assert asked.accounts[0].period_ms == at(48) - 1
    assert refund(asked) == refund_of(found, accounts, at(23))


def test_an_envelope_that_was_never_defined_has_no_account() -> None:
    found = budget(Envelope("x", "H100", 8), Envelope("y", "H100", 8))
    assert refund_request(found, Accounts(), at(0)).accounts == ()


def test_overdraft_is_not_funded_before_a_run_that_stands_before_its_own() -> None:
    """Of the same flavor, by the owner's priority and then by age."""
    unfunded = {**LEASE, "gpus": 2, "unfunded": NOW, "overdraft": {"submitted": 7, "priority": 1}}
    for claim, funded in (
        (("H100", 3, 1), []),
        (("H100", 9, 2), []),
        (("H100", 3, 0), ["l"]),
        (("H100", 9, 1), ["l"]),
        (("H100", 7, 1), ["l"]),
        (("L4", 3, 9), ["l"]),
    ):
        flavor, submitted, priority = claim
        place = {"submitted": submitted, "priority": priority}
        asked = json.loads(document({"leases": [unfunded]}))
        asked["claims"] = [{"run": "w", "flavor": flavor, "place": place}]
        found = KINDS["gpu.refund"].run(json.dumps(asked).encode()).result
        assert found["funded"] == funded, claim
        asked["accounts"][0]["leases"][0]["overdraft"] = None
        found = KINDS["gpu.refund"].run(json.dumps(asked).encode()).result
        assert found["funded"] == ["l"], "a cap stopped paying for it, and pays again"


def test_bad_input_is_refused_with_its_path() -> None:
    for accounts, message in (
        (({}, {}), "accounts[1].envelope: repeats another account's envelope, 'e'"),
        (({"envelope": "f"},), "accounts[0].envelope: is no envelope of the budget: 'f'"),
        (({"leases": [LEASE, LEASE]},), "accounts[0].leases[1].id: is given twice"),
    ):
        with pytest.raises(BadInput) as refused:
            KINDS["gpu.refund"].run(document(*accounts))
        assert str(refused.value) == message


def test_what_is_recorded_of_an_account_decides_the_same() -> None:
    """Every lease by name, with what it is owed, and where its run stands."""
    found = budget(Envelope("x", "H100", 8, max_hours_ms=99 * HOUR_MS))
    accounts = world(found, lease("b", 2, lasts=4), lease("a", 1), lease("c", 1, borrowed=True))
    for name in ("a", "c"):
        accounts.of_lease(name).demote(name, at(1))
    accounts.of_lease("c").restore("c", at(2))
    place = OwnerPlace(submitted=7, priority=1)
    claims = (OwnerClaim("w", "H100", place),)
    asked = refund_request(found, accounts, at(3), {"a"}, overdrafts={"a": place}, claims=claims)
    leases = (
        OpenLease("a", "a", 1, at(0), None, False, None, at(1), at(0), True, place),
        OpenLease("b", "a", 2, at(0), at(4), False, at(4), None, at(0)),
        OpenLease("c", "a", 1, at(0), None, True, None, None, at(2)),
    )
    account = OpenAccount("x", at(3), at(0), 0, 0, HOUR_MS, HOUR_MS, leases)
    assert asked == RefundRequest(at(3), found, (account,), claims)
    assert not refund(asked)
    assert refund(replace(asked, claims=())) == Refund(), "it was recalled"
    assert bool(Refund(funded=("a",)))


def test_a_record_says_since_when_a_lease_is_funded_again() -> None:
    """It loses nothing of before; nor does its account leave its period."""
    daily = budget(Envelope("x", "H100", 8, max_hours_ms=10 * HOUR_MS, recurrence=Recurrence.DAILY))
    accounts = world(daily, lease("bare", 1))
    accounts.of_lease("bare").demote("bare", at(1))
    accounts.of_lease("bare").restore("bare", at(4))
    accounts.hold(lease("big", 1, 4, lasts=20))
    asked = refund_request(daily, accounts, at(5))
    assert asked.accounts[0].period_ms == at(5)
    found = refund(asked)
    assert [(row.lease, row.at_ms) for row in found.unfunded] == [("bare", at(4)), ("big", at(5))]
    assert found == refund_of(daily, accounts, at(5))
