"""The traffic harness: scenarios keep their promises, the same seed plays the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.schema.traffic_scenario import TrafficScenarioDocument, read_traffic_scenario
from fairlead.sim.traffic import TrafficResult, bundled_names, check_promises, play, read_bundled
from fairlead.sim.traffic.report import write_report
from fairlead.sim.traffic.result import Answer, AnswerKind, Tick, measure, timeline


def tiny(**fields: Any) -> TrafficScenarioDocument:
    return read_traffic_scenario(
        json.dumps(
            {
                "name": "tiny",
                "duration_s": 8,
                "backends": [{"name": "a"}, {"name": "b"}],
                "load": {"per_s": 60},
                **fields,
            }
        ).encode()
    )


@pytest.fixture(scope="module")
def played() -> TrafficResult:
    return play(tiny(events=[{"at_s": 2, "backend": "b", "latency_factor": 10}]))


def broken(played: TrafficResult) -> list[str]:
    return [f"{each.promise}: {each.problem}" for each in check_promises(played) if not each.kept]


@pytest.mark.parametrize("name", bundled_names())
def test_every_bundled_scenario_keeps_its_promises(name: str) -> None:
    """Invariants and its own expectations, under its own seed."""
    assert broken(play(read_traffic_scenario(read_bundled(name)))) == []


def test_the_same_seed_plays_the_same_and_another_one_does_not() -> None:
    """To the byte of every tick and answer."""
    scenario = tiny(events=[{"at_s": 2, "agent_dead_s": 1}])
    assert play(scenario).digest == play(scenario).digest
    assert play(scenario).digest != play(scenario, seed=2).digest


def test_the_timeline_adds_up(played: TrafficResult) -> None:
    """Every attempt is in one second and has one fate."""
    seconds = timeline(played)
    figures = measure(played)
    assert len(seconds) == 8
    assert sum(each.attempts for each in seconds) == figures.attempts == len(played.answers)
    for each in seconds:
        fates = each.good + each.late + each.failed + each.refused + each.open
        assert fates == each.attempts
        assert sum(each.slots.values()) == 256


def test_the_report_is_whole_and_the_same_every_time(played: TrafficResult, tmp_path: Path) -> None:
    """JSON, CSV, Markdown and the record; no clock and no path in it."""
    scenario = played.scenario
    for target in ("one", "two"):
        record = tmp_path / f"record-{target}"
        again = play(scenario, record=record)
        write_report(again, check_promises(again), tmp_path / target, record=record, plots=False)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["record", "report.json", "report.md", "timeline.csv"]
    for name in names[1:]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    document = json.loads((tmp_path / "one" / "report.json").read_text())
    assert document["ok"] is True
    assert document["digest"] == played.digest


@pytest.mark.component("matplotlib")
def test_the_picture_is_drawn(played: TrafficResult, tmp_path: Path) -> None:
    """The same seed, the same bytes."""
    from fairlead.sim.traffic.report import draw_plots  # noqa: PLC0415 - needs the component

    assert draw_plots(played, tmp_path) == ["play.png"]
    first = (tmp_path / "play.png").read_bytes()
    draw_plots(played, tmp_path)
    assert (tmp_path / "play.png").read_bytes() == first


# --- checks that could not fail would check nothing


def spoiled(played: TrafficResult, number: int, **changes: Any) -> TrafficResult:
    """The result with one recorded tick changed."""
    ticks = list(played.ticks)
    tick = ticks[number]
    output = {**tick.output, **changes}
    reasons = tuple(changes.get("reasons", tick.reasons))
    ticks[number] = Tick(tick.at_ms, tick.input, output, reasons, tick.applied)
    return replace(played, ticks=ticks)


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"slots": {"a": 200, "b": 57}}, "the slots add up in every tick"),
        ({"slots": {"a": 256, "b": 0}}, "no backend moves faster than the slew"),
        ({"slots": {"a": 256, "b": 0}}, "no more slots change hands than they must"),
        ({"reasons": []}, "every tick has its reasons"),
        ({"reasons": ["because"]}, "every tick has its reasons"),
        ({"slots": {"a": 129, "b": 127}, "reasons": ["steady"]}, "every tick has its reasons"),
    ],
)
def test_a_tick_that_breaks_a_promise_is_found(
    played: TrafficResult, changes: dict[str, Any], promise: str
) -> None:
    """Whatever the governor says of itself."""
    assert any(each.startswith(promise) for each in broken(spoiled(played, 3, **changes)))


def test_admission_that_flaps_is_found(played: TrafficResult) -> None:
    """More changes of mode in a minute than the scenario allows."""
    ticks = []
    for number, tick in enumerate(played.ticks):
        mode = ("normal", "soft")[number % 2]
        output = {**tick.output, "admission": {"mode": mode, "rate_per_s": 1, "burst": 1}}
        ticks.append(replace(tick, output=output))
    assert any(
        "admission changed its mode" in each for each in broken(replace(played, ticks=ticks))
    )


def test_isolations_that_flap_are_found(played: TrafficResult) -> None:
    """The same for a backend."""
    ticks = []
    for number, tick in enumerate(played.ticks):
        backends = [{**b, "isolated": number % 2 == 0} for b in tick.input["backends"]]
        ticks.append(replace(tick, input={**tick.input, "backends": backends}))
    assert any("a was isolated" in each for each in broken(replace(played, ticks=ticks)))


def test_a_silent_loss_is_found(played: TrafficResult) -> None:
    """An answer that never came, and a refusal that the dataplane did not count."""
    fewer = replace(played, answers=played.answers[:-1])
    assert any("were admitted and" in each for each in broken(fewer))
    more = replace(played, answers=[*played.answers, Answer(1.0, AnswerKind.SOFT, 0.0, None)])
    assert any("refusals" in each for each in broken(more))


def test_a_tick_that_does_not_replay_is_found(tmp_path: Path) -> None:
    """The play decides every recorded tick again."""
    assert play(tiny(), record=tmp_path / "r").problems == []
    again = replace(play(tiny()), problems=["entry 3: a replay is different"])
    assert any("entry 3" in each for each in broken(again))


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ({"what": "share", "backend": "a", "most": 0.1}, "it was"),
        ({"what": "mode", "mode": "hard"}, "the modes were normal"),
        ({"what": "modes-only", "mode": "hard"}, "it was normal"),
        ({"what": "reason", "reason": "ttf"}, "the reasons were"),
        ({"what": "goodput", "least": 2}, "it was"),
        ({"what": "throughput", "least": 2}, "it was"),
        ({"what": "errors", "least": 2}, "it was"),
        ({"what": "refused", "least": 2}, "it was"),
        ({"what": "isolated", "backend": "a"}, "it never was"),
    ],
)
def test_an_expectation_that_is_not_met_is_found(
    played: TrafficResult, expect: dict[str, Any], problem: str
) -> None:
    """Every kind of expectation can fail."""
    other = tiny(expect=[expect])
    (verdict,) = [each for each in check_promises(replace(played, scenario=other)) if not each.kept]
    assert problem in verdict.problem


def test_an_agent_that_is_dead_is_not_missed() -> None:
    """Requests go on, in hold and in fallback; the return is told."""
    dead = play(tiny(duration_s=30, events=[{"at_s": 4, "agent_dead_s": 18}]))
    assert broken(dead) == []
    assert {answer.outcome for answer in dead.answers} <= {AnswerKind.OK, AnswerKind.OPEN}
    assert any("fallback" in each.text for each in dead.events)
