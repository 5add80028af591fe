"""`bench.traffic`: its load is the same every time, its figures and verdicts mean what they say."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.traffic.arms import Variant, settings
from bench.traffic.generator import (
    BROKEN,
    ERROR,
    OK,
    REFUSED,
    TIMEOUT,
    Generator,
    Request,
    draw_requests,
    outcome_of,
)
from bench.traffic.measure import client_figures, decision_figures, recovery_figures, share_figures
from bench.traffic.peers import PREPARE
from bench.traffic.promises import judge, judge_experts
from bench.traffic.report import markdown
from bench.traffic.runner import Row, Run, Tick
from bench.traffic.scenarios import BESIDE_EXPERTS, NAMES, PLAIN, SHORT, SICK, TUNED, scenarios

from fairlead.node.traffic.scrape import samples
from fairlead.schema.traffic_agent import read_traffic_document
from fairlead.sim.traffic.backend import ServiceMetrics
from fairlead.sim.traffic.generator import Attempt, read_head

ROOT = Path(__file__).resolve().parents[2]
PORTS = dict(zip(NAMES, range(9001, 9005), strict=True))


def test_the_load_is_drawn_from_the_seed_and_has_its_rates() -> None:
    """The same seed, the same requests; another, others; never more than 500 per second."""
    rates = [(5.0, 100.0), (10.0, 400.0)]
    drawn = draw_requests(seed=7, rates=rates, mean_s=0.1, sigma=0.5)
    assert drawn == draw_requests(seed=7, rates=rates, mean_s=0.1, sigma=0.5)
    assert drawn != draw_requests(seed=8, rates=rates, mean_s=0.1, sigma=0.5)
    early = sum(request.at_s < 5 for request in drawn)
    assert 400 < early < 600
    assert 1_800 < len(drawn) - early < 2_200
    assert 0.09 < sum(request.work_s for request in drawn) / len(drawn) < 0.11
    for scenario in scenarios(1).values():
        assert max(rate for _, rate in scenario.rates) <= 500
        assert scenario.rates[-1][0] == scenario.until_s


def test_scenarios_are_drawn_from_the_seed() -> None:
    """A backend flaps at the same moments under every arm."""
    assert scenarios(3)["noisy"] == scenarios(3)["noisy"]
    assert scenarios(3)["noisy"] != scenarios(4)["noisy"]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Backend: b2", (OK, "b2")),
        (b"HTTP/1.1 500 Internal Server Error\r\nx-backend: b4", (ERROR, "b4")),
        (b"HTTP/1.1 429 Too Many Requests\r\nFairlead-Refused: soft", (REFUSED, "")),
        (b"HTTP/1.1 503 No\r\nx-details: reached_concurrency_limit", (REFUSED, "")),
        (b"HTTP/1.1 503 No\r\nx-details: upstream_reset{connection_failure}", (ERROR, "")),
        (b"HTTP/1.1 503 Service Unavailable", (ERROR, "")),
    ],
)
def test_a_refusal_is_told_from_an_error(head: bytes, expected: tuple[str, str]) -> None:
    """Only who says on purpose that it turns a request away has refused it."""
    kind, status, backend = read_head(head)
    attempt = Attempt(0, 0, 0.0, 0.0, 0.1, kind, status, backend, final=True)
    assert (outcome_of(attempt), attempt.backend) == expected


@contextlib.contextmanager
def backend(tmp_path: Path, faults: list[list[Any]]) -> Iterator[tuple[int, Any]]:
    """A real backend on a free port, and its `go`."""
    listener = socket.create_server(("127.0.0.1", 0))
    spec = {
        "name": SICK,
        "socket": listener.fileno(),
        "workers": 2,
        "faults": faults,
        "result": str(tmp_path / "came.json"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.traffic.backends", json.dumps(spec)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[listener.fileno()],
    )
    port = listener.getsockname()[1]
    listener.close()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield port, process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        with process:
            process.wait()


def go(process: Any) -> float:
    """Tell the backend when everything begins: in a moment, so that it has heard by then."""
    start = time.monotonic() + 0.2
    process.stdin.write(f"go {start!r}\n")
    process.stdin.flush()
    return start


def test_a_real_backend_queues_fails_and_lets_go(tmp_path: Path) -> None:
    """Two workers: the third request waits. Sick, it fails at once. Who gives up is a timeout."""
    plan = [
        *(Request(0.0, 0.3, fails=False) for _ in range(3)),
        Request(2.0, 30.0, fails=False),  # at once, or it would be a timeout
        *(Request(3.5, 30.0, fails=False) for _ in range(3)),
        Request(3.5, 0.01, fails=True),
    ]
    with backend(tmp_path, [[1.5, 1.0, True], [3.0, 1.0, False]]) as (port, process):
        generator = Generator(("127.0.0.1", port), plan, patience_s=1.5)
        generator.run(go(process))
    rows = [Row(*row) for row in generator.rows]
    assert [row.outcome for row in rows] == [OK, OK, OK, ERROR, *[TIMEOUT] * 4]
    assert min(row.took_s for row in rows[:2]) >= 0.3
    assert max(row.took_s for row in rows[:3]) >= 0.6
    assert rows[0].backend == SICK
    came = json.loads((tmp_path / "came.json").read_text())
    assert len(came) == len(plan)


def test_a_client_that_tries_again_is_one_request(tmp_path: Path) -> None:
    """Its last try decides, its first counts; who fails at every try has failed once."""
    plan = [Request(0.2, 0.01, fails=False, pause_s=0.1), Request(0.6, 0.01, fails=True)]
    with backend(tmp_path, [[0.0, 1.0, True], [0.35, 1.0, False]]) as (port, process):
        generator = Generator(("127.0.0.1", port), plan, patience_s=4.0, tries=4)
        generator.run(go(process))
    first, second = (Row(*row) for row in generator.rows)
    assert (first.outcome, first.tries) == (OK, 3)
    assert first.took_s >= 0.2
    assert (second.outcome, second.tries) == (ERROR, 4)
    assert len(json.loads((tmp_path / "came.json").read_text())) == 7


def test_a_closed_port_is_no_refusal_on_purpose() -> None:
    """A closed port refuses as a dataplane does: the bench never lets that happen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        generator = Generator(probe.getsockname(), [Request(0.0, 0.1, fails=False)], 1.0)
        generator.run(time.monotonic())
    assert generator.rows[0][3] in (REFUSED, BROKEN)


