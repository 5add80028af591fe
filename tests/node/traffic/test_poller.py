"""The thread that asks others: one bad answer is not the last one."""

import threading

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.node.traffic.poller import Poller
from fairlead.node.traffic.probes import DnsService, DnsServices


def test_asking_goes_on_after_an_answer_that_nobody_expected() -> None:
    """Else an exporter's odd number would blind the agent for good."""
    asked, often = 0, threading.Event()

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked >= 3:
            often.set()
        raise OverflowError("too large")

    poller = Poller()
    poller.repeat(10, ask, phase="odd")
    assert often.wait(30)
    poller.close()


@pytest.mark.parametrize("again", [True, False])
def test_a_broken_invariant_is_raised_where_the_poller_is_checked(again: bool) -> None:
    """No loop swallows a bug of ours: the request ends, and the agent's thread hears of it."""

    async def ask() -> None:
        raise InvariantBroken("a promise of ours")

    poller = Poller()
    poller.check()
    future = poller.repeat(10, ask, phase="bug") if again else poller.once(ask)
    with pytest.raises(InvariantBroken):
        future.result(30)
    with pytest.raises(InvariantBroken, match="a promise of ours"):
        poller.check()
    poller.close()


def test_names_that_cannot_be_used_are_put_back() -> None:
    """With the addresses that were known, without asking again."""
    poller = Poller()
    services = DnsServices(poller, every_ms=3_600_000)
    services.follow({"web": DnsService("127.0.0.1", 80), "api": DnsService("127.0.0.2", 81)})
    before = services.members("web"), services.members("api")
    undo = services.follow({"web": DnsService("127.0.0.3", 80)})
    assert services.members("api") is None
    undo()
    assert (services.members("web"), services.members("api")) == before
    assert before[0] is not None
    poller.close()
