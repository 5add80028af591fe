"""Writes the Grafana dashboards of the three governors from the panels below.

`make docs` runs it; a test compares the files with what it would write, and asks a real Prometheus
every expression.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "deploy" / "chart" / "fairlead" / "files" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 12, 8


@dataclass(frozen=True)
class Panel:
    """One picture: expressions with their legends."""

    title: str
    about: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    stacked: bool = False


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))", f"p{p}")
        for q, p in ((0.5, 50), (0.95, 95), (0.99, 99))
    )


GPU = (
    Panel(
        *(
            "GPUs by state",
            "Every GPU once; free ones that are not cordoned can be given out.",
            "short",
        ),
        ((("sum by (state) (fairlead_gpu_devices)"), "{{state}}"),),
        stacked=True,
    ),
    Panel(
        *(
            "Leased GPUs that do nothing",
            "All devices of their runs were idle when read last.",
            "short",
        ),
        (("sum by (flavor) (fairlead_gpu_devices_idle)", "{{flavor}}"),),
    ),
    Panel(
        *("Runs by phase", "Ended runs count until they are deleted.", "short"),
        (('fairlead_gpu_runs{phase=~"Pending|Running"}', "{{phase}}"),),
    ),
    Panel(
        *("Longest wait now", "Of a run that waits in the queue.", "s"),
        (("max(fairlead_gpu_queue_oldest_seconds)", "oldest"),),
        kind="stat",
    ),
    Panel(
        *("Wait in the queue", "From submission to the first start, of runs that started.", "s"),
        _quantiles("fairlead_gpu_queue_wait_seconds"),
    ),
    Panel(
        *("One pass over the queue", "Time that admission takes in a turn.", "s"),
        _quantiles("fairlead_gpu_admission_seconds"),
    ),
    Panel(
        *("Turns of the control plane", "p99 must stay below a second.", "s"),
        _quantiles("fairlead_gpu_turn_seconds"),
    ),
    Panel(
        *("Preemptions per hour", "Runs that had to give back GPUs, by reason.", "short"),
        (("sum by (reason) (increase(fairlead_gpu_preemptions_total[1h])) > 0", "{{reason}}"),),
    ),
    Panel(
        *("Reservations", "Blocked ones are due and cannot start.", "short"),
        (('fairlead_gpu_reservations{state!="Released"}', "{{state}}"),),
    ),
    Panel(
        *("GPUs in use by envelope", "With what is lent to borrowers.", "short"),
        (
            ("budget_concurrency_used", "{{budget}}/{{envelope}}"),
            ("budget_lent_gpus > 0", "lent by {{budget}}/{{envelope}}"),
        ),
    ),
    Panel(
        *("GPU-hours left in the period", "Holds are taken off.", "h"),
        (("budget_gpu_hours_remaining", "{{budget}}/{{envelope}}"),),
    ),
    Panel(
        *(
            "Funding decisions per minute",
            "By result: funded, or the code of the refusal.",
            "short",
        ),
        (("sum by (result) (rate(cover_plans_total[$__rate_interval])) * 60", "{{result}}"),),
    ),
    Panel(
        *("Use of each run's GPUs", "Read every ten seconds.", "percent"),
        (("gpu_run_utilisation_percent", "{{owner}}/{{run}}"),),
    ),
    Panel(
        *("Resolves", "Completed; and what they took.", "short"),
        (
            ("resolver_invocations_total", "resolves"),
            ("resolver_spares_dropped_total", "spares dropped"),
            ("resolver_shrinks_total", "shrinks"),
            ("resolver_lottery_draws_total", "selected by lottery"),
        ),
    ),
    Panel(
        *("Ledger", "Entries per second; 0 below: it cannot be written.", "short"),
        (
            ("rate(fairlead_ledger_entries_total[$__rate_interval])", "entries/s"),
            ("fairlead_ledger_writable", "writable"),
        ),
    ),
    Panel(
        *(
            "Needs a look",
            "Silent agents, quarantined GPUs, lasting faults, a clock that is behind.",
            "short",
        ),
        (
            ('sum(fairlead_reported{state="stale"})', "silent nodes and groups"),
            ("gpu_devices_quarantined", "quarantined"),
            ("fairlead_control_plane_faults", "faults"),
            ("ledger_clock_behind_seconds", "clock behind (s)"),
        ),
    ),
)
CPU = (
    Panel(
        *(
            "Nodes by mode",
            "Congested: a policy divides. Overloaded: minimums do not fit.",
            "short",
        ),
        (("sum by (mode) (apex_allocation_mode)", "{{mode}}"),),
        stacked=True,
    ),
    Panel(
        *("Need, limits and capacity", "Of each node, in cores.", "short"),
        (
            ("fairlead_cpu_need_cores", "need {{instance}}"),
            ("fairlead_cpu_limits_cores", "limits {{instance}}"),
            ("fairlead_cpu_capacity_cores", "capacity {{instance}}"),
        ),
    ),
    Panel(
        *("Allocation", "What each pod got, the ten largest, in cores.", "short"),
        (("topk(10, apex_allocation_milli) / 1000", "{{namespace}} {{pod}}"),),
    ),
    Panel(
        *("Need", "What each pod needs, the ten largest, in cores.", "short"),
        (("topk(10, apex_need_milli) / 1000", "{{namespace}} {{pod}}"),),
    ),
    Panel(
        *("Throttled periods", "Smoothed share, the ten largest.", "percentunit"),
        (("topk(10, fairlead_cpu_throttled_ratio)", "{{namespace}} {{pod}}"),),
    ),
    Panel(
        *("Use of the allocation", "The ten largest.", "percentunit"),
        (("topk(10, apex_headroom_utilization)", "{{namespace}} {{pod}}"),),
    ),
    Panel(
        *(
            "Cut below the need",
            "(need − allocation)/(need − baseline), the ten largest.",
            "percentunit",
        ),
        (("topk(10, apex_nash_reduction_ratio)", "{{namespace}} {{pod}}"),),
    ),
    Panel(
        *("Shadow price", "What one more millicore would be worth; none where all fits.", "short"),
        (("fairlead_cpu_shadow_price", "{{instance}}"),),
    ),
    Panel(
        *("CPU pressure", "Share of time in which some task waited (PSI).", "percentunit"),
        (("rate(fairlead_cpu_pressure_some_seconds_total[$__rate_interval])", "{{instance}}"),),
    ),
    Panel(
        *("Clearings and writes per second", "What the agents do.", "short"),
        (
            ("rate(fairlead_cpu_clears_total[$__rate_interval])", "clearings {{instance}}"),
            ("rate(fairlead_cpu_limit_writes_total[$__rate_interval])", "writes {{instance}}"),
        ),
    ),
    Panel(
        *("What went wrong", "Per hour.", "short"),
        (
            ("increase(fairlead_cpu_limit_write_failures_total[1h])", "failed writes {{instance}}"),
            ("increase(fairlead_cpu_samples_missed_total[1h])", "missed samples {{instance}}"),
            ("increase(fairlead_cpu_faults_total[1h])", "faults {{instance}}"),
        ),
    ),
    Panel(
        *("Agents that only observe", "They explain, and write no limit.", "short"),
        (("sum(fairlead_cpu_observe_only)", "observe only"),),
        kind="stat",
    ),
)
TRAFFIC = (
    Panel(
        *("Admission", "0 normal, 1 soft (shedding), 2 hard (closed).", "short"),
        (
            (
                'sum by (group) (fairlead_traffic_mode{mode="soft"})'
                ' + 2 * sum by (group) (fairlead_traffic_mode{mode="hard"})',
                "{{group}}",
            ),
        ),
    ),
    Panel(
        *("Requests per second", "Admitted and rejected.", "reqps"),
        (
            (
                "rate(fairlead_traffic_requests_admitted_total[$__rate_interval])",
                "{{group}} admitted",
            ),
            (
                "rate(fairlead_traffic_requests_refused_soft_total[$__rate_interval])",
                "{{group}} rejected (429)",
            ),
            (
                "rate(fairlead_traffic_requests_refused_hard_total[$__rate_interval])",
                "{{group}} rejected (503)",
            ),
        ),
    ),
    Panel(
        *("Slots", "Shares of the group's requests.", "short"),
        (("fairlead_traffic_backend_slots", "{{group}}/{{backend}}"),),
        stacked=True,
    ),
    Panel(
        *("Pressure", "P of the equations: 0 idle, 1 at its limit.", "short"),
        (("fairlead_traffic_backend_pressure", "{{group}}/{{backend}}"),),
    ),
    Panel(
        *("Latency (p95)", "Of successes, over 5 s.", "s"),
        (("fairlead_traffic_backend_p95_seconds", "{{group}}/{{backend}}"),),
    ),
    Panel(
        *("Errors", "Failures per request, over 5 s.", "percentunit"),
        (("fairlead_traffic_backend_error_ratio", "{{group}}/{{backend}}"),),
    ),
    Panel(
        *("Queues", "Waiting for a backend and in it.", "short"),
        (("fairlead_traffic_backend_queue_requests", "{{group}}/{{backend}}"),),
    ),
    Panel(
        *("Ejected backends", "They get nothing.", "short"),
        (("sum by (group) (fairlead_traffic_backend_isolated)", "{{group}}"),),
    ),
    Panel(
        *("Reasons", "Of the last tick.", "short"),
        (("sum by (reason) (fairlead_traffic_reason) > 0", "{{reason}}"),),
    ),
    Panel(
        *("Time to failure", "Until a resource of a machine runs out; none: none does.", "s"),
        (("fairlead_traffic_time_to_failure_seconds", "{{group}}"),),
    ),
    Panel(
        *("Conductance", "How easily requests flow; soft below 0.3.", "percentunit"),
        (("fairlead_traffic_conductance_ratio", "{{group}}"),),
    ),
    Panel(
        *("Ticks", "Time per tick must stay well under 0.2 s.", "s"),
        (
            (
                "rate(fairlead_traffic_tick_seconds_total[$__rate_interval])"
                " / rate(fairlead_traffic_ticks_total[$__rate_interval])",
                "time per tick {{instance}}",
            ),
        ),
    ),
    Panel(
        *(
            "Decisions that are not in force",
            "And proxies that lost the agent's heartbeat.",
            "short",
        ),
        (
            ("fairlead_traffic_in_force == 0", "{{group}} not in force"),
            ('fairlead_traffic_plane_liveness{liveness!="normal"} == 1', "{{group}} {{liveness}}"),
        ),
    ),
    Panel(
        *("Changes per hour", "Of admission, isolation, failsafe.", "short"),
        (
            (
                "sum by (group, what) (increase(fairlead_traffic_transitions_total[1h]))",
                "{{group}} {{what}}",
            ),
        ),
    ),
)
DASHBOARDS = {
    "gpu": ("Fairlead: GPUs", GPU),
    "cpu": ("Fairlead: node CPU", CPU),
    "traffic": ("Fairlead: service traffic", TRAFFIC),
}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal" if panel.stacked else "none"}, "fillOpacity": 10}
    place = {"x": (number % 2) * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.lines)
        ],
    }


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana 10 and later read it."""
    title, panels = DASHBOARDS[name]
    variable = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Source",
    }
    return {
        "uid": f"fairlead-{name}",
        "title": title,
        "tags": ["fairlead"],
        "schemaVersion": 38,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def text(name: str) -> str:
    """The file as it should be."""
    return json.dumps(dashboard(name), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