def test_the_backends_metrics_are_what_the_agent_scrapes() -> None:
    """Names and format, as the agent's own parser reads them."""
    told = ServiceMetrics()
    told.requests, told.errors = 3, 1
    told.succeeded(0.1)
    told.succeeded(100.0)
    names = ("requests_total", "errors_total", "latency_seconds_bucket")
    found = samples(told.text(), names)
    assert {each.value for each in found if each.name == names[0]} == {3.0}
    ends = {each.labels["le"]: each.value for each in found if "le" in each.labels}
    assert ends["+Inf"] == 2.0
    assert max(value for edge, value in ends.items() if edge != "+Inf") == 1.0


@pytest.mark.parametrize("plane", ["ebpf", "haproxy", "envoy"])
def test_our_settings_are_what_the_agent_takes(plane: str, tmp_path: Path) -> None:
    """The agent's own reader finds nothing wrong with them."""
    where = {"cgroup": "/x", "pins": "/y"} if plane == "ebpf" else {"folder": "/x"}
    given = settings(
        Variant(plane, {"warmup_ms": 1_000}), ("127.0.0.1", 80), PORTS, tmp_path, where
    )
    document = read_traffic_document(json.dumps(given).encode(), {})
    assert document.groups[0].config["warmup_ms"] == 1_000
    assert (document.groups[0].scrape is not None) == (plane == "ebpf")


