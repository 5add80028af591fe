"""Every metric of every process: the one table that `/metrics` and its documentation come from.

`exposition` turns samples into Prometheus families by this table, and refuses names that it does
not hold. `docs/reference/metrics.md` is written from it.
"""

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Types of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Process(StrEnum):
    """The programs that serve `/metrics`."""

    CONTROL_PLANE = "control plane"
    CONTROLLER = "Kubernetes controller"
    NODE_AGENT = "node agent"
    TRAFFIC_AGENT = "traffic agent"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric as it is scraped."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]


LABELS = {
    "agent": "agents that report, by the name in their token; at most 512 are kept",
    "backend": "backends of a group, as the agent's configuration or the RouteGroup names them",
    "budget": "budgets, which only administrators create",
    "envelope": "envelopes of a budget",
    "flavor": "flavors of nodes, which only administrators create",
    "group": "groups of the agent's configuration, or RouteGroups",
    "kind": "closed list: `node`, `group`",
    "liveness": "closed list",
    "metric": "metrics of this table",
    "mode": "closed list",
    "namespace": "of the pod; empty on plain cgroups",
    "node": "the agent's own node: one value",
    "owner": "of the run",
    "phase": "closed list: `Pending`, `Running`, `Completed`, `Failed`",
    "pod": "pods or cgroups of the node that the agent governs",
    "reason": "closed list; what is not in it is `other`",
    "result": "closed list: `funded` and the codes of a refusal",
    "run": "runs that hold devices now: at most as many as there are devices",
    "state": "closed list",
    "version": "of this program: one value",
    "what": "closed list",
}
"""What each label holds, and so what bounds it. Tenants choose the values of `run`, and in a
cluster of `namespace`, `pod`, `group` and `backend`."""
SERIES_MAX = 2_000
"""Series of one metric in one scrape; the rest is left out, and `LEFT_OUT` says how many."""
LEFT_OUT = "fairlead_metrics_left_out"
BUILD = "fairlead_build_info"
PAYER = ("budget", "envelope")

