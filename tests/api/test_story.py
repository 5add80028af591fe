"""The demo's story: captions follow from what was recorded, in order; other servers have none."""

from typing import Any

import msgspec

from fairlead.api.captions import GpuCaptions
from fairlead.api.story import StoryDocument
from fairlead.api.story_acts import ACTS_KEPT, TITLES, Act, Caption, Story
from tests.api.servers import Running
from tests.engine.gpu.resolving import reserve, world_of
from tests.engine.gpu.worlds import World, budget, envelope, run

MINUTE = 1 / 60


class Reader:
    """Captions of a world, as they are told."""

    def __init__(self, world: World) -> None:
        self.world, self.seq = world, world.plane.seq
        self.captions = GpuCaptions(world.plane, lambda _: 12)

    def news(self) -> list[Caption]:
        events = self.world.plane.events.read(self.seq, 1_000)
        self.seq = events[-1]["seq"] if events else self.seq
        return list(self.captions.read(events))


def family(name: str, lends: str | None = None, **more: Any) -> dict[str, Any]:
    lending = {} if lends is None else {"lending": {"allow": True, "to": [lends]}}
    return budget(name, name, envelope(concurrency=4, **lending), parents=["lab"], **more)


def test_only_a_demo_has_a_story(server: Running) -> None:
    """`healthz` says so beforehand: a page that asked in vain would log an error."""
    assert server.send("GET", "/v1/story").status == 404
    assert server.ok("GET", "/healthz")["demo"] is False


def test_sharing_and_lending_are_told_by_the_leases_that_opened() -> None:
    world = world_of(devices=16, teams="")
    world.apply(family("a"), family("b", lends="c"))
    world.apply(budget("c", "c", envelope(concurrency=4)))
    reader = Reader(world)
    world.apply(run("alone", "a", 1))
    world.turn()
    assert reader.news() == [], "its own envelope pays"
    world.apply(run("wide", "a", 4))
    world.turn()
    (shared,) = reader.news()
    assert shared.act is Act.SHARE
    assert shared.text == "a runs wide on 4 GPUs: 3 of its own, 1 shared by its sibling b."
    decision, page = shared.links
    assert world.ledger.entry(int(decision[0].rpartition("/")[2])).kind == "gpu.fund"
    assert page == ("/runs/wide", "wide")
    funding = {"allowBorrow": True, "sponsors": ["b"]}
    world.apply(run("loan", "c", 6, funding=funding))
    world.turn()
    (lent,) = reader.news()
    assert (lent.act, lent.text) == (Act.LEND, "c runs loan on 6 GPUs: 4 of its own, 2 lent by b.")


def test_a_reservation_its_lottery_and_the_return_are_told_as_they_happen() -> None:
    """Odds from the warnings, the selected run from the draw; a run that starts again resumes."""
    world = world_of(devices=8, teams="abc")
    world.apply(run("one", "a", 4, command=["x"]), run("two", "b", 4, command=["x"]))
    world.turn()
    reader = Reader(world)
    reserve(world, run("big", "c", 4, command=["x"]), 5 * MINUTE)
    world.turn()
    (announced,) = reader.news()
    assert announced.act is Act.ANNOUNCE
    assert "c reserves 4 GPUs in 300 s" in announced.text
    assert "one 50 %, two 50 %" in announced.text
    assert reader.news() == [], "each warning is told once"
    world.turn(5 * MINUTE)
    (drawn,) = reader.news()
    assert drawn.act is Act.LOTTERY
    (outcome,) = world.projection.resolver.outcomes.values()
    assert drawn.links[0] == (f"/preemption/{outcome.seq}", "the outcome, to verify")
    (selected,) = outcome.reclaiming
    assert f"selects {selected}:" in drawn.text
    world.executor.end(selected, world.now_ms)
    world.turn()
    assert reader.news() == [], "big starts on its own envelope: no act"
    world.executor.end("big", world.now_ms + 60_000)
    world.turn(2 * MINUTE)
    (again,) = reader.news()
    assert again.act is Act.RESUME
    assert f"{selected} has devices again after 120 s (attempt 2)" in again.text
    assert "step 12" in again.text


def test_a_certain_loss_is_no_lottery() -> None:
    """With one candidate there are no odds to tell, and what the operator drains is no draw."""
    world = world_of(devices=4, teams="ab")
    world.apply(run("one", "a", 4, command=["x"]))
    world.turn()
    reader = Reader(world)
    reserve(world, run("big", "b", 4), 5 * MINUTE)
    world.turn()
    assert [caption.act for caption in reader.news()] == []


def caption(act: Act, time_ms: int = 1_000) -> Caption:
    return Caption(act, act.value, (("/gpu", "GPU"),), time_ms)


def test_an_act_is_told_once_a_round_and_only_if_it_happened() -> None:
    story = Story(lambda: 1_000)
    story.expect(Act.SHARE, "soon")
    assert story.document()["next"] == {"act": "share", "title": "Teams share", "text": "soon"}
    assert story.document()["acts"] == [], "what is awaited has not happened"
    assert not story.wait(Act.SHARE, 0)
    story.waits(500)
    story.tell(caption(Act.SHARE, 3_500))
    story.tell(caption(Act.SHARE, 4_000))
    assert story.wait(Act.SHARE, 0)
    assert story.document()["next"] is None
    (row,) = story.document()["acts"]
    assert (row["number"], row["after_s"], row["waited_s"]) == (1, 2.5, 0.5)
    assert row["links"] == [{"path": "/gpu", "text": "GPU"}]
    msgspec.convert(story.document(), StoryDocument)
    story.expect(Act.SHARE, "again")
    assert story.document()["next"] is None, "it was told already"
    story.next_round()
    assert not story.wait(Act.SHARE, 0)
    story.tell(caption(Act.SHARE))
    assert [row["round"] for row in story.document()["acts"]] == [1, 2]


def test_a_story_of_days_stays_small() -> None:
    story = Story(lambda: 0)
    for _ in range(ACTS_KEPT):
        for act in Act:
            story.tell(caption(act))
        story.next_round()
    acts = story.document()["acts"]
    assert len(acts) == ACTS_KEPT
    assert acts[-1]["number"] == ACTS_KEPT * len(Act)
    assert set(TITLES) == set(Act)