@pytest.mark.component("haproxy")
@pytest.mark.parametrize("arm", [arm for arm in PREPARE if arm.startswith("haproxy")])
def test_haproxy_takes_its_configuration(arm: str, tmp_path: Path) -> None:
    """By HAProxy's own check."""
    command = PREPARE[arm](tmp_path, 8080, PORTS)
    subprocess.run([*command, "-c"], check=True, capture_output=True)


@pytest.mark.component("envoy")
def test_the_expert_of_haproxy_has_all_that_an_expert_would_set(tmp_path: Path) -> None:
    """Limits, a short queue, servers left out by their answers, and retries of errors elsewhere."""
    PREPARE[TUNED](tmp_path, 8080, PORTS)
    lines = [line.split() for line in (tmp_path / "haproxy.cfg").read_text().splitlines()]
    (retried,) = [line[1:] for line in lines if line[:1] == ["retry-on"]]
    assert {"conn-failure", "empty-response", "500", "502", "503", "504"} <= set(retried)
    assert ["option", "redispatch", "1"] in lines
    assert [line for line in lines if line[:2] == ["timeout", "queue"]]
    servers = [line for line in lines if line[:1] == ["server"]]
    assert all({"maxconn", "observe", "layer7", "mark-down"} <= set(server) for server in servers)


@pytest.mark.parametrize("arm", [arm for arm in PREPARE if arm.startswith("envoy")])
def test_envoy_takes_its_configuration(arm: str, tmp_path: Path) -> None:
    """By Envoy's own check."""
    command = PREPARE[arm](tmp_path, 8080, PORTS)
    subprocess.run([*command, "--mode", "validate"], check=True, capture_output=True)


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    """By nginx's own check, where it is installed; the file is written everywhere."""
    command = PREPARE["nginx-random2"](tmp_path, 8080, PORTS)
    assert "random two least_conn;" in (tmp_path / "nginx.conf").read_text()
    if shutil.which("nginx") and os.geteuid() == 0:
        subprocess.run([*command, "-t"], check=True, capture_output=True)


def synthetic(share_of_sick: dict[tuple[float, float], float]) -> Run:
    """A run of the slow scenario in which 100 requests per second come, so shared."""
    scenario = scenarios(1)["slow"]
    arrivals: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(int(scenario.until_s * 100)):
        at_s = number / 100
        share = next(
            (part for (low, high), part in share_of_sick.items() if low <= at_s < high), 0.25
        )
        sick = int((number + 1) * share) > int(number * share)
        arrivals[SICK if sick else NAMES[number % 3]].append(at_s)
    return Run(scenario, "ours-haproxy", arrivals=arrivals)


def test_reaction_counts_from_the_fault_and_from_its_end() -> None:
    """Small from the span on whose share is at most 5 %; restored at 80 % of an even share."""
    run = synthetic({(10.0, 31.0): 0.02, (31.0, 40.0): 0.0, (40.0, 50.0): 0.10})
    figures = share_figures(run)
    assert figures["small_after_s"] == pytest.approx(4.0, abs=0.4)
    assert figures["returned_after_s"] == pytest.approx(8.5, abs=1.0)
    assert figures["restored_after_s"] == pytest.approx(18.5, abs=1.0)
    never = share_figures(synthetic({}))
    assert never["small_after_s"] is None
    for_a_moment = share_figures(synthetic({(7.0, 9.2): 0.0}))
    assert for_a_moment["small_after_s"] is None


