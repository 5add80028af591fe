"""`ControlPlane`: wires the services on one committer, and orders one turn."""

from collections.abc import Callable

from fairlead.engine.gpu.admission import RunAdmission
from fairlead.engine.gpu.burndown import BurnDown
from fairlead.engine.gpu.clock import LedgerClock, one_clock
from fairlead.engine.gpu.clock_watch import ClockWatch
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.dependencies import RunDependencies
from fairlead.engine.gpu.device_map import DeviceMap
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import ControlRecovered
from fairlead.engine.gpu.events import EventFeed
from fairlead.engine.gpu.history import RunHistory
from fairlead.engine.gpu.limits import LimitEnforcement
from fairlead.engine.gpu.listings import RunListings
from fairlead.engine.gpu.measures import Measures
from fairlead.engine.gpu.objects import Objects
from fairlead.engine.gpu.overdraw import Overdrafts
from fairlead.engine.gpu.overview import GpuOverview
from fairlead.engine.gpu.recall import Recalls
from fairlead.engine.gpu.reclaim import Reclaims
from fairlead.engine.gpu.reports import Reports
from fairlead.engine.gpu.reservations import Reservations
from fairlead.engine.gpu.resolver.chains import ANOTHER_MASTER, SecretHashes, is_the_ledgers
from fairlead.engine.gpu.resolver.contributions import Contributions
from fairlead.engine.gpu.resolver.export import OutcomeReports
from fairlead.engine.gpu.resolver.outcome import Outcomes
from fairlead.engine.gpu.resolver.preview import Previews
from fairlead.engine.gpu.resolver.requests import Resolver
from fairlead.engine.gpu.risk import RiskNotices
from fairlead.engine.gpu.settlement import Settlement
from fairlead.engine.gpu.status import condition_entries
from fairlead.engine.gpu.utilisation import Utilisation
from fairlead.engine.gpu.values import Config
from fairlead.engine.gpu.verbs import Verbs
from fairlead.ports.entropy import EntropySource
from fairlead.ports.executor import Executor
from fairlead.ports.ledger import Ledger
from fairlead.ports.meter import DeviceMeter


class ControlPlane:
    """The embedded control plane. `reconcile` is to be called after commands and every second."""

    def __init__(
        self,
        ledger: Ledger,
        executor: Executor | None,
        clock: LedgerClock | Callable[[], int],
        config: Config | None = None,
        chance: EntropySource | None = None,
        *,
        meter: DeviceMeter | None = None,
    ) -> None:
        self.config = config = config or Config()
        self.faults: dict[str, str] = {}
        """What last failed, by run or `*call` of the executor, `*clock`, `*chance`."""
        if not isinstance(clock, LedgerClock):
            clock = one_clock(clock)
        self.committer = committer = Committer(ledger, clock, config)
        self.clock = ClockWatch(committer, self.faults)
        if chance is not None and not is_the_ledgers(committer.projection, chance):
            # Nothing may be fixed or drawn with another secret: it could never be revealed.
            chance, self.faults["*chance"] = None, ANOTHER_MASTER
        self._hashes = hashes = SecretHashes(committer, chance)
        previews = Previews(committer, chance)
        self.effects = Effects(committer, executor, self.faults)
        self.settlement = Settlement(committer, self.effects)
        self.utilisation = Utilisation(committer, meter)
        self.limits = LimitEnforcement(committer, self.utilisation)
        self.dependencies = RunDependencies(committer)
        self.admission = RunAdmission(committer)
        self.objects = Objects(
            committer,
            self.settlement,
            hashes,
            previews,
            self.admission,
            utilisation=self.utilisation,
        )
        self.outcomes = Outcomes(committer, self.effects, hashes, chance)
        self.contributions = Contributions(committer, self.effects, self.outcomes, chance)
        self.resolver = Resolver(committer, self.settlement, self.effects, self.outcomes, previews)
        claims = self.admission.heads.claims
        self.reservations = Reservations(committer, self.outcomes, previews, claims)
        self.recalls = Recalls(committer)
        self.reclaims = Reclaims(committer, self.outcomes)
        self.overdrafts = Overdrafts(committer, self.admission.heads)
        self.risk_notices = RiskNotices(committer, previews)
        self.verbs = Verbs(committer, self.effects, self.objects, self.resolver)
        self.outcome_reports = OutcomeReports(committer, chance)
        self.reports = Reports(
            committer, self.objects, self.settlement, self.outcome_reports, self.utilisation
        )
        self.overview = GpuOverview(committer)
        self.events = EventFeed(committer)
        self.listings = RunListings(committer, self.admission)
        self.device_map = DeviceMap(committer, self.admission)
        self.burn_down = BurnDown(committer, self.reports)
        self.history = RunHistory(committer, self.utilisation)
        self.measures = Measures(committer, self.utilisation)

    @property
    def seq(self) -> int:
        return self.committer.projection.seq

    def reconcile(self, now_ms: int | None = None) -> None:
        """One turn: collect endings, settle funding, preempt, admit, start, report conditions."""
        committer = self.committer
        with self.measures.turn(), committer.current() as projection:
            starts = self.clock.watch()
            now_ms = max(committer.now(), now_ms or 0)
            self._hashes.catch_up()
            self.effects.look_around()
            self.settlement.end_runs(now_ms)
            self.settlement.roll_over(now_ms, now_ms)
            self.settlement.settle(now_ms, now_ms)
            self.utilisation.sample(now_ms)
            self.limits.enforce(now_ms)
            if starts:
                self._admit(now_ms)
            self.effects.carry_out()
            self.settlement.end_failed_starts(committer.now())
            percent = self.config.near_limit_percent
            committer.commit(lambda: condition_entries(projection, now_ms, percent))
            self._recover()
            self.admission.end_turn(max(committer.now(), now_ms))

    def _admit(self, now_ms: int) -> None:
        """What starts runs, and what preempts others for them."""
        self.dependencies.proceed(now_ms)
        self.outcomes.proceed(now_ms)
        ordered = not self.admission.follows(now_ms)  # else who waits was looked at just before
        if ordered:
            self.recalls.proceed(now_ms)
        self.resolver.proceed()  # caps before reservations: these see what is left
        self.risk_notices.proceed(now_ms)
        self.reservations.proceed(now_ms)
        with self.measures.admission():
            self.admission.admit_all(now_ms)
        self.reclaims.proceed(now_ms)
        self.admission.grow_all(now_ms)
        if ordered:
            self.overdrafts.proceed(now_ms)

    def _recover(self) -> None:
        """After an append that failed, and none that did not: is there room for an entry again?"""
        failure = self.committer.ledger.failure()
        if failure is not None:
            body = ControlRecovered(f"entries are recorded again, after: {failure}")
            self.committer.commit(lambda: [self.committer.new(body)])
