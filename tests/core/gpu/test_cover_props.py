"""Properties of a cover, named, on random documents."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead.core.canonical import canonical
from fairlead.core.gpu import tally
from fairlead.schema.border import check_shape
from fairlead.schema.funding import COVER, CoverInput
from fairlead.schema.kinds import KINDS
from fairlead.schema.times import cap_ms, duration_ms
from tests.core.gpu import cases, oracle
from tests.core.gpu.build import apply_remedy, decide, one_less

Document = dict[str, Any]
documents = st.builds(lambda seed: cases.random_doc(random.Random(seed)), st.integers(0, 2**64))


@st.composite
def refused(draw: st.DrawFn) -> Document:
    """A document whose request is refused with a remedy."""
    document = draw(documents)
    result = decide(document)
    assume(result["refusal"] and result["refusal"]["remedy"])
    return document


@given(documents, st.randoms(use_true_random=False))
def test_the_order_of_the_input_never_matters(document: Document, rng: random.Random) -> None:
    """Budgets, leases, envelopes, caps, members, parents and ACLs; only sponsors have an order."""
    shuffled = copy.deepcopy(document)
    for lists in _lists(shuffled):
        rng.shuffle(lists)
    shuffled["request"]["sponsors"] = document["request"]["sponsors"]
    assert canonical(decide(document)) == canonical(decide(shuffled))


@given(documents, st.randoms(use_true_random=False))
def test_the_order_of_totals_never_matters(document: Document, rng: random.Random) -> None:
    """The same of `gpu.fund`: every list but the sponsors in another order."""
    envelopes = [(b["name"], e["name"]) for b in document["budgets"] for e in b["envelopes"]]
    hours = document["request"].pop("duration_hours")
    document["request"]["duration_ms"] = None if hours is None else duration_ms(hours)
    totals = ("gpus", "used_ms", "held_ms", "lent_gpus", "lent_used_ms", "lent_held_ms")
    fund = {
        "now": document["now"],
        "budgets": document["budgets"],
        "usage": [
            {"budget": budget, "envelope": envelope, **{key: rng.randrange(9) for key in totals}}
            for budget, envelope in envelopes
        ],
        "request": document["request"],
    }
    shuffled = copy.deepcopy(fund)
    for lists in _lists(shuffled):
        rng.shuffle(lists)
    shuffled["request"]["sponsors"] = fund["request"]["sponsors"]
    first, second = (KINDS["gpu.fund"].run(canonical(each)).result for each in (fund, shuffled))
    assert canonical(first) == canonical(second)


def _lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _lists(inner)


@given(documents)
def test_all_or_nothing(document: Document) -> None:
    """The lines add up to the width, or there are none; nothing is negative or empty."""
    result, request = decide(document), document["request"]
    assert sum(line["gpus"] for line in result["plan"]) == result["gpus"]
    assert all(line["gpus"] > 0 for line in result["plan"])
    assert len({(x["budget"], x["envelope"]) for x in result["plan"]}) == len(result["plan"])
    if result["funded"]:
        assert result["refusal"] is None
        assert result["gpus"] >= (request["min_gpus"] or request["gpus"])
        return
    assert (result["gpus"], result["plan"]) == (0, [])
    assert 0 < result["refusal"]["shortfall_gpus"] <= (request["min_gpus"] or request["gpus"])
    for entry in result["refusal"]["binding"]:
        assert entry["used"] >= 0
        assert entry["limit"] is None or entry["limit"] >= 0


@given(documents)
def test_a_funded_plan_breaks_no_cap_even_summed_over_the_plan(document: Document) -> None:
    """Envelopes, aggregates, sub-caps and the borrow limit hold with all lines counted."""
    result, request = decide(document), document["request"]
    used = oracle.usage(document)
    given_gpus = {(x["budget"], x["envelope"]): x for x in result["plan"]}
    for budget in document["budgets"]:
        for kind, members, gpus_max, hours_max in _caps(budget, request["flavor"]):
            lent = kind == "lending"
            paying = [given_gpus.get((budget["name"], name)) for name in members]
            new = sum(x["gpus"] for x in paying if x and (x["borrowed"] or not lent))
            if not new:
                continue
            rows = [used[budget["name"], name, lent] for name in members]
            if gpus_max is not None:
                assert sum(row[0] for row in rows) + new <= gpus_max
            if hours_max is not None:
                spent, duration = sum(row[1] + row[2] for row in rows), request["duration_hours"]
                if duration is None:
                    assert spent < cap_ms(hours_max)
                else:
                    assert spent + new * duration_ms(duration) <= cap_ms(hours_max)
    borrowed = sum(x["gpus"] for x in result["plan"] if x["borrowed"])
    assert not borrowed or request["allow_borrow"]
    assert request["max_borrow_gpus"] is None or borrowed <= request["max_borrow_gpus"]


def _caps(budget: Document, flavor: str) -> Iterator[tuple[str, set[str], Any, Any]]:
    for each in budget["envelopes"]:
        lending, name = each["lending"], {each["name"]}
        yield "envelope", name, each["concurrency"], each["max_gpu_hours"]
        yield "lending", name, lending["max_concurrency"], lending["max_gpu_hours"]
    for cap in budget["aggregate_caps"]:
        if cap["flavor"] == flavor:
            yield "aggregate", set(cap["envelopes"]), cap["max_concurrency"], cap["max_gpu_hours"]


@given(documents)
def test_only_who_may_pays(document: Document) -> None:
    """Lines are of the flavor, in an open window; loans by an ACL, family use by `sharing`."""
    result, request = decide(document), document["request"]
    envelopes = {
        (budget["name"], each["name"]): each
        for budget in document["budgets"]
        for each in budget["envelopes"]
    }
    for line in result["plan"]:
        payer = envelopes[line["budget"], line["envelope"]]
        assert payer["flavor"] == request["flavor"]
        assert oracle.is_open(payer, document["now"])
        assert line["borrowed"] == line["tier"].startswith("sponsor")
        assert not line["borrowed"] or oracle.admits(payer["lending"], request["owner"])
        if not line["borrowed"] and not line["tier"].startswith("own"):
            assert payer["sharing"] == "family"
        assert line["tier"].endswith("elsewhere") != oracle.in_location(payer, request)


@given(documents, st.integers(1, 6), st.integers(1, 4))
def test_malleable_widths_are_aligned_and_maximal(
    document: Document, least: int, step: int
) -> None:
    """min + j*step; the next one up, asked for as a fixed width, is refused."""
    request = document["request"]
    request.update(gpus=least + 9 * step, min_gpus=least, step_gpus=step)
    result = decide(document)
    width = result["gpus"] if result["funded"] else least - step
    assert (width - least) % step == 0
    for fixed, funded in ((width, True), (width + step, False)):
        if least <= fixed <= request["gpus"]:
            asked = {**request, "gpus": fixed, "min_gpus": None, "step_gpus": None}
            alone = decide({**document, "request": asked})
            assert alone["funded"] is funded
            assert not funded or alone["plan"] == result["plan"]


@given(refused())
def test_the_remedy_covers_and_one_unit_less_does_not(document: Document) -> None:
    """Applied to the document, the change funds the request; it is the smallest of its sort."""
    change = decide(document)["refusal"]["remedy"]
    fixed = decide(apply_remedy(document, change))
    assert fixed["funded"]
    assert fixed["gpus"] >= (document["request"]["min_gpus"] or document["request"]["gpus"])
    less = one_less(change)
    if less is not None:
        assert not decide(apply_remedy(document, change, less))["funded"]


@given(documents, st.randoms(use_true_random=False))
def test_editing_caps_and_owners_never_changes_elapsed_usage(
    document: Document, rng: random.Random
) -> None:
    """Used hours are facts of leases; caps, lending, sharing and owners only read them."""
    edited = copy.deepcopy(document)
    for budget in edited["budgets"]:
        budget.update(owner=f"new {budget['name']}", parents=[], aggregate_caps=[])
        for envelope in budget["envelopes"]:
            envelope.update(concurrency=rng.randint(1, 99), max_gpu_hours=rng.choice((None, 0, 7)))
            envelope.update(sharing="none", lending=rng.choice(budget["envelopes"])["lending"])
    assert _tallied(edited) == _tallied(document)


def _tallied(document: Document) -> Any:
    made = COVER.to_core(CoverInput, check_shape(document, COVER.document(CoverInput)))
    return tally(made.budgets, made.leases, made.now_ms)


@given(documents)
def test_a_second_look_decides_the_same(document: Document) -> None:
    """Nothing is remembered from one decision to the next."""
    assert decide(document) == decide(document)