def test_clients_figures() -> None:
    """Late successes are not good, refusals are not failures, fast errors have no latency."""
    rows = [
        Row(1.0, 0.0, 0.1, OK, "b1"),
        Row(1.1, 0.0, 0.9, OK, "b1"),
        Row(1.2, 0.0, 0.001, ERROR, "b4"),
        Row(1.3, 0.0, 0.001, REFUSED, ""),
        Row(1.4, 0.0, 4.0, TIMEOUT, ""),
        Row(9.0, 0.0, 0.1, OK, "b1"),
    ]
    figures = client_figures(rows, 0.0, 5.0)
    assert (figures["requests"], figures["goodput_per_s"], figures["late"]) == (5, 0.2, 1)
    assert (figures["failed"], figures["refused"], figures["errors"]) == (2, 1, 1)
    assert figures["p99_ms"] == 4000
    assert figures["p50_ms"] == 900


def test_a_service_is_back_when_its_requests_are_good_again() -> None:
    """Counted from the end of the rush; every try counts."""
    scenario = scenarios(1)["retries"]
    assert scenario.calm_s is not None
    rows = [
        Row(at_s / 10, 0.0, 0.1 if at_s / 10 >= scenario.calm_s + 3 else 0.9, OK, "b1", 2)
        for at_s in range(int(scenario.until_s * 10))
    ]
    figures = recovery_figures(Run(scenario, "ours-ebpf", rows=rows))
    assert figures["recovered_after_s"] == pytest.approx(2.9, abs=0.15)
    assert figures["tries_per_request"] == 2
    never = [row._replace(took_s=0.9) for row in rows]
    assert recovery_figures(Run(scenario, "a", rows=never))["recovered_after_s"] is None
    assert recovery_figures(Run(scenarios(1)["slow"], "a", rows=rows)) == {}


def test_moves_and_modes_are_counted_per_minute() -> None:
    """From the beginning of the window on."""
    run = Run(scenarios(1)["healthy"], "ours-ebpf")
    run.ticks = [
        Tick(0.0, {"b1": 256, "b2": 0}, "hard", []),
        Tick(10.0, {"b1": 128, "b2": 128}, "normal", []),
        Tick(25.0, {"b1": 100, "b2": 156}, "soft", []),
        Tick(40.0, {"b1": 128, "b2": 128}, "normal", []),
    ]
    figures = decision_figures(run)
    assert figures["slot_churn_per_min"] == pytest.approx(112)
    assert figures["mode_transitions_per_min"] == pytest.approx(4)
    assert figures["restricted_s"] == pytest.approx(15)


def told(scenario: str, arm: str, **figures: Any) -> dict[str, Any]:
    """One run's figures, all well but for those that are given."""
    well = {
        "scenario": scenario,
        "arm": arm,
        "repetition": 0,
        "discarded_before": 0,
        "outside_cores": 0.1,
        "requests": 1000,
        "goodput_per_s": 230.0,
        "good_share": 0.99,
        "p50_ms": 90.0,
        "p99_ms": 300.0,
        "p999_ms": 400.0,
        "errors": 0,
        "timeouts": 0,
        "broken": 0,
        "failed": 0,
        "refused": 0,
        "late": 0,
        "lost": 0,
        "cpu_s_per_10k": 1.0,
        "settled": None,
        "small_after_s": 3.0,
        "returned_after_s": 5.0,
        "restored_after_s": 12.0,
        "recovered_after_s": 4.0,
        "slot_churn_per_min": 10.0,
        "mode_transitions_per_min": 0.0,
        "restricted_s": 0.0,
        "ticks": 100,
    }
    return {**well, **figures}


EVERYWHERE = ("healthy", "slow", "errors", "overload", "noisy", "killed", "dead")
ARMS = ("haproxy-leastconn", "haproxy-maxconn", "ours-ebpf")


def test_all_promises_are_judged_and_kept_where_all_is_well() -> None:
    """Twelve verdicts, and the page that shows them."""
    runs = [told(s, arm) for s in EVERYWHERE for arm in ARMS]
    verdicts = judge(runs, ("ours-ebpf",))
    assert len(verdicts) == 12
    assert all(verdict["passed"] for verdict in verdicts)
    document = {"seed": 1, "wall_s": 60, "runs": runs, "promises": verdicts}
    assert markdown(document).count("| PASS |") == 12


