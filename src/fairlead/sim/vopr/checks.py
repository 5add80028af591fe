"""What must hold after every step. Nothing is taken from the control plane on trust: processes are
the machine's, times are true, and entries are read back from the disk."""

from dataclasses import dataclass
from typing import Any

from fairlead.core.gpu.clock import ClockPolicy
from fairlead.core.invariant import known
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.engine.gpu.entries import Stamp, decode
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.starting import ask
from fairlead.engine.gpu.state import Stored
from fairlead.ledger.entries import entry_of
from fairlead.ports.executor import Job
from fairlead.ports.ledger import Entry
from fairlead.sim.vopr.ledger import READ_AT_ONCE, SimLedger
from fairlead.sim.vopr.lottery import Lottery
from fairlead.sim.vopr.violation import Violation
from fairlead.sim.vopr.world import VoprWorld

FOLD_EVERY = 64
"""Steps after which the projection is compared where nothing was recorded, either."""
SLACK_MS = 2_500
"""Between the end of a process and the turn that hears of it; and rounding."""


@dataclass(slots=True)
class _Lease:
    """An open lease, and when it began at the earliest and at the latest, in true time."""

    gpus: int
    job: str
    early_ms: int
    late_ms: int
    boots: int
    """Which boot it began in."""


class Checker:
    """Follows a world step by step."""

    def __init__(self, world: VoprWorld) -> None:
        self._world = world
        self.entries: list[Entry] = []
        """All that was ever seen recorded: none may go or change."""
        self._ledger: SimLedger | None = None
        self._shadow = Projection()
        """Folded from the entries alone, without a checkpoint."""
        self._jobs: set[str] = set()
        self._leases: dict[str, _Lease] = {}
        self._leased: dict[str, tuple[str, str]] = {}
        """Devices, and the open lease that has each, with its run."""
        self._lottery = Lottery()
        self._cancelled: set[str] = set()
        self._started, self._reads_back = 0, False
        self._last_ms, self._last_boots = world.time.now_ms, world.boots
        self._steps = self._compared = 0
        world.on_act = self._act

    def step(self) -> None:
        """All checks; raises `Violation`."""
        self._steps += 1
        self.follow()
        self._check_devices()
        self._check_starts()
        if len(self.entries) > self._compared or self._steps % FOLD_EVERY == 0:
            self.check_fold()
            self._compared = len(self.entries)
        if self._world.ledger is not None:  # else there may be entries that were not seen yet
            self._last_ms, self._last_boots = self._world.time.now_ms, self._world.boots

    def cancelled(self, run: str, uid: str) -> None:
        """A cancel of this run was acknowledged: none of its jobs may begin from now on."""
        self._check_starts()
        self._cancelled.add(f"{run}.{uid[:8]}")

    def stored(self, kind: str, name: str) -> Stored | None:
        """An object, as all entries say."""
        return self._shadow.get(kind, name)

    # -- the log ----------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take in what was recorded since."""
        ledger = self._world.ledger
        if ledger is None:
            return
        if ledger is not self._ledger:
            self._ledger = ledger
            self._read_back(ledger)
            ledger.acknowledged.clear()
            self.check_fold()
            return
        if not ledger.acknowledged:
            return
        for entry in ledger.entries(len(self.entries), READ_AT_ONCE):  # the ledger's own included
            self._take(entry)
        for entry in ledger.acknowledged:
            self._take(entry)
        ledger.acknowledged.clear()

    def _read_back(self, ledger: SimLedger) -> None:
        """Another process opened the disk: what was acknowledged is there, byte for byte."""
        found, known = ledger.stored(), len(self.entries)
        if len(found) < known:
            raise Violation(
                "acknowledged-writes", f"{known - len(found)} entries of {known} are gone"
            )
        for entry, row in zip(self.entries, found, strict=False):
            _check_same(entry, row.data)
        self._reads_back = True
        for row in found[known:]:
            self._take(entry_of(row))
        self._reads_back = False

    def _take(self, entry: Entry) -> None:
        if entry.seq <= len(self.entries):
            _check_same(self.entries[entry.seq - 1], entry.data)
            return
        if self.entries and entry.time_ms < self.entries[-1].time_ms:
            raise Violation("time-order", f"entry {entry.seq} is before entry {entry.seq - 1}")
        self.entries.append(entry)
        body = decode(entry)
        self._shadow.fold(Stamp(entry.seq, entry.time_ms, entry.author), body)
        self._note(entry, body)

    def _note(self, entry: Entry, body: entries.Body | None) -> None:
        now_ms = self._world.time.now_ms
        match body:
            case entries.RunPhase() if isinstance(body.job, str):
                self._jobs.add(body.job)
            case entries.LeaseOpen():
                job = entry.plan_id or ""
                self._leases[body.lease] = _Lease(
                    body.gpus, job, self._last_ms, now_ms, self._last_boots
                )
                for slot in body.slots:
                    if slot in self._leased:
                        both = f"{self._leased[slot][0]} and {body.lease}"
                        raise Violation("leases", f"{slot} is leased twice: {both}")
                    self._leased[slot] = (body.lease, body.run)
            case entries.LeaseClose():
                for slot in [s for s, (lease, _) in self._leased.items() if lease == body.lease]:
                    del self._leased[slot]
            case entries.ChargePost():
                self._check_charge(body, self._leases.pop(body.lease), entry.time_ms)
            case entries.OutcomeCommitted():
                self._lottery.commit(entry.seq, body.commitment)
            case entries.OutcomeDrawn():
                self._lottery.answer(body.reveal)

    def _closed_ms(self) -> int:
        """When a lease that is closed was still open: the entry may be of a process that died since
        the last step, and the run have gone on without the lease."""
        return self._last_ms if self._reads_back else self._world.time.now_ms

    def _check_charge(self, body: entries.ChargePost, lease: _Lease, ledger_ms: int) -> None:
        """What a lease is charged is time that passed: while it was open, and at least while its
        process lived."""
        now_ms, gpus = self._world.time.now_ms, lease.gpus
        # After a boot or a failover the wall clock is believed within the bound, and so are those
        # of other machines: there is nothing else.
        trusted = self._world.boots - lease.boots + self._world.in_cluster
        slack_ms = SLACK_MS + trusted * ClockPolicy().jump_ms
        most_ms = now_ms - lease.early_ms
        if body.used_ms > gpus * (most_ms + most_ms // 500 + slack_ms):
            raise Violation(
                "charges", f"{body.lease} is charged {body.used_ms} for {gpus} GPUs in {most_ms} ms"
            )
        process = self._world.machine.processes.get(lease.job)
        if process is None or process.exit is None or process.exit.interrupted:
            return
        if self._world.in_cluster and lease.boots < self._world.boots:
            return  # runs went on while there was no control plane: that is charged to none
        ended_ms = min(process.exit.time_ms, self._closed_ms())
        lived_ms = ended_ms - max(process.started_ms, lease.late_ms)
        if self._world.in_cluster and lived_ms > ledger_ms - now_ms - ClockPolicy().jump_ms:
            lived_ms -= max(0, ledger_ms - now_ms)  # ends are told by clocks that are so far behind
        if body.used_ms < gpus * (lived_ms - lived_ms // 500 - slack_ms):
            raise Violation(
                "charges", f"{body.lease} is charged {body.used_ms}; {gpus} GPUs x {lived_ms} ms"
            )

    # -- the machine ------------------------------------------------------------------------------

    def _check_devices(self) -> None:
        users: dict[str, str] = {}
        for process in self._world.machine.live():
            for device in process.kept:
                if device in users:
                    both = f"{users[device]} and {process.job.id}"
                    raise Violation("devices", f"{device} is used by {both}")
                users[device] = process.job.id

    def _check_starts(self) -> None:
        starts = self._world.machine.starts
        for job in starts[self._started :]:
            if job.rpartition(".")[0] in self._cancelled:
                raise Violation("cancelled", f"{job} began after its run was cancelled")
        self._started = len(starts)

    def _act(self, name: str, given: tuple[Any, ...], decision: str) -> None:
        """Every effect cites what is recorded by then, of that run; a job begins on devices that
        its run has leased."""
        self.follow()
        run = given[0].run if isinstance(given[0], Job) else given[0]
        recorded = decision in self._jobs and decision.startswith(f"{run}.")
        if decision.isdigit() and 1 <= int(decision) <= len(self.entries):
            body = decode(self.entries[int(decision) - 1])
            outcome = isinstance(body, entries.OutcomeCommitted)  # its runs have pseudonyms
            recorded = outcome or getattr(body, "run", None) == run
        if not recorded:
            raise Violation(
                "recorded-first", f"{name} of {run} cites {decision!r}, which is not recorded of it"
            )
        if isinstance(given[0], Job):
            mine = {slot for slot, (_, holder) in self._leased.items() if holder == run}
            if not set(given[0].devices) <= mine:
                raise Violation("leases", f"{given[0].id} begins on devices that it has not leased")

    def check_ledger(self) -> None:
        """The ledger proves itself at the end: order, signatures, tree, kept states."""
        self._world.up()
        ledger = known(self._world.ledger, "it is up")
        found = ledger.verify(snapshots=not self._world.tampered)
        if not found.ok:
            raise Violation("verify", f"{found.problem} (entry {found.seq})")

    def check_fold(self) -> None:
        """What the control plane knows, by its checkpoint and since, is what all entries say."""
        plane = self._world.plane
        if plane is None or plane.seq != self._shadow.seq:
            return
        both = (self._shadow, plane.committer.projection)
        mine, theirs = map(export, both)
        if mine != theirs:  # by when each was asked last, perhaps
            mine, theirs = (_settled(each, plane.committer.now()) for each in both)
        if mine != theirs:
            raise Violation("projection", f"after {plane.seq} entries it is not their fold")

    def check_progress(self) -> None:
        """No run waits while it is funded and its devices are free, after the faults have stopped
        for long enough."""
        plane = self._world.up()
        projection = plane.committer.projection
        if plane.clock.report()["state"] == "held":
            raise Violation("progress", "an operator has answered, and the clock is held")
        for name, state in sorted(projection.live.items()):
            if state.is_ending:
                raise Violation("progress", f"{name} was asked to end, and has not: {state.reason}")
            waits = state.phase.value == "Pending" and state.refusal is None
            if not waits or projection.waits_for_runs(name):
                continue
            found = ask(projection, projection.run_spec(name), plane.committer.now()).found
            if found.starts:
                raise Violation("progress", f"{name} could start, and waits: {state.message}")
        if projection.resolver.open_seqs:
            raise Violation("progress", f"outcomes are open: {projection.resolver.open_seqs}")


def _check_same(entry: Entry, data: bytes | None) -> None:
    if entry.data != data:
        raise Violation("acknowledged-writes", f"entry {entry.seq} is another one")


def _settled(projection: Projection, now_ms: int) -> bytes:
    copy = restore(export(projection))
    copy.accounts.advance(now_ms)
    return export(copy)
