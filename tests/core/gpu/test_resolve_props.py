"""Properties of a resolve, named, on random conflicts."""

import copy
import hashlib
import hmac
import random
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import canonical, digest
from fairlead.core.gpu import conflict_digest
from fairlead.core.gpu.conflict import renamed
from fairlead.core.lottery import Pseudonyms
from tests.core.gpu.conflicts import candidates, conflict_of, decide, in_scope, random_doc

Document = dict[str, Any]
documents = st.builds(lambda seed: random_doc(random.Random(seed)), st.integers(0, 2**64))
NAMES = Pseudonyms("ab" * 32, 0, lambda owner: owner.encode().ljust(32), lambda budget: "a")
TIERS = ("unfunded", "nominated", "funded")


def gone(result: Document, key: str = "actions") -> set[str]:
    return {each["lease"] for each in result[key]}


def tier_of(document: Document, run: Document) -> str | None:
    held = [each for each in candidates(document) if each["run"] == run["id"]]
    if not held:
        return None
    if not all(each["funded"] for each in held):
        return "unfunded"
    return "nominated" if run["nominated"] else "funded"


@given(documents)
def test_enough_is_freed_or_nothing_is_done(document: Document) -> None:
    """Resolved exactly when the candidates are enough; the shortfall is what they lack."""
    result, deficit = decide(document), document["deficit_gpus"]
    total = sum(held["gpus"] for held in candidates(document))
    assert result["resolved"] is (total >= deficit)
    assert result["shortfall_gpus"] == max(0, deficit - total)
    assert result["freed_gpus"] == sum(x["gpus"] for x in result["actions"] if x["in_scope"])
    if result["resolved"]:
        assert result["freed_gpus"] >= deficit
    else:
        assert (result["actions"], result["withdrawn"], result["draws"]) == ([], [], [])


@given(documents)
def test_actions_are_facts_of_their_leases_and_no_lease_ends_twice(document: Document) -> None:
    """GPUs, run and scope as in the input; cut and given back are disjoint."""
    result, held = decide(document), {each["id"]: each for each in document["leases"]}
    every = [*result["actions"], *result["withdrawn"]]
    assert len({each["lease"] for each in every}) == len(every)
    runs = {run["id"]: run for run in document["runs"]}
    for each in every:
        fact = held[each["lease"]]
        assert (each["run"], each["gpus"]) == (fact["run"], fact["gpus"])
        assert each["in_scope"] is in_scope(document, fact)
        assert each["tier"] == tier_of(document, runs[each["run"]])
        assert (each["draw"] is None) is (each["kind"] != "RandomPreempt")


@given(documents)
def test_a_gang_is_whole_or_not_running(document: Document) -> None:
    """A drawn run keeps nothing; one that was not drawn keeps its minimum, in whole steps."""
    result = decide(document)
    cut, drawn = gone(result), {draw["token"] for draw in result["draws"]}
    for run in document["runs"]:
        held = [each for each in document["leases"] if each["run"] == run["id"]]
        if run["id"] in drawn:
            assert {each["id"] for each in held} <= cut
            continue
        active = [each for each in held if each["role"] == "active"]
        lost = sum(each["gpus"] for each in active if each["id"] in cut)
        if run["malleable"] is None:
            assert lost == 0
        elif lost:
            assert lost % run["malleable"]["step_gpus"] == 0
            width = sum(each["gpus"] for each in active)
            assert width - lost >= run["malleable"]["min_gpus"]


@given(documents)
def test_groups_go_whole_from_the_highest_number_without_holes(document: Document) -> None:
    """With all their spares; no kept group in scope has a higher number than a shrunk one."""
    result = decide(document)
    cut, drawn = gone(result), {draw["token"] for draw in result["draws"]}
    shrunk: dict[str, set[int]] = defaultdict(set)
    held = {each["id"]: each for each in document["leases"]}
    for each in result["actions"]:
        if each["kind"] == "Shrink" and each["run"] not in drawn:
            shrunk[each["run"]].add(held[each["lease"]]["group"])
    for run, groups in shrunk.items():
        mine = [each for each in document["leases"] if each["run"] == run]
        assert all(each["id"] in cut for each in mine if each["group"] in groups)
        stuck = {x["group"] for x in mine if x["role"] == "active" and not in_scope(document, x)}
        free = {x["group"] for x in mine if x["role"] == "active"} - stuck
        assert not groups & stuck
        assert all(group < min(groups) for group in free - groups)


@given(documents)
def test_a_tier_is_used_up_before_the_next_is_touched(document: Document) -> None:
    """All candidates of earlier tiers were cut, even if some came back."""
    result = decide(document)
    touched = {x["tier"] for x in [*result["actions"], *result["withdrawn"]]}
    cut = gone(result) | gone(result, "withdrawn")
    runs = {run["id"]: run for run in document["runs"]}
    for held in candidates(document):
        tier = tier_of(document, runs[held["run"]])
        if any(TIERS.index(tier or "") < TIERS.index(later) for later in touched):
            assert held["id"] in cut


