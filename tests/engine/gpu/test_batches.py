"""Several manifests in one step, what an executor says of an end, events of an archived past."""

from pathlib import Path

import pytest

from fairlead.engine.gpu import EditConflict, Forbidden, Refused
from fairlead.engine.gpu.checkpoint import NAME
from fairlead.ledger.replay import replay
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import HeadMoved
from fairlead.schema.border import BadInput
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, ALICE, START, World, budget, envelope, node, run
from tests.ledger.memory import MemoryLedger


def batches(ledger: MemoryLedger) -> list[int]:
    """How many entries each append had."""
    sizes: list[int] = []
    append = ledger.append

    def counting(drafts, **named):
        sizes.append(len(drafts))
        return append(drafts, **named)

    ledger.append = counting  # type: ignore[method-assign]
    return sizes


def test_a_batch_is_one_append(world: World) -> None:
    """Answers in the order given; what says what is so already is not written again."""
    sizes = batches(world.ledger)
    done = world.plane.objects.apply_all([node(), budget("a"), run("r")], author=ADMIN)
    assert sizes == [3]
    assert [(each.object["kind"], each.change) for each in done] == [
        ("Node", "created"),
        ("Budget", "created"),
        ("Run", "created"),
    ]
    again = world.plane.objects.apply_all([node(devices=9), budget("a"), run("s")], author=ADMIN)
    assert [each.change for each in again] == ["configured", "unchanged", "created"]
    assert sizes == [3, 2]
    assert world.plane.objects.apply_all([budget("a")], author=ADMIN)[0].change == "unchanged"
    assert world.plane.objects.apply_all([], author=ADMIN) == []
    assert sizes == [3, 2]


@pytest.mark.parametrize(
    ("last", "error", "path"),
    [
        ({"kind": "Run"}, BadInput, "manifests[1].apiVersion"),
        ("text", BadInput, "manifests[1]"),
        (run("r", gpus=0), BadInput, "manifests[1].spec.totalGPUs"),
        (run("r", owner="c", gpus=2), BadInput, "manifests[1].spec.totalGPUs"),
        (budget("a"), BadInput, "manifests[1].metadata.name"),
        (budget("b", "b", parents=["a"]), BadInput, "manifests[0].spec.parents"),
        (run("r", owner="b"), Forbidden, "manifests[1]"),
        (
            {**run("r", owner="c"), "metadata": {"name": "r", "resourceVersion": 1}},
            EditConflict,
            "manifests[1]",
        ),
        (node("n1", 0), Refused, "manifests[1]"),
    ],
)
def test_all_or_nothing(world: World, last, error, path) -> None:  # type: ignore[no-untyped-def]
    """Whatever is wrong with one of them, nothing of the batch is written; the path says where."""
    world.apply(budget("c"), node(), run("r", owner="c"))
    world.turn()
    size, author = len(world.log), ALICE if error is Forbidden else ADMIN
    first = run("q") if error is Forbidden else budget("a", "a", parents=["b"])
    with pytest.raises(error) as caught:
        world.plane.objects.apply_all([first, last], author=author)
    assert caught.value.path == path
    assert len(world.log) == size


def test_they_are_judged_as_they_would_stand_together(world: World) -> None:
    """A parent is handed on in one step that would be a circle halfway."""
    world.apply(budget("a", "a", parents=["b"]), budget("b"))
    turned = [budget("b", "b", parents=["a"]), budget("a")]
    with pytest.raises(BadInput, match="circle"):
        world.apply(turned[0])
    world.plane.objects.apply_all(turned, author=ADMIN)
    assert world.plane.objects.get("Budget", "b")["spec"]["parents"] == ["a"]


def test_a_lost_race_writes_the_whole_batch_or_nothing(world: World) -> None:
    """Another replica was quicker: judged again on what it did."""
    append, rivals = world.ledger.append, [world.open()]

    def late(drafts, **named):
        if rivals:
            rivals.pop().objects.apply(budget("a", "somebody"), author=ADMIN)
            raise HeadMoved(expected=1, size=2)
        return append(drafts, **named)

    world.ledger.append = late  # type: ignore[method-assign]
    rivals[0].committer.ledger = type(
        "Direct",
        (),
        {
            "__getattr__": lambda _, name: (
                append if name == "append" else getattr(world.ledger, name)
            )
        },
    )()
    done = world.plane.objects.apply_all([budget("a"), node()], author=ADMIN)
    assert [each.change for each in done] == ["configured", "created"]


def test_a_lowered_budget_in_a_batch_demotes_at_once(world: World) -> None:
    """As it does alone."""
    world.apply(budget("a"), node(), run("r", gpus=4))
    world.turn()
    world.plane.objects.apply_all(
        [node(devices=9), budget("a", "a", envelope(concurrency=2))], author=ADMIN
    )
    assert world.status("Run", "r")["funded"] is False


