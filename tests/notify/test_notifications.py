"""Notifications: every event in order, at least once, to those who asked for it."""

import json

import pytest

from fairlead.engine.gpu import notifications
from fairlead.engine.gpu.notifications import SILENT, Notifications, Subscription
from fairlead.ledger.signatures import signature_holds
from fairlead.notify.webhook import Receiver, WebhookNotifier
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.notifier import Notification
from fairlead.schema.audit import read_head
from tests.engine.gpu.resolving import outcomes, reserve, world_of
from tests.engine.gpu.worlds import World, budget, node, run
from tests.notify.receivers import ReplayGuard, receiver

SECRET = b"sixteen bytes or more"


class Box:
    """A notifier that keeps what it is given, or fails as often as it is told."""

    def __init__(self) -> None:
        self.notices: list[Notification] = []
        self.failed: list[Notification] = []
        self.failures = 0

    def deliver(self, notice: Notification, now_ms: int) -> None:
        if self.failures:
            self.failures -= 1
            self.failed.append(notice)
            raise TemporaryFault("not now", retry_after_ms=1)
        self.notices.append(notice)

    def events(self) -> list[dict]:
        return [each for notice in self.notices for each in json.loads(notice.body)["events"]]


def notifications_of(world: World, box: Box, *wanted: Subscription) -> Notifications:
    return Notifications(
        world.ledger, world.plane.events.read, box, wanted or [Subscription("ops")], newest=0
    )


def numbers(world: World) -> list[int]:
    """The entries that a receiver of everything gets: all but the ledger's own notes of states."""
    return [entry.seq for entry in world.ledger.entries(0) if entry.kind != SILENT]


def test_everything_is_told_once_and_in_order() -> None:
    """With the signed head; nothing again when nothing is new."""
    world, box = World(), Box()
    deliveries = notifications_of(world, box)
    world.apply(budget("a"), node(), run("r"))
    world.turn()
    assert deliveries.turn(world.now_ms) == 1
    assert [each["seq"] for each in box.events()] == numbers(world)
    head = read_head(json.dumps(json.loads(box.notices[0].body)["head"]).encode())
    key = world.ledger.keys()[head.head.key_id]
    assert signature_holds(key, head.head.to_sign(), head.signature)
    assert deliveries.turn(world.now_ms) == 0
    world.apply(run("s"))
    deliveries.turn(world.now_ms)
    assert box.events()[-1]["object"] == {"kind": "Run", "name": "s"}
    assert len({notice.id for notice in box.notices}) == len(box.notices)


def test_commits_draws_and_cuts_are_told() -> None:
    """Who subscribed to the resolver hears of every step, under pseudonyms."""
    world, box = world_of(), Box()
    deliveries = notifications_of(
        world, box, Subscription("fair", kinds=("gpu.resolve.", "run.cut"))
    )
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    deliveries.turn(world.now_ms)
    kinds = [each["kind"] for each in box.events() if each["kind"] != "gpu.resolve.scope"]
    assert kinds == [
        "gpu.resolve.commit",
        "gpu.resolve.case",
        "gpu.resolve.draw",
        "run.cut",
        "gpu.resolve.applied",
    ]
    draw = next(each for each in box.events() if each["kind"] == "gpu.resolve.draw")
    assert draw["body"]["commit_seq"] == outcomes(world)[0].seq
    assert len(draw["body"]["seed"]) == 64


def test_an_owner_hears_of_its_own() -> None:
    """And of no others; the place moves on all the same."""
    world, box = World(), Box()
    deliveries = notifications_of(world, box, Subscription("a-team", owners=frozenset({"a"})))
    world.apply(budget("a"), budget("b"), node(), run("mine"), run("other", owner="b"))
    world.turn()
    deliveries.turn(world.now_ms)
    assert {each["owner"] for each in box.events()} == {"a"}
    before = len(box.notices)
    world.apply(run("other-2", owner="b"))
    assert deliveries.turn(world.now_ms) == 0
    assert len(box.notices) == before


