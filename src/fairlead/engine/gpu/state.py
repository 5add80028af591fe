"""What the projection knows of objects, runs, leases, outcomes and reservations.

Only folding an entry changes it. Fields with another `name` are called so in checkpoints that
earlier versions wrote.
"""

from enum import StrEnum
from functools import lru_cache
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field, structs

from fairlead.core.lottery import BeaconRound, OwnerWeighting
from fairlead.engine.gpu.entries import Document, FundRefusal, LeaseTerms, Place
from fairlead.schema.convert import decode_json
from fairlead.schema.objects import Spec, read_spec

T = TypeVar("T")
FORCED = "CancelForced"
"""Why a run ends without its grace: its owner, or an operator, said so."""


class Phase(StrEnum):
    """A run's phase. A preempted or displaced run is Pending again, with the reason."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (Phase.COMPLETED, Phase.FAILED)


class Stored(Struct, frozen=True, gc=False):
    """An object as it was last applied; `version` is the ledger's number of that entry."""

    kind: str
    name: str
    uid: str
    generation: int
    version: int
    created_ms: int
    label_names: tuple[str, ...]
    label_values: tuple[str, ...]
    """One for each name. As a dictionary they would take as much as all else of it."""
    document: Document
    """The spec as plain data, defaults filled in."""
    user: str
    """Who created it."""
    token: str | None = None
    """The id of the token by which it was created: its run has no rights beyond it."""

    @property
    def labels(self) -> dict[str, str]:
        return dict(zip(self.label_names, self.label_values, strict=True))

    @property
    def spec(self) -> Spec:
        document = self.document
        if not isinstance(document, SharedDocument):
            document = shared_document(self.kind, document)
        return document.spec


def manifest_bytes(stored: Stored) -> int:
    """What its spec and labels take as JSON."""
    document = shared_document(stored.kind, stored.document)
    return document.size + len(msgspec.json.encode(stored.labels))


class SharedDocument(dict[str, Any]):
    """A spec as plain data, and as it is read. Runs come by the hundred with the same spec: one of
    each is kept in memory. None is changed."""

    __slots__ = ("size", "spec")
    spec: Spec
    size: int
    """Bytes of it as JSON."""


@lru_cache(maxsize=1024)
def _shared_document(kind: str, written: bytes) -> SharedDocument:
    made = SharedDocument(msgspec.json.decode(written))
    made.spec = read_spec(kind, msgspec.json.decode(written))
    made.size = len(written)
    return made


def shared_document(kind: str, document: Document) -> SharedDocument:
    """The same document, or an equal one that another object has."""
    if isinstance(document, SharedDocument):
        return document
    return _shared_document(kind, msgspec.json.encode(document))


@lru_cache(maxsize=1024)
def _shared_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(intern(text) for text in texts)


