"""Tables for people and for chargeback, worked out from the projection.

A border: rows are documents, as the API shows them.
"""

from collections.abc import Iterator
from typing import Any, cast

from msgspec import structs

from fairlead.core.gpu import Envelope, Usage
from fairlead.core.reasons import CoverRefusal
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document
from fairlead.engine.gpu.fold import COUNTED
from fairlead.engine.gpu.objects import Objects
from fairlead.engine.gpu.projection import DayKey, node_spec
from fairlead.engine.gpu.resolver.export import OutcomeReports
from fairlead.engine.gpu.settlement import Settlement
from fairlead.engine.gpu.state import LeaseFact
from fairlead.engine.gpu.status import lease_document
from fairlead.engine.gpu.utilisation import Utilisation
from fairlead.ports.ledger import Archived
from fairlead.schema.times import format_time, hours

Rows = list[Document]


class Reports:
    """Read-only questions over all objects."""

    def __init__(
        self,
        committer: Committer,
        objects: Objects,
        settlement: Settlement,
        outcomes: OutcomeReports,
        utilisation: Utilisation,
    ) -> None:
        self._utilisation = utilisation
        self._committer, self._objects = committer, objects
        self._settlement, self._outcomes = settlement, outcomes
        self._projection = committer.projection
        self._scraped: dict[tuple[str, str], int] = {}
        """The highest value that each hour counter was shown with."""

    def budgets(self) -> Rows:
        """One row per envelope: what it grants, what is used, held and left."""
        rows: Rows = []
        for budget in self._objects.list("Budget"):
            spec, status = budget["spec"], budget["status"]
            true = [row["type"] for row in status["conditions"] if row["status"] == "True"]
            for envelope, row in zip(spec["envelopes"], status["headroom"], strict=True):
                rows.append(
                    {
                        "budget": budget["metadata"]["name"],
                        "owner": spec["owner"],
                        "envelope": row["name"],
                        "flavor": row["flavor"],
                        "location": envelope["location"],
                        "limit_gpus": envelope["concurrency"],
                        "limit_gpu_hours": envelope["maxGPUHours"],
                        **{column: row[name] for column, name in _HEADROOM.items()},
                        "conditions": true,
                    }
                )
        return rows

    def leases(self) -> Rows:
        with self._committer.current() as projection:
            now_ms, rows = self._committer.now(), []
            for _, lease in sorted(projection.leases.items()):
                document = lease_document(projection, lease, now_ms)
                spec, status = document["spec"], document["status"]
                rows.append(
                    {
                        "lease": lease.id,
                        **{key: spec[key] for key in ("run", "owner", "role", "group", "slots")},
                        "gpus": lease.gpus,
                        **spec["payer"],
                        "borrowed": lease.borrowed,
                        "funded": status["funded"],
                        "virtual": status["virtual"],
                        "start": spec["start"],
                        "expected_end": spec["expectedEnd"],
                        "gpu_hours": status["gpuHours"],
                    }
                )
            return rows

    def sponsors(self, owner: str, flavor: str) -> Rows:
        """Envelopes outside the family that lend to an owner, with what they can still lend."""
        with self._committer.current():
            now_ms = self._committer.now()
            book = self._projection.book(now_ms)
            family = set(book.families.kin(owner))
            rows: Rows = []
            for budget in book.budgets:
                for envelope in budget.envelopes:
                    if envelope.flavor != flavor or not envelope.lending.admits(owner):
                        continue
                    used = book.used(budget.name, envelope.name)
                    lending = envelope.lending
                    free = envelope.gpus - used.gpus
                    if lending.max_gpus is not None:
                        free = min(free, lending.max_gpus - used.lent_gpus)
                    rows.append(
                        {
                            "owner": budget.owner,
                            "budget": budget.name,
                            "envelope": envelope.name,
                            "location": dict(envelope.location),
                            "free_gpus": max(0, free),
                            "lent_gpus": used.lent_gpus,
                            "free_gpu_hours": _lendable(envelope, used),
                            "open": envelope.is_open(now_ms),
                            "family": budget.owner in family,
                        }
                    )
            return rows

    def owes(self) -> Rows:
        """Who owes whom: loans by borrower and lender, GPUs now and GPU-hours ever."""
        with self._committer.current():
            sums: dict[tuple[str, str], list[int]] = {}
            for (_, owner, payer, _, _, borrowed), (used_ms, _) in self._charges().items():
                if borrowed:
                    sums.setdefault((owner, payer), [0, 0])[1] += used_ms
            for lease in self._projection.leases.values():
                if lease.borrowed:
                    sums.setdefault((lease.owner, lease.payer), [0, 0])[0] += lease.gpus
            return [
                {"borrower": borrower, "lender": lender, "gpus": gpus, "gpu_hours": hours(used_ms)}
                for (borrower, lender), (gpus, used_ms) in sorted(sums.items())
            ]

    def charges(self) -> Rows:
        """Charges in GPU-milliseconds by UTC day, owner and envelope; open leases up to now."""
        with self._committer.current():
            rows = sorted(self._charges().items())
            return [dict(zip(_CHARGE, (*key, *sums), strict=True)) for key, sums in rows]

    def accruals(self) -> Rows:
        """What each open lease comes to so far, by UTC day; in GPU-milliseconds."""
        with self._committer.current():
            return [
                {"lease": lease.id, "run": lease.run, **dict(zip(_CHARGE, row, strict=True))}
                for lease, row in self._accrued()
            ]

    def virtual_nodes(self) -> frozenset[str]:
        with self._committer.current() as projection:
            return projection.virtual_nodes()

    def uses(self) -> Rows:
        """How busy leased devices were since the last `gpu.used`, as that would say it."""
        with self._committer.current():
            return [structs.asdict(row) for row in self._utilisation.rows()]

    def explain(self, kind: str, name: str) -> Document:
        """Why an object is as it is: its status, and the recorded decisions behind it."""
        with self._committer.current():
            document = self._objects.document(kind, name)
            if kind == "Budget":
                paid = [row for row in self.leases() if row["budget"] == name]
                return {"object": document, "leases": paid}
            if kind == "Node":
                return {"object": document, "runs": self._projection.runs_on(name)}
            if kind == "Reservation":
                return {
                    "object": document,
                    "run": self._objects.get("Run", document["spec"]["run"]),
                }
            state = self._projection.runs[name]
            mine = [row for row in self.leases() if row["run"] == name]
            return {
                "object": document,
                "leases": mine,
                "cover": self._decision(state.cover_seq),
                "placement": self._decision(state.place_seq),
                "waitingFor": state.refusal.remedy if state.refusal else None,
                "cordoned": self._cordoned(name) if state.reason == "NoDevices" else [],
                "cut": self._outcomes.last_loss(name),
                "left": None if state.left is None else state.left.message,
                "atRisk": [
                    {
                        "start": format_time(row.start_ms),
                        "chance": row.chance,
                        "chanceError": row.chance_error,
                        "message": row.message,
                    }
                    for row in sorted(state.warned.values(), key=lambda row: row.start_ms)
                    if row.start_ms > self._committer.now() and state.leases
                ],
            }

    def _cordoned(self, run: str) -> Rows:
        """Nodes whose free devices would be of the run's flavor, and are not given out."""
        flavor, projection = self._projection.run_spec(run).flavor, self._projection
        rows = []
        for stored in projection.of_kind("Node"):
            spec = node_spec(stored)
            free = spec.devices - len(projection.taken.get(stored.name, {}))
            if spec.cordoned and spec.flavor == flavor and free:
                rows.append({"node": stored.name, "free": free})
        return rows

    def living(self) -> frozenset[str]:
        """Runs that have not ended: they run, or may start again."""
        with self._committer.current():
            return frozenset(self._projection.live)

    def _clock_metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        found, reading = self._committer.clock.time()
        behind_ms = max(0, self._committer.now() - reading.wall_ms)
        return {
            "ledger_clock_behind_seconds": [({}, behind_ms / 1000)],
            "fairlead_clock_held": [({}, int(found.reason.jumped))],
        }

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Plain values by metric name, each with its labels; counters never go down."""
        with self._committer.current():
            projection, totals = self._projection, self._totals()
            found: dict[str, list[tuple[dict[str, str], float]]] = {
                # A series that began with its first refusal would hide it from `increase`.
                "cover_plans_total": [
                    ({"result": result}, count)
                    for result, count in sorted((_NO_PLANS | projection.plans).items())
                ],
                "budget_lending_denied_total": _labelled(
                    {
                        (budget.name, envelope.name): 0
                        for budget in projection.budgets.values()
                        for envelope in budget.envelopes
                    }
                    | projection.denied
                ),
                **self._clock_metrics(),
                **{
                    name: [({}, projection.resolver.counters.get(name, 0))]
                    for name in sorted(COUNTED.values())
                },
                "budget_gpu_hours_total": [
                    (labels, amount / 3_600_000) for labels, amount in _labelled(totals)
                ],
            }
        found |= self._run_metrics()
        for metric, column in _GAUGES.items():
            found[metric] = [
                ({"budget": row["budget"], "envelope": row["envelope"]}, row[column])
                for row in self.budgets()
                if row[column] is not None
            ]
        return found

    def _run_metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """How busy the devices of each run are, and what they hold; and what is quarantined."""
        with self._committer.current() as projection:
            runs = [
                ({"run": name, "owner": projection.run_spec(name).owner}, use)
                for name, state in sorted(projection.live.items())
                if (use := self._utilisation.of(state)) is not None
            ]
            return {
                "gpu_run_utilisation_percent": [(labels, use.percent) for labels, use in runs],
                "gpu_run_memory_bytes": [(labels, use.memory_bytes) for labels, use in runs],
                "gpu_devices_quarantined": [({}, len(projection.quarantined))],
            }

    def _totals(self) -> dict[tuple[str, str], int]:
        """All GPU-milliseconds by payer; none before the first turn. A counter must not go down,
        over a restart neither: what is not posted counts up to the last turn only, because a lease
        may have ended since. A word that came later still (a disk that was full under a shim) is
        made up for by waiting until the truth is above what was shown."""
        until_ms = self._settlement.ends_known_ms
        if until_ms is None:
            return {}
        totals = dict(self._projection.posted)
        for lease in self._projection.leases.values():
            key = (lease.budget, lease.envelope)
            elapsed = lease.gpus * max(0, until_ms - lease.start_ms)
            totals[key] = totals.get(key, 0) + elapsed
        for key, total in totals.items():
            self._scraped[key] = max(total, self._scraped.get(key, 0))
        return dict(self._scraped)

    def _decision(self, seq: int | None) -> Document | None:
        try:
            entry = None if seq is None else self._committer.ledger.entry(seq)
        except Archived:
            entry = None
        if entry is None:
            return None
        return {
            "seq": entry.seq,
            "kind": entry.kind,
            "time": format_time(entry.time_ms),
            "input_digest": entry.input_digest,
            "output": entry.body["output"],
        }

    def _charges(self) -> dict[DayKey, list[int]]:
        charges = {key: list(sums) for key, sums in self._projection.charges.items()}
        for _, (*key, used_ms, overdraft_ms) in self._accrued():
            sums = charges.setdefault(cast(DayKey, tuple(key)), [0, 0])
            sums[0] += used_ms
            sums[1] += overdraft_ms
        return charges

    def _accrued(self) -> Iterator[tuple[LeaseFact, tuple[Any, ...]]]:
        """Every open lease, and what it comes to so far: a row of `_CHARGE` per UTC day."""
        now_ms = self._committer.now()
        for lease in self._projection.leases.values():
            payer = (lease.payer, lease.budget, lease.envelope, lease.borrowed)
            account = self._projection.accounts.of_lease(lease.id)
            for part in account.quote(lease.id, max(now_ms, lease.start_ms)).parts:
                yield lease, (part.day, lease.owner, *payer, part.used_ms, part.overdraft_ms)


_NO_PLANS = dict.fromkeys(("funded", *(code.value for code in CoverRefusal)), 0)
_HEADROOM = {
    "used_gpus": "concurrencyUsed",
    "free_gpus": "concurrency",
    "lent_gpus": "lentGPUs",
    "used_gpu_hours": "gpuHoursUsed",
    "held_gpu_hours": "gpuHoursHeld",
    "free_gpu_hours": "gpuHours",
    "overdraft_gpu_hours": "overdraftGPUHours",
    "period_end": "periodEnd",
}
"""Columns of a budget's row, and the fields of its status that they show."""
_CHARGE = (
    *("day", "owner", "payer", "budget", "envelope", "borrowed"),
    *("used_ms", "overdraft_ms"),
)
_GAUGES = {
    "budget_concurrency_used": "used_gpus",
    "budget_concurrency_remaining": "free_gpus",
    "budget_gpu_hours_used": "used_gpu_hours",
    "budget_gpu_hours_remaining": "free_gpu_hours",
    "budget_lent_gpus": "lent_gpus",
}


def _labelled(values: dict[tuple[str, str], int]) -> list[tuple[dict[str, str], float]]:
    return [
        ({"budget": budget, "envelope": envelope}, value)
        for (budget, envelope), value in sorted(values.items())
    ]


def _lendable(envelope: Envelope, used: Usage) -> float | None:
    """Hours that an envelope can still lend; None: no limit."""
    limits = []
    if envelope.max_hours_ms is not None:
        limits.append(envelope.max_hours_ms - used.used_ms - used.held_ms)
    if envelope.lending.max_hours_ms is not None:
        limits.append(envelope.lending.max_hours_ms - used.lent_used_ms - used.lent_held_ms)
    return max(0, min(limits)) / 3_600_000 if limits else None