_G, _C, _H = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM
_CONTROL_PLANE: tuple[tuple[MetricKind, str, str, tuple[str, ...]], ...] = (
    (_G, "fairlead_gpu_runs", "runs by phase, as long as they are not deleted", ("phase",)),
    (_G, "fairlead_gpu_queue_oldest_seconds", "how long the oldest waiting run waits", ()),
    (_H, "fairlead_gpu_queue_wait_seconds", "from a run's submission to its first start", ()),
    (_H, "fairlead_gpu_admission_seconds", "time that one pass over the queue took", ()),
    (_H, "fairlead_gpu_turn_seconds", "time that one turn of the control plane took", ()),
    (_G, "fairlead_gpu_devices", "GPUs of all nodes, each in one state", ("flavor", "state")),
    (_G, "fairlead_gpu_devices_idle", "leased GPUs of runs that use none of theirs", ("flavor",)),
    (_G, "fairlead_gpu_reservations", "reservations by state", ("state",)),
    (_C, "fairlead_gpu_preemptions_total", "runs that had to give back GPUs", ("reason",)),
    (_G, "gpu_devices_quarantined", "GPUs that hold memory that no run has", ()),
    (_G, "gpu_run_utilisation_percent", "how busy the GPUs of the run are", ("run", "owner")),
    (_G, "gpu_run_memory_bytes", "GPU memory that the run holds", ("run", "owner")),
    (_G, "budget_concurrency_used", "GPUs in use that the envelope pays for", PAYER),
    (_G, "budget_concurrency_remaining", "GPUs that the envelope could still pay for", PAYER),
    (_G, "budget_gpu_hours_used", "GPU-hours used in the current period", PAYER),
    (_G, "budget_gpu_hours_remaining", "left in the current period, holds taken off", PAYER),
    (_C, "budget_gpu_hours_total", "GPU-hours ever charged to the envelope", PAYER),
    (_G, "budget_lent_gpus", "GPUs in use by borrowers", PAYER),
    (_C, "budget_lending_denied_total", "refusals because of the lending rules", PAYER),
    (_C, "cover_plans_total", "recorded funding decisions", ("result",)),
    (_C, "resolver_invocations_total", "completed resolves", ()),
    (_C, "resolver_spares_dropped_total", "spare leases ended by preemption", ()),
    (_C, "resolver_shrinks_total", "leases of malleable runs ended by preemption", ()),
    (_C, "resolver_lottery_draws_total", "gangs selected by the lottery and preempted", ()),
    (_C, "fairlead_ledger_entries_total", "entries of the ledger", ()),
    (_G, "fairlead_ledger_writable", "1 while entries can be recorded", ()),
    (_G, "ledger_clock_behind_seconds", "seconds that the clock is behind ledger time", ()),
    (_G, "fairlead_clock_held", "1 while the clock has jumped and no run is started", ()),
    (
        *(_G, "fairlead_reported"),
        *("nodes and groups that agents report, by whether news still come", ("kind", "state")),
    ),
    (
        *(_G, "fairlead_agent_report_age_seconds"),
        *("since the oldest news of the agent's nodes or groups", ("kind", "agent")),
    ),
    (_G, "fairlead_control_plane_faults", "environment errors that last, as in /healthz", ()),
)
_CONTROLLER: tuple[tuple[MetricKind, str, str, tuple[str, ...]], ...] = (
    (_G, "fairlead_kube_leader", "1 on the controller that leads, else 0", ()),
    (_C, "fairlead_kube_turns_total", "turns of the controller that succeeded", ()),
    (_C, "fairlead_kube_turn_failures_total", "parts of a turn that failed, to be retried", ()),
    (_C, "fairlead_kube_requests_total", "requests sent to the API server", ()),
    (_C, "fairlead_kube_queries_total", "Queries that were answered", ()),
    (_C, "fairlead_kube_pod_mismatches_total", "pods that were not as their run is leased", ()),
)
_POD = ("pod", "namespace")
_NODE_AGENT: tuple[tuple[MetricKind, str, str, tuple[str, ...]], ...] = (
    (_G, "apex_allocation_mode", "1 for the current mode, 0 for the others", ("node", "mode")),
    (_G, "apex_need_milli", "what the pod needs, in millicores", _POD),
    (_G, "apex_allocation_milli", "what the pod got, in millicores", _POD),
    (_G, "apex_nash_reduction_ratio", "(need - allocation)/(need - baseline)", _POD),
    (_G, "apex_headroom_utilization", "actual usage / allocation", _POD),
    (_G, "fairlead_cpu_throttled_ratio", "smoothed share of throttled periods", _POD),
    (_G, "fairlead_cpu_contained", "1 while a limit contains the pod beside its guarantee", _POD),
    (_G, "fairlead_cpu_capacity_cores", "what may be handed out", ()),
    (_G, "fairlead_cpu_need_cores", "sum of needs", ()),
    (_G, "fairlead_cpu_min_cores", "sum of minimums", ()),
    (_G, "fairlead_cpu_limits_cores", "sum of our limits (with weights: guarantees) in force", ()),
    (_G, "fairlead_cpu_shadow_price", "marginal value of one more millicore", ()),
    (_G, "fairlead_cpu_observe_only", "1 while limits are not touched", ()),
    (_C, "fairlead_cpu_clears_total", "clearings decided", ()),
    (_C, "fairlead_cpu_limit_writes_total", "limits written", ()),
    (_C, "fairlead_cpu_limit_write_failures_total", "limits that could not be written", ()),
    (_C, "fairlead_cpu_samples_missed_total", "samples that came too late", ()),
    (_C, "fairlead_cpu_faults_total", "temporary faults survived, such as a full disk", ()),
    (_C, "fairlead_cpu_pressure_some_seconds_total", "time some task waited for CPU (PSI)", ()),
)
_GROUP, _BACKEND = ("group",), ("group", "backend")
_TRAFFIC_AGENT: tuple[tuple[MetricKind, str, str, tuple[str, ...]], ...] = (
    (_C, "fairlead_traffic_ticks_total", "ticks decided", ()),
    (_C, "fairlead_traffic_ticks_early_total", "ticks ahead of time, for urgent signals", ()),
    (_C, "fairlead_traffic_ticks_missed_total", "ticks skipped because the agent was late", ()),
    (_C, "fairlead_traffic_tick_seconds_total", "time spent in ticks", ()),
    (_C, "fairlead_traffic_flips_total", "tables applied", ()),
    (_C, "fairlead_traffic_faults_total", "environment errors that the agent survived", ()),
    (
        *(_C, "fairlead_traffic_transitions_total"),
        *("changes of admission, isolation or liveness", ("group", "what")),
    ),
    (_G, "fairlead_traffic_mode", "1 for the admission mode", ("group", "mode")),
    (
        *(_G, "fairlead_traffic_plane_liveness"),
        *("1 for what the heartbeat's age shows", ("group", "liveness")),
    ),
    (_G, "fairlead_traffic_reason", "1 for the reasons of the last tick", ("group", "reason")),
    (
        *(_G, "fairlead_traffic_admission_rate_per_second"),
        *("admitted per second, while admission is restricted", _GROUP),
    ),
    (_G, "fairlead_traffic_inside_max", "how many may be inside at once", _GROUP),
    (_G, "fairlead_traffic_conductance_ratio", "how easily requests flow; soft below 0.3", _GROUP),
    (_G, "fairlead_traffic_skew_ratio", "how far requests are from the weights", _GROUP),
    (
        *(_G, "fairlead_traffic_time_to_failure_seconds"),
        *("until a resource of a machine runs out", _GROUP),
    ),
    (_G, "fairlead_traffic_stalled", "1 while a machine stalls", _GROUP),
    (_G, "fairlead_traffic_in_force", "1 while the last decision is in force", _GROUP),
    (_G, "fairlead_traffic_scale_hint", "1 while more backends or machines are needed", _GROUP),
    (_C, "fairlead_traffic_requests_admitted_total", "requests admitted", _GROUP),
    (_C, "fairlead_traffic_requests_refused_soft_total", "requests rejected with 429", _GROUP),
    (_C, "fairlead_traffic_requests_refused_hard_total", "requests rejected with 503", _GROUP),
    (_G, "fairlead_traffic_backend_slots", "of the group's slots", _BACKEND),
    (_G, "fairlead_traffic_backend_target_slots", "where its slots are going", _BACKEND),
    (_G, "fairlead_traffic_backend_pressure", "P of the equations", _BACKEND),
    (_G, "fairlead_traffic_backend_p95_seconds", "latency of successes, over 5 s", _BACKEND),
    (_G, "fairlead_traffic_backend_error_ratio", "failures per request, over 5 s", _BACKEND),
    (_G, "fairlead_traffic_backend_queue_requests", "waiting for it and in it", _BACKEND),
    (_G, "fairlead_traffic_backend_isolated", "1 while it gets nothing", _BACKEND),
    (_C, "fairlead_traffic_backend_requests_total", "requests sent to it", _BACKEND),
)
_EVERYWHERE: tuple[tuple[MetricKind, str, str, tuple[str, ...]], ...] = (
    (_G, BUILD, "1, with the version of the program", ("version",)),
    (_G, LEFT_OUT, "series that were left out of this scrape: there are too many", ("metric",)),
)
METRICS: dict[Process, tuple[MetricRow, ...]] = {
    process: tuple(MetricRow(name, kind, text, labels) for kind, name, text, labels in rows)
    for process, rows in (
        (Process.CONTROL_PLANE, (*_EVERYWHERE, *_CONTROL_PLANE)),
        (Process.CONTROLLER, (*_EVERYWHERE, *_CONTROLLER, *_CONTROL_PLANE)),
        (Process.NODE_AGENT, (*_EVERYWHERE, *_NODE_AGENT)),
        (Process.TRAFFIC_AGENT, (*_EVERYWHERE, *_TRAFFIC_AGENT)),
    )
}
"""What each process serves; the controller that leads serves the control plane's, too."""