def test_every_owner_hears_of_commits_and_draws() -> None:
    """They hold the operator to its word; what names others is not told."""
    world, box = world_of(), Box()
    deliveries = notifications_of(world, box, Subscription("c-team", owners=frozenset({"c"})))
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    deliveries.turn(world.now_ms)
    told = {each["kind"] for each in box.events() if each["owner"] != "c"}
    assert told == {"gpu.resolve.scope", "gpu.resolve.commit", "gpu.resolve.draw"}


def test_a_failure_is_retried_later_and_later_as_the_same_notice() -> None:
    """Nothing is skipped, nothing overtakes; one receiver's trouble is not another's."""
    world, box, fine = World(), Box(), Box()

    class Both:
        def deliver(self, notice: Notification, now_ms: int) -> None:
            (box if notice.receiver == "ill" else fine).deliver(notice, now_ms)

    both = [Subscription("ill"), Subscription("well")]
    deliveries = Notifications(world.ledger, world.plane.events.read, Both(), both, newest=0)
    world.apply(budget("a"))
    box.failures, tries, now_ms = 4, [], 0
    while not box.notices:
        deliveries.turn(now_ms)
        tries.append(box.failures)
        now_ms += 500
    assert fine.events() == box.events()
    assert deliveries.faults == {}
    waits = [tries.count(left) for left in (3, 2, 1, 0)]
    assert waits == [2, 4, 8, 17], "1, 2, 4, 8 seconds in half-second steps, and the success"
    box.failures = 1
    world.apply(budget("b"))
    deliveries.turn(now_ms)
    assert deliveries.faults == {"ill": "not now"}
    world.apply(budget("c"))
    deliveries.turn(now_ms + 2_000)
    assert [each["seq"] for each in box.events()] == [each["seq"] for each in fine.events()]
    assert box.failed[-1].id in {each.id for each in box.notices}, "although there is news by now"


def test_who_was_away_long_is_told_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn in between, and a signature is never older than it may be."""
    monkeypatch.setattr(notifications, "BATCH", 1)
    world, box = World(), Box()
    both = [Subscription("away"), Subscription("here", kinds=("object.",))]
    deliveries = notifications_of(world, box, *both)
    world.apply(*(budget(f"b{i}") for i in range(2 * notifications.NOTICES_AT_ONCE)))
    first = deliveries.turn(world.now_ms)
    assert first == 2 * notifications.NOTICES_AT_ONCE
    assert {notice.receiver for notice in box.notices} == {"away", "here"}
    while deliveries.turn(world.now_ms):
        pass
    away = [json.loads(each.body)["events"] for each in box.notices if each.receiver == "away"]
    assert [event["seq"] for events in away for event in events] == numbers(world)


def test_a_restart_goes_on_where_it_was() -> None:
    """The place is kept; a receiver that is new begins with what is new."""
    world, box = World(), Box()
    deliveries = notifications_of(world, box)
    world.apply(budget("a"))
    deliveries.turn(world.now_ms)
    world.apply(budget("b"))
    again = Notifications(
        world.ledger,
        world.plane.events.read,
        box,
        [Subscription("ops"), Subscription("late")],
        newest=world.plane.seq,
    )
    again.turn(world.now_ms)
    assert [each["seq"] for each in box.events()] == numbers(world)
    world.apply(budget("c"))
    again.turn(world.now_ms)
    late = [json.loads(each.body) for each in box.notices if each.receiver == "late"]
    assert [event["object"]["name"] for each in late for event in each["events"]] == ["c"]


@pytest.mark.parametrize("answer", [500, 302])
def test_over_http_to_the_end(answer: int) -> None:
    """A receiver that fails once is told again, and takes it once."""
    world = World()
    world.apply(budget("a"), node(), run("r"))
    world.turn()
    with receiver() as inbox:
        notifier = WebhookNotifier([Receiver("ops", inbox.url, SECRET, allow_private=True)])
        deliveries = Notifications(
            world.ledger, world.plane.events.read, notifier, [Subscription("ops")], newest=0
        )
        inbox.answers = [answer]
        assert deliveries.turn(world.now_ms) == 0
        assert f"answers {answer}" in deliveries.faults["ops"]
        assert deliveries.turn(world.now_ms + 60_000) == 1
        ((headers, body),) = inbox.messages
        assert ReplayGuard(SECRET).problem(headers, body, world.now_ms / 1000 + 60) is None
        assert len(json.loads(body)["events"]) == len(numbers(world))