@pytest.mark.parametrize(
    ("scenario", "arm", "figures", "broken"),
    [
        ("slow", "ours-ebpf", {"goodput_per_s": 229.0}, "goodput within the objective"),
        ("slow", "ours-ebpf", {"p99_ms": 300.1}, "p99 no worse"),
        ("errors", "ours-ebpf", {"failed": 1}, "errors that clients see"),
        ("overload", "ours-ebpf", {"goodput_per_s": 215.0}, "at least 90 % of capacity"),
        ("overload", "ours-ebpf", {"failed": 1}, "explicit rejections"),
        ("killed", "ours-ebpf", {"failed": 1}, "agent killed"),
        ("dead", "ours-ebpf", {"goodput_per_s": 206.0}, "limits set by hand"),
        ("dead", "ours-ebpf", {"recovered_after_s": 20.1}, "recovered within 20 s"),
        ("dead", "ours-ebpf", {"recovered_after_s": None}, "recovered within 20 s"),
        ("slow", "ours-ebpf", {"small_after_s": 5.1}, "at most 5 % within 5 s"),
        ("slow", "ours-ebpf", {"small_after_s": None}, "at most 5 % within 5 s"),
        ("errors", "ours-ebpf", {"restored_after_s": 20.1}, "restored within 20 s"),
        ("noisy", "ours-ebpf", {"mode_transitions_per_min": 2.1}, "mode transitions"),
    ],
)
def test_a_promise_that_is_broken_is_said_so(
    scenario: str, arm: str, figures: dict[str, Any], broken: str
) -> None:
    """One figure out of bounds, one verdict."""
    runs = [
        told(s, a, **(figures if (s, a) == (scenario, arm) else {}))
        for s in EVERYWHERE
        for a in ARMS
    ]
    failed = [v["promise"] for v in judge(runs, ("ours-ebpf",)) if not v["passed"]]
    assert len(failed) == 1
    assert broken in failed[0]


def beside_experts(**changes: Any) -> list[dict[str, Any]]:
    """A run of every arm in each scenario of the short comparison; changes are ours on HAProxy."""
    runs = []
    for scenario in SHORT:
        for arm in (PLAIN, *BESIDE_EXPERTS):
            ours = {"refused_later": 0, "proxy_cpu_s_per_10k": 1.0, "agent_cores": 0.005}
            runs.append(told(scenario, arm, **ours if arm.startswith("ours") else {}))
            if arm == "ours-haproxy":
                runs[-1] |= changes
    return runs


def test_beside_experts_every_goal_has_a_verdict() -> None:
    """Goodput, errors, recovery, noise and CPU: kept where ours is no worse."""
    verdicts = judge_experts(beside_experts(), ("ours-haproxy", "ours-ebpf", "ours-envoy"))
    assert [v for v in verdicts if not v["passed"]] == []
    assert len([v for v in verdicts if v["arm"] == "ours-haproxy"]) == 7
    assert len([v for v in verdicts if v["arm"] == "ours-ebpf"]) == 7
    assert len([v for v in verdicts if v["arm"] == "ours-envoy"]) == 6


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        ({"failed": 1}, "errors that clients see"),
        ({"refused_later": 1}, "brown-out"),
        ({"proxy_cpu_s_per_10k": 9.9}, "1.1 times the CPU"),
        ({"agent_cores": 0.011}, "1 % of a core"),
    ],
)
def test_beside_experts_a_goal_that_is_missed_is_said_so(
    figures: dict[str, Any], broken: str
) -> None:
    """One figure too high, one verdict."""
    verdicts = judge_experts(beside_experts(**figures), ("ours-haproxy",))
    (missed,) = [v for v in verdicts if not v["passed"]]
    assert broken in missed["promise"]
