"""Writes the results of `bench.traffic`: traffic.json, traffic.md and the pictures."""

from pathlib import Path
from statistics import median
from typing import Any

from bench.side_by_side import Figures, arm_table, circumstances, verdict_lines, write_page
from bench.traffic.promises import judge, judge_experts, ratios
from bench.traffic.scenarios import CAPACITY_PER_S, MEAN_S, PEERS, SLO_S, scenarios
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.envoy import EnvoyDataplane
from fairlead.dataplane.haproxy import HaproxyDataplane

LABELS = {
    "haproxy-roundrobin": "HAProxy roundrobin",
    "haproxy-leastconn": "HAProxy leastconn",
    "haproxy-random2": "HAProxy random(2)",
    "haproxy-maxconn": "HAProxy leastconn, limits set by hand",
    "envoy-roundrobin": "Envoy round robin",
    "envoy-outlier": "Envoy least request + outlier detection",
    "envoy-admission": "Envoy admission control",
    "envoy-adaptive": "Envoy adaptive concurrency",
    "nginx-random2": "nginx random two",
    "envoy-expert": "Envoy by an expert: circuit breakers, adaptive concurrency, outliers, a retry",
    "nginx-expert": "nginx by an expert: max_conns, a retry",
    "ours-ebpf": "**fairlead** on eBPF",
    "ours-haproxy": "**fairlead** on HAProxy",
    "ours-envoy": "**fairlead** on Envoy",
}
COLUMNS = (
    ("good /s", "goodput_per_s", "{:.1f}"),
    ("good", "good_share", "{:.1%}"),
    ("p50 ms", "p50_ms", "{:.0f}"),
    ("p99 ms", "p99_ms", "{:.0f}"),
    ("p99.9 ms", "p999_ms", "{:.0f}"),
    ("errors", "errors", "{:.0f}"),
    ("given up, broken", "lost", "{:.0f}"),
    ("refused", "refused", "{:.0f}"),
    ("late", "late", "{:.0f}"),
    ("CPU-s /10k", "cpu_s_per_10k", "{:.2f}"),
)
REACTION = (
    ("≤ 5 % after s", "small_after_s", "{:.1f}"),
    ("back after s", "returned_after_s", "{:.1f}"),
    ("restored after s", "restored_after_s", "{:.1f}"),
)
RECOVERY = (
    ("tries", "tries_per_request", "{:.2f}"),
    ("good again after s", "recovered_after_s", "{:.1f}"),
    ("refused 10 s later", "refused_later", "{:.0f}"),
)
AGENT = (
    ("of that the proxy's", "proxy_cpu_s_per_10k", "{:.2f}"),
    ("agent, cores", "agent_cores", "{:.3f}"),
)
DECISIONS = (
    ("slots moved /min", "slot_churn_per_min", "{:.0f}"),
    ("mode changes /min", "mode_transitions_per_min", "{:.1f}"),
    ("admission not open, s", "restricted_s", "{:.1f}"),
)
PLANES = (EbpfDataplane, HaproxyDataplane, EnvoyDataplane)


def write_report(document: dict[str, Any], where: Path) -> None:
    from bench.traffic.plots import draw_plots  # noqa: PLC0415 - matplotlib is slow to import

    document["wall_s"] = round(document["wall_s"])
    for run in document["runs"]:
        run["lost"] = run["timeouts"] + run["broken"]
    arms = dict.fromkeys(run["arm"] for run in document["runs"])
    judged = judge_experts if document["experts"] else judge
    ours = tuple(arm for arm in arms if is_ours(arm))
    document["promises"] = judged(document["runs"], ours)
    if document["experts"]:
        document["ratios"] = ratios(document["runs"], ours)
    write_page(document["name"], document, where, markdown(document), draw_plots)


def is_ours(arm: str) -> bool:
    """Whether an arm is our agent, as it is or as a variant."""
    return arm not in PEERS


def markdown(document: dict[str, Any]) -> str:
    """The page: promises first, then a table per scenario, then where signals come from."""
    runs = document["runs"]
    figures, known = Figures(runs), scenarios(document["seed"])
    lines = ["# Traffic side by side", "", *_preface(document), ""]
    lines += verdict_lines(document["promises"], "arm")
    for name in dict.fromkeys(run["scenario"] for run in runs):
        lines += ["", f"## {known[name].title}", "", *_table(figures, name)]
    lines += [
        "",
        f"*Good* is a success within {SLO_S * 1000:.0f} ms of the intended sending; *late* a later "
        "success. Percentiles are of successes and of clients that gave up. *Refused* are explicit "
        "rejections (EAGAIN, ECONNREFUSED, 429, 503 with a reason), *errors* other 5xx. CPU is "
        "that of all processes of the arm; what the eBPF programs use is the client's: under a "
        "microsecond in `connect`, two more over the life of a connection (`traffic_ebpf.json`).",
        "",
        *_sources(),
    ]
    return "\n".join(lines)


def _preface(document: dict[str, Any]) -> list[str]:
    runs = document["runs"]
    repetitions = 1 + max(run["repetition"] for run in runs)
    discarded = sum(run["discarded_before"] for run in runs)
    noisy = sum(run.get("noisy", False) for run in runs)
    kept = f"; {noisy} were noisy to the last try and are kept as they are" if noisy else ""
    drawn = f"medians of {repetitions} interleaved repetitions, spread in brackets"
    return [
        f"Real proxies and our agent on one machine in {circumstances(document)}; "
        f"{drawn if repetitions > 1 else 'one repetition'}. Four backends, "
        f"{CAPACITY_PER_S:.0f} requests per second together, {MEAN_S * 1000:.0f} ms each "
        f"on average; the objective is {SLO_S * 1000:.0f} ms. All arms get the same requests at "
        "the same times, each on a connection of its own. Other work on the machine used "
        f"{median(run['outside_cores'] for run in runs):.2f} cores in the median; {discarded} runs "
        f"were discarded and repeated (generator late, or the machine busy){kept}."
    ]


def _table(figures: Figures, scenario: str) -> list[str]:
    runs = [run for arm in figures.arms(scenario) for run in figures.runs(scenario, arm)]
    columns = list(COLUMNS)
    for key, more in (
        ("agent_cores", AGENT),
        ("small_after_s", REACTION),
        ("recovered_after_s", RECOVERY),
        ("ticks", DECISIONS),
    ):
        columns += more if any(key in run for run in runs) else ()
    return arm_table(figures, scenario, who="arm", columns=columns, labels=LABELS)


def _sources() -> list[str]:
    names = " | ".join(plane.name for plane in PLANES)
    lines = ["## Where our signals come from", "", f"| signal | {names} |", "|---|---|---|---|"]
    for signal in PLANES[0].sources:
        lines.append(f"| {signal} | " + " | ".join(p.sources[signal] for p in PLANES) + " |")
    return [
        *lines,
        "",
        "On eBPF the backends' own `/metrics` are scraped every 100 ms for requests, errors, what "
        "is inside, and latency (a histogram of successes). Isolated backends are probed with a "
        f"request of {MEAN_S * 1000:.0f} ms of work. The proxies' rules use what they see in "
        "passing: open requests, and Envoy answers and their latency.",
        "",
    ]