def test_a_dry_batch_shows_what_they_lead_to_together(world: World) -> None:
    """The run is covered by the budget beside it; nothing is written, nothing is changed."""
    shown = world.plane.objects.apply_all(
        [run("r", gpus=3), budget("a"), node()], author=ADMIN, dry_run=True
    )
    assert [each.change for each in shown] == ["created"] * 3
    assert shown[0].preview["starts"] is True
    assert world.log == []
    assert world.plane.objects.get("Budget", "a") is None


def test_a_dry_batch_gives_no_device_twice(world: World) -> None:
    """Each of them was said to start now, on the same devices. One that starts by its reservation
    or after another takes none."""
    world.apply(budget("a", "a", envelope(concurrency=8)), node(devices=4))
    later = run("later", gpus=2, after=[{"run": "first"}])
    batch = [later, run("first", gpus=2), run("second", gpus=2), run("third", gpus=2)]
    shown = world.plane.objects.apply_all(batch, author=ADMIN, dry_run=True)
    starts = {each.object["metadata"]["name"]: each.preview["starts"] for each in shown[1:]}
    assert starts == {"first": True, "second": True, "third": False}
    slots = [each.preview["placement"]["groups"][0]["active"] for each in shown[1:3]]
    assert slots == [["n1#0", "n1#1"], ["n1#2", "n1#3"]]
    assert world.projection.live == {}, "the dry run is forgotten"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"code": 127, "reason": "command not found: trian"},
            "the command ended with 127: command not found: trian",
        ),
        (
            {"lost": True, "reason": "the machine was restarted"},
            "its process is gone and left no exit status: the machine was restarted",
        ),
        ({"code": 3}, "the command ended with 3"),
    ],
)
def test_what_the_executor_says_of_an_end_is_kept(world: World, how, message) -> None:
    """In the run's status and in the event, so that nobody has to look for it."""
    world.apply(budget("a"), node(), run("r", command=["trian"]))
    world.turn()
    world.executor.end("r", world.now_ms, **how)
    world.turn(1)
    status = world.status("Run", "r")
    assert (status["message"], status["exitReason"]) == (message, how.get("reason"))
    (event,) = [
        each
        for each in world.plane.events.read(0, 100)
        if each["kind"] == "run.phase" and each["reason"] in ("Exited", "Lost")
    ]
    assert event["message"] == message


def test_events_of_an_archived_past_begin_at_the_first_kept(world: World, tmp_path: Path) -> None:
    """A marker says what is left out; a watcher goes on behind it, page by page."""
    world.apply(budget("a"), node(), run("r", gpus=2))
    world.turn()
    world.plane.committer.checkpoint()
    kept = world.plane.seq - 3
    world.ledger.archive(tmp_path, last=kept, time_ms=START, author="root")
    marker, *rest = world.plane.events.read(0, 100)
    assert (marker["kind"], marker["seq"]) == ("events.archived", kept)
    assert marker["body"] == {"first": 1, "last": kept}
    assert set(marker) == set(rest[0])
    assert [each["seq"] for each in rest] == list(range(kept + 1, kept + 5))
    assert [each["kind"] for each in rest[-2:]] == ["ledger.snapshot", "ledger.archived"]
    seen, after = [], 0
    while page := world.plane.events.read(after, 1):
        (event,) = page
        after = event["seq"]
        seen.append(event)
    assert seen == [marker, *rest]
    assert world.plane.reports.explain("Run", "r")["cover"] is None
    world.plane = world.open()
    assert world.status("Run", "r")["phase"] == "Running"
    world.ledger.snapshot_put(NAME, 0, b"lost")
    with pytest.raises(PermanentFault, match="moved to an archive"):
        world.open()


def test_a_large_input_is_kept_beside_the_log_and_replays(world: World) -> None:
    """Two hundred budgets of one family make an input of 100 KiB."""
    family = [
        budget(f"b{i:03}", f"o{i:03}", envelope("west", 1), envelope("east", 1), parents=["org"])
        for i in range(200)
    ]
    world.plane.objects.apply_all([*family, node(devices=300)], author=ADMIN)
    world.apply(run("r", owner="o000", gpus=300), run("small", owner="x"))
    world.turn()
    large, small = [entry for entry in world.log if entry.kind == "gpu.fund"]
    assert "input" not in large.body
    assert len(large.data) < 64 * 1024 < sum(large.body["blobs"].values())
    assert list(large.body["blobs"]) == [large.input_digest]
    assert "input" in small.body
    for entry in (large, small):
        assert replay(world.ledger, entry).verdict is Verdict.SAME
    assert "blobs" not in str(world.plane.events.read(0, 1000))
    assert world.plane.reports.explain("Run", "r")["cover"]["output"]["funded"] is True