def shared_labels(labels: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Their names and values, with texts that other objects have too."""
    return _shared_texts(tuple(labels)), _shared_texts(tuple(labels.values()))


@lru_cache(maxsize=1024)
def _shared_refusal(written: bytes) -> FundRefusal:
    return decode_json(written, FundRefusal)


def shared_refusal(refusal: FundRefusal) -> FundRefusal:
    """The same refusal, or an equal one that another run got."""
    return _shared_refusal(msgspec.json.encode(refusal))


def job_prefix(run: str, uid: str) -> str:
    """What the ids of a run's jobs and leases begin with; no other run of its name shares it."""
    return f"{run}.{uid[:8]}."


def parse_slot(slot: str) -> tuple[str, int]:
    node, _, ordinal = slot.partition("#")
    return node, int(ordinal)


class LeaseFact(LeaseTerms, frozen=True, gc=False):
    """A lease in the books; once it has ended, how it ended and what it cost."""

    id: str
    seq: int
    payer: str = ""
    """The budget's owner when it began: a later owner of the budget did not pay for this."""
    end_ms: int | None = None
    end_reason: str | None = None
    used_ms: int | None = None
    overdraft_ms: int | None = None

    def restated(self, shift_ms: int) -> "LeaseFact":
        end_ms = self.expected_end_ms
        return structs.replace(
            self,
            start_ms=self.start_ms + shift_ms,
            expected_end_ms=None if end_ms is None else end_ms + shift_ms,
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(slot.partition("#")[0] for slot in self.slots))


class Reclaim(Struct):
    """What a run is to give back: some of its leases, or all of them (`preempts`).

    A process is notified first, and has its grace; without one the leases close at once.
    """

    outcome: int | None
    """The resolve that decided it; None: its owner asked for it, or its node is out of service."""
    leases: dict[str, str]
    """Those that are still open, with the reason that they will end with."""
    preempts: bool
    draw: int | None
    since_ms: int
    grace_ms: int

    @property
    def due_ms(self) -> int:
        return self.since_ms + self.grace_ms


class RiskWarning(Struct, frozen=True):
    """What a run was told of a start that is announced."""

    seq: int
    start_ms: int
    chance: float
    chance_error: float
    message: str


_NOTHING: dict[str, Any] = {}


def _nothing() -> dict[str, Any]:
    """One for all runs: of thousands most have none of these. It is replaced, and never changed."""
    return _NOTHING


class Departure(Struct, frozen=True):
    """Why a run that waits again gave its devices back, and which outcome decided it."""

    message: str
    outcome: int | None = None


class RareState(Struct, gc=False):
    """What few runs have, and only for a while."""

    pause_seq: int | None = None
    """The entry that last paused or resumed its job; None: none did."""
    width_seq: int | None = None
    """The entry that last made it give leases back, or grow; None: none did since its start."""
    protected_ms: int | None = None
    """From when its minimum runtime counts, where it waited again by its own limits; None: from its
    first lease."""
    exit_signal: int | None = None
    exit_reason: str | None = None
    """What the executor said of the end, where a code alone does not say it."""
    nominated: bool = False
    """Its owner offers it for preemption before the owner's others."""
    last_outcome: int | None = None
    """The last resolve that took leases from it."""
    preempted_ms: int | None = None
    """When an outcome last preempted it."""
    shrunk: bool = False
    """Whether it has given up groups since it started, and not got them back."""
    grows_to: int = 0
    """The width that an outcome took it from, and that it may have again; 0: nothing is lacking."""
    grown: bool = False
    """Whether it has grown since it started: then its process has to know its width."""
    warned: dict[str, RiskWarning] = field(default_factory=_nothing)
    """What it was told of starts that may preempt it, by their slot."""
    recalled: dict[str, str] = field(default_factory=_nothing)
    """Leases whose funding their envelope's owner recalled, and for which run."""
    overdrawn: dict[str, bool] = field(default_factory=_nothing)
    """Leases that began without funding, and never had it."""
    restarts: int = 0
    """How often it was started again after its command had failed or was interrupted."""
    starts_ms: int | None = None
    """Its command does not start before; None: it starts as soon as it can."""
    delays: int = 0
    """How many restarts in a row have waited."""
    hours_over: dict[str, int] = field(default_factory=_nothing)
    """Leases whose hours are used up, and since when."""
    idle_warned: str | None = None
    """Since when it was idle when it was last warned of that."""
    idle_ms: tuple[int, int] | None = None
    """Since when its devices did nothing, and until when that was read, as it was last recorded."""
    released: bool = False
    """Whether the runs that it starts after have ended as asked."""
    left: Departure | None = None
    """Why it waits again; None: it has not run yet, or runs."""


_RARE = RareState()
"""Of all runs that have none of it. It is never changed."""


class _Rare(Generic[T]):
    """A field of `RareState`, as one of the run: of thousands most have none of these."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunState", owner: type) -> T:
        value: T = getattr(run.rare, self._name)
        return value

    def __set__(self, run: "RunState", value: T) -> None:
        if run.rare is _RARE:
            if value == getattr(_RARE, self._name):
                return
            run.rare = RareState()
        setattr(run.rare, self._name, value)


class RunState(Struct, gc=False):
    """What happened to a run so far."""

    submitted_seq: int
    phase: Phase = Phase.PENDING
    reason: str = "Submitted"
    message: str = ""
    since_ms: int = 0
    attempt: int = 0
    job: str | None = None
    """The plan id of the current start; effects are idempotent by it."""
    leases: dict[str, LeaseFact] = field(default_factory=_nothing)
    cover_seq: int | None = None
    place_seq: int | None = None
    refusal: FundRefusal | None = None
    shortfall_gpus: int = 0
    """Devices that were missing when it was funded and could not be placed."""
    paused: bool = False
    stopping: bool = False
    stop_seq: int | None = None
    """The entry that last asked for its end, or took the devices of its job; None: none did."""
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    reclaim: Reclaim | None = field(default=None, name="cut")
    numbered: int = 0
    """The number of the next lease of its job; 0: not known."""
    rare: RareState = field(default_factory=lambda: _RARE)
    pause_seq = _Rare[int | None]()
    width_seq = _Rare[int | None]()
    protected_ms = _Rare[int | None]()
    exit_signal = _Rare[int | None]()
    exit_reason = _Rare[str | None]()
    nominated = _Rare[bool]()
    last_outcome = _Rare[int | None]()
    preempted_ms = _Rare[int | None]()
    shrunk = _Rare[bool]()
    grows_to = _Rare[int]()
    grown = _Rare[bool]()
    warned = _Rare[dict[str, RiskWarning]]()
    recalled = _Rare[dict[str, str]]()
    overdrawn = _Rare[dict[str, bool]]()
    restarts = _Rare[int]()
    starts_ms = _Rare[int | None]()
    delays = _Rare[int]()
    hours_over = _Rare[dict[str, int]]()
    idle_warned = _Rare[str | None]()
    idle_ms = _Rare[tuple[int, int] | None]()
    released = _Rare[bool]()
    left = _Rare[Departure | None]()

    def restate(self, shift_ms: int) -> None:
        """Ledger time was set forward: what is open of it happened so much later."""
        self.since_ms += shift_ms
        for name in ("started_ms", "starts_ms", "protected_ms", "preempted_ms"):
            at_ms = getattr(self, name)
            if at_ms is not None:
                setattr(self, name, at_ms + shift_ms)
        if self.reclaim is not None:
            self.reclaim.since_ms += shift_ms
        over = {lease: at_ms + shift_ms for lease, at_ms in self.hours_over.items()}
        leases = {id: lease.restated(shift_ms) for id, lease in self.leases.items()}
        self.hours_over, self.leases = over or _NOTHING, leases or _NOTHING

    def add_lease(self, lease: LeaseFact) -> None:
        self.leases = self.leases or {}
        self.leases[lease.id] = lease

    def drop_lease(self, name: str) -> None:
        del self.leases[name]
        self.leases = self.leases or _NOTHING
        self.forget_unfunded(name)

    def forget_unfunded(self, name: str) -> None:
        """A lease is paid for again, or gone."""
        self.recalled = _without(self.recalled, name)
        self.hours_over = _without(self.hours_over, name)
        self.overdrawn = _without(self.overdrawn, name)

    def row(self) -> Document:
        """As plain data, as checkpoints have it: with all fields in one."""
        made: Document = msgspec.to_builtins(self)
        rare: Document = made.pop("rare")
        return made | rare

    @classmethod
    def of_row(cls, row: bytes | msgspec.Raw) -> "RunState":
        run, rare = decode_json(row, cls), decode_json(row, RareState)
        run.rare = _RARE if rare == _RARE else rare
        return run

    @property
    def width(self) -> int:
        return sum(lease.gpus for lease in self.leases.values() if lease.is_active)

    @property
    def spares(self) -> int:
        return sum(lease.gpus for lease in self.leases.values() if not lease.is_active)

    @property
    def forced(self) -> bool:
        """Whether its process is killed at once, whatever its grace."""
        return self.stopping and self.reason == FORCED

    @property
    def command_ms(self) -> int:
        """When the command of its current start began, or will."""
        return max(self.started_ms or 0, self.starts_ms or 0)

    @property
    def protected_from_ms(self) -> int | None:
        """From when its minimum runtime counts."""
        if self.protected_ms is not None:
            return self.protected_ms
        return min((lease.start_ms for lease in self.leases.values()), default=None)

    @property
    def is_ending(self) -> bool:
        """Whether its process is to stop: cancelled, or preempted."""
        return self.stopping or (self.reclaim is not None and self.reclaim.preempts)


def _without(rows: dict[str, T], name: str) -> dict[str, T]:
    return {key: row for key, row in rows.items() if key != name} or _NOTHING


class UnknownJob(Struct, frozen=True):
    """A process that the ledger did not start, and that has not ended yet."""

    seq: int
    """The entry by which it is asked to end."""
    run: str
    slots: tuple[str, ...] = ()


class Condition(Struct, frozen=True):
    """One condition of a budget; `since_ms` moves only with the status."""

    type: str
    status: bool
    reason: str
    message: str
    generation: int
    since_ms: int


# -- the resolver ---------------------------------------------------------------------------------


class OutcomeStage(StrEnum):
    """How far an outcome has come. Only the first two can still change."""

    COMMITTED = "committed"
    """The conflict is frozen; who is preempted is not known yet."""
    DRAWN = "drawn"
    """It is decided and revealed; the runs concerned have their grace."""
    APPLIED = "applied"
    VOID = "void"
    """It was cancelled, and disclosed; no run lost anything."""

    @property
    def open(self) -> bool:
        """Whether something is still to be done."""
        return self in (OutcomeStage.COMMITTED, OutcomeStage.DRAWN)


class OutcomeChain(Struct):
    """The sequence of outcomes of one flavor; of the first protocol, of one scope."""

    chain: str
    flavor: str
    location: dict[str, str]
    capped: bool
    published_seq: int
    """The entry that fixed the entropy of the next outcome."""
    commitment: str
    """SHA-256 of that entropy."""
    k: int = 0
    """The number of the next outcome."""
    open_seq: int | None = None
    """The commitment that is not answered yet."""
    voids: int = 0
    """How many of its outcomes were voided; of the first protocol none is counted."""
    carry: Document | None = None
    """The beacon and the nonces of the outcome that was voided last, for the next one."""

    @property
    def turn(self) -> int:
        """How many draws came before the next outcome."""
        return self.k - self.voids


class Outcome(Struct):
    """One resolve, known by the number of its commit entry."""

    seq: int
    chain: str
    k: int
    flavor: str
    deficit_gpus: int
    conflict_digest: str
    notice_digest: str
    beacon: BeaconRound | None
    time_ms: int
    stage: OutcomeStage = OutcomeStage.COMMITTED
    cause: str = ""
    """What asked for it: reservation, run, scope, cap or drain."""
    author: str = ""
    run: str | None = None
    """The run that is to be placed on what is freed."""
    reservation: str | None = None
    node: str | None = None
    final_seq: int | None = None
    """The entry that revealed it, a draw or a void."""
    result_digest: str | None = None
    label: str = ""
    reason: str = ""
    """Why it was voided."""
    voided_by: str = ""
    reclaiming: dict[str, bool] = field(default_factory=dict, name="cutting")
    """Runs that still hold what they are to give back."""
    location: dict[str, str] = field(default_factory=dict)
    """Where it frees devices; empty: anywhere, or where its chain says (the first protocol)."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    """Whether owners, tokens or GPUs are equally likely."""
    turn: int | None = None
    """Which entropy and pseudonyms it is made with; None: the first protocol, those of k."""

    @property
    def entropy_index(self) -> int:
        return self.k if self.turn is None else self.turn


class PendingNonce(Struct):
    """What an owner wants to add to its next outcome, and the entry that it signed it in."""

    nonce: str
    seq: int
    used: bool = False


class Reservation(Struct):
    """The state of a reservation."""

    state: str = "Pending"
    reason: str = "NotDue"
    message: str = ""
    since_ms: int = 0
    shortfall_gpus: int = 0
    outcome: int | None = None
    """The resolve of its activation; there is at most one."""
    activated_ms: int | None = None
    released_ms: int | None = None

    @property
    def waits(self) -> bool:
        """Whether its run is still to be started by it."""
        return self.state in ("Pending", "Blocked")


Step = tuple[str, str]
"""A cap of a budget, by kind and name; or the place, which has none."""
PLACE: Step = ("place", "")


class BudgetRequest(Struct):
    """A request to bring a budget back within its caps, as far as it is not done."""

    seq: int
    author: str
    budget: str
    steps: list[Step]
    """What is left of it, in order."""
    place: Place | None
    outcome: int | None = None
    """The last resolve that was made for it; the next one waits for its end."""


class ResolverState(Struct):
    """All of it."""

    owners: dict[str, int] = field(default_factory=dict)
    """Owners whose secret is committed to, and in which entry."""
    chains: dict[str, OutcomeChain] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    owner_keys: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """The keys that owners sign nonces with, in hex, and in which entry; the last is valid."""
    signed_nonces: dict[str, PendingNonce] = field(default_factory=dict)
    """What owners want to add to the next outcome; each is used once."""
    beacons: dict[str, str] = field(default_factory=dict)
    """Values of all beacon rounds ever recorded, by `source/round`."""
    reservations: dict[str, Reservation] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    """What was applied, by metric."""
    changed_seq: int = field(default=0, name="world_seq")
    """The last entry after which a blocked reservation may be able to start."""
    open_seqs: dict[str, int] = field(default_factory=dict)
    """The outcome of each flavor that is not over; there is at most one."""
    requests: dict[int, BudgetRequest] = field(default_factory=dict, name="asked")
    """Requests with several steps that are not over."""

    def open_outcome(self, flavor: str) -> Outcome | None:
        """The resolve of a flavor that is not over."""
        seq = self.open_seqs.get(flavor)
        return None if seq is None else self.outcomes[seq]