@given(documents)
def test_no_run_is_drawn_before_the_rules_are_exhausted(document: Document) -> None:
    """Where a run of a tier is drawn, every spare of that tier in scope was cut before."""
    result = decide(document)
    cut = gone(result) | gone(result, "withdrawn")
    runs = {run["id"]: run for run in document["runs"]}
    tiers = {draw["tier"] for draw in result["draws"]}
    for held in candidates(document):
        if held["role"] == "spare" and tier_of(document, runs[held["run"]]) in tiers:
            assert held["id"] in cut


@given(documents)
def test_the_last_draw_was_needed(document: Document) -> None:
    """Everything that was cut before it was less than the deficit."""
    result = decide(document)
    if result["draws"]:
        last = result["draws"][-1]
        every = [x for x in [*result["actions"], *result["withdrawn"]] if x["in_scope"]]
        before = [x for x in every if TIERS.index(x["tier"]) <= TIERS.index(last["tier"])]
        freed = sum(x["gpus"] for x in before if x["draw"] != last["index"])
        assert freed < document["deficit_gpus"]


@given(documents)
def test_the_draws_follow_from_the_seed_by_the_definition(document: Document) -> None:
    """Sorted lists without those drawn before; HMAC picks the owner, then the token."""
    result = decide(document)
    drawn: set[str] = set()
    for k, draw in enumerate(result["draws"]):
        assert draw["index"] == k
        assert draw["owners"] == sorted(set(draw["owners"]))
        assert draw["tokens"] == sorted(set(draw["tokens"]))
        assert not drawn & set(draw["tokens"])
        seed = bytes.fromhex(document["seed"])
        assert draw["owner"] == draw["owners"][pick(seed, b"owner", k, len(draw["owners"]))]
        assert draw["token"] == draw["tokens"][pick(seed, b"token", k, len(draw["tokens"]))]
        drawn.add(draw["token"])


def pick(seed: bytes, stage: bytes, k: int, n: int) -> int:
    """The page's definition; a rejection has a chance of 10 in 2^64 here."""
    counter = bytes(8)
    text = b"fairlead/lottery/v1\0" + stage + b"\0" + k.to_bytes(8, "big") + counter
    return int.from_bytes(hmac.new(seed, text, hashlib.sha256).digest()[:8], "big") % n


@given(documents, st.randoms(use_true_random=False))
def test_the_order_of_the_input_never_matters(document: Document, rng: random.Random) -> None:
    """Runs, leases and the keys of every object."""
    shuffled = copy.deepcopy(document)
    rng.shuffle(shuffled["runs"])
    rng.shuffle(shuffled["leases"])
    shuffled["leases"] = [dict(rng.sample(list(x.items()), len(x))) for x in shuffled["leases"]]
    assert canonical(decide(document)) == canonical(decide(shuffled))


@given(documents, st.permutations(["west", "north", "east"]))
def test_the_order_of_a_caps_envelopes_changes_the_digest_alone(
    document: Document, envelopes: list[str]
) -> None:
    """What the control plane freezes has them in order: there it does not change the digest."""

    def capped(names: list[str]) -> Document:
        cap = {"budget": "b", "name": "c", "envelopes": names}
        return {**document, "scope": {**document["scope"], "cap": cap}}

    one, other = capped(sorted(envelopes)), capped(envelopes)
    found, same = decide(one), decide(other)
    assert {**found, "conflict_digest": ""} == {**same, "conflict_digest": ""}
    frozen = [conflict_digest(renamed(conflict_of(made), NAMES)) for made in (one, other)]
    assert frozen[0] == frozen[1]


@given(documents, st.binary(min_size=32, max_size=32))
def test_chance_touches_only_draws_and_what_comes_back(document: Document, seed: bytes) -> None:
    """Structural cuts, cut or given back, are the same for every seed; so is the digest."""
    ours, theirs = decide(document), decide({**document, "seed": seed.hex()})
    structural = [
        {x["lease"] for x in [*each["actions"], *each["withdrawn"]] if x["kind"] != "RandomPreempt"}
        for each in (ours, theirs)
    ]
    assert structural[0] == structural[1]
    assert ours["conflict_digest"] == theirs["conflict_digest"] == digest(named(document))


def named(document: Document) -> Document:
    """What the digest is taken of."""
    return {
        "scope": document["scope"],
        "deficit_gpus": document["deficit_gpus"],
        "runs": sorted(document["runs"], key=lambda each: each["id"]),
        "leases": sorted(document["leases"], key=lambda each: each["id"]),
    }


@given(documents)
def test_what_stays_cut_by_rule_was_needed_or_could_not_come_back(document: Document) -> None:
    """A spare stays cut because it counts, because its group is gone, or because its run is."""
    result = decide(document)
    drawn = {draw["token"] for draw in result["draws"]}
    held = {each["id"]: each for each in document["leases"]}
    shrunk = {
        (x["run"], held[x["lease"]]["group"]) for x in result["actions"] if x["kind"] == "Shrink"
    }
    for each in result["actions"]:
        at = (each["run"], held[each["lease"]]["group"])
        if each["kind"] == "DropSpare" and each["run"] not in drawn and at not in shrunk:
            assert result["freed_gpus"] - each["gpus"] < document["deficit_gpus"]
