"""Thousands of objects at once: a turn takes some of them, in a few steps; no server is needed."""

import pytest

from fairlead.kube.gpu import front
from fairlead.kube.watch import LIKE_EVERY, Mirrored, key_of
from tests.kube.small import Server, Small, shown
from tests.kube.world import node, run


@pytest.fixture
def few(small: Small, monkeypatch: pytest.MonkeyPatch) -> Small:
    """A turn takes six objects of a kind, four in one step, two of a namespace in turn."""
    monkeypatch.setattr(front, "TAKEN_MAX", 6)
    monkeypatch.setattr(front, "AT_ONCE", 4)
    monkeypatch.setattr(front, "SHARE", 2)
    small.sources.nodes.put(shown(node("n")))
    return small


def add(small: Small, owner: str, *names: str, gpus: int = 1) -> None:
    small.add(owner)
    for name in names:
        small.sources.runs.put(shown(run(name, gpus, owner), uid=f"{owner}-{name}"))


def taken(small: Small) -> list[str]:
    known = small.plane.committer.projection
    return [name for name, _ in sorted(known.runs.items(), key=lambda row: row[1].submitted_seq)]


def test_a_turn_admits_before_it_takes_all(few: Small) -> None:
    """A namespace with many runs does not come first with all of them."""
    add(few, "team-a", *(f"r{i}" for i in range(9)))
    add(few, "team-b", "only")
    few.turn()
    assert taken(few) == [
        *("team-a.r0", "team-a.r1", "team-b.only"),
        *("team-a.r2", "team-a.r3", "team-a.r4"),
    ]
    assert few.front.behind
    assert few.status("team-b.only")["phase"] == "Running"
    few.turn()
    assert len(taken(few)) == 10
    assert not few.front.behind


def test_what_is_taken_together_is_one_append(few: Small) -> None:
    add(few, "team-a", *(f"r{i}" for i in range(6)))
    appends = list[int]()
    ledger, append = few.plane.committer.ledger, few.plane.committer.ledger.append
    few.front.turn()
    add(few, "team-a", *(f"s{i}" for i in range(6)))

    def counted(drafts, **more):
        appends.append(len(drafts))
        return append(drafts, **more)

    ledger.append = counted  # type: ignore[method-assign] - only this one is counted
    few.front.turn()
    assert appends == [4, 2]


def test_one_that_is_refused_is_told_and_the_others_are_taken(few: Small) -> None:
    """By the engine, in the middle of a step; the refusal says nothing of the others."""
    add(few, "team-a", "r0", "r1", "r3")
    wrong = run("r2", 1, "team-a", duration="2 hours")
    few.sources.runs.put(shown(wrong, uid="wrong"))
    few.turn()
    assert taken(few) == ["team-a.r0", "team-a.r1", "team-a.r3"]
    verdicts = {key.name: row for (kind, key), row in few.front.verdicts.items() if kind == "Run"}
    assert [name for name, row in verdicts.items() if not row.accepted] == ["r2"]
    assert verdicts["r2"].reason == "Invalid"
    assert verdicts["r2"].message.startswith("spec.duration:")


def test_what_could_not_be_recorded_is_taken_in_the_next_turn(
    few: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(few, "team-a", "r0", "r1")
    with monkeypatch.context() as patched:
        patched.setattr(few.plane.objects, "take_all", fail)
        with pytest.raises(OSError, match="no room"):
            few.front.turn()
    few.front.turn()
    assert taken(few) == ["team-a.r0", "team-a.r1"]


def fail(batch: object) -> None:
    raise OSError("no room")


def test_packed_copies_are_what_was_put() -> None:
    """Whatever they are packed like: small ones, large ones, and after others took its place."""
    kept = Mirrored(Server(), "/", lambda: None, packed=True)
    documents = [
        shown(run(f"r{i}", i + 1, command=["x" * (i % 7) * 1000]), i + 1, uid=f"u{i}")
        for i in range(2 * LIKE_EVERY + 3)
    ]
    for document in documents:
        kept.put(document)
    assert [kept.get(key_of(document)) for document in documents] == documents
