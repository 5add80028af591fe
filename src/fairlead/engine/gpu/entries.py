"""The control plane's ledger entries, one Struct per kind, and their border: `encode`, `decode`.

Inside the engine an entry is one of these values; only here is it a JSON object. A field that an
entry may lack is `UNSET` by default and then left out of the bytes; a field that is there as null
is None. Fields with a default that is always written were added later: old entries lack them.
"""

from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple, Self, cast

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.core.canonical import Rendered, canonical
from fairlead.core.gpu import Lease
from fairlead.core.gpu.usage import ChargePart
from fairlead.core.lottery import Commitment, Reveal
from fairlead.ports.ledger import Blob, Draft, Entry
from fairlead.schema.convert import convert

SYSTEM = "fairlead"
"""The author of what the control plane does by itself: admissions, exits, demotions, conditions."""
INPUT_BYTES_MAX = 64 * 1024
"""A larger input of a decision is kept among the ledger's blobs: a fold need not read it."""
Document = dict[str, Any]
"""JSON that the engine hands through unread: specs, inputs and outputs of decisions, heads."""


class Body(msgspec.Struct, frozen=True):
    """What an entry says."""

    ENTRY: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def document(self) -> Document:
        return cast(Document, msgspec.to_builtins(self))

    @classmethod
    def of(cls, document: Document) -> Self:
        return convert(document, cls)


class Stamp(NamedTuple):
    """Where, when and by whom an entry was recorded."""

    seq: int
    time_ms: int
    author: str


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry that is to be recorded; the other fields as in `ports.ledger.Draft`."""

    body: Body
    time_ms: int
    _: KW_ONLY
    author: str = SYSTEM
    plan_id: str | None = None
    effect: str | None = None
    input: Document | Rendered | Blob | None = field(default=None, repr=False)
    """The whole input of a decision, or its canonical form."""
    input_digest: str | None = None
    blobs: tuple[Blob, ...] = ()
    version: int | None = None
    """None: the version of the body's type."""
    reasons: tuple[str, ...] = ()


# -- objects --------------------------------------------------------------------------------------


class ObjectApplied(Body, frozen=True):
    """An object was created or changed."""

    ENTRY = "object.applied"
    kind: str
    name: str
    uid: str
    generation: int
    labels: dict[str, str]
    spec: Document
    token: str | UnsetType = UNSET
    """The id of the token by which it was sent."""


class ObjectDeleted(Body, frozen=True):
    """An object was removed."""

    ENTRY = "object.deleted"
    kind: str
    name: str
    uid: str


class BudgetCondition(Body, frozen=True):
    """A condition of a budget changed."""

    ENTRY = "budget.condition"
    budget: str
    type: str
    status: bool
    reason: str
    message: str
    generation: int


class ControlRecovered(Body, frozen=True):
    """The first entry after one that could not be recorded."""

    ENTRY = "control.recovered"
    message: str


class ClockAnchored(Body, frozen=True):
    """A moment at which ledger time, this entry's, and both clocks of the machine were known.
    Version 2 holds the decision, `gpu.clock`."""

    ENTRY = "clock.anchored"
    VERSION = 2
    wall_ms: int
    monotonic_ms: int
    boot: str
    host: str
    offset_ms: int
    """Ledger time less wall time, as far as they may differ."""
    shift_ms: int
    """By how much ledger time was set forward: open leases are restated by as much, so none is
    charged for it."""
    reason: str
    output: Document | UnsetType = UNSET


class ClockHeld(Body, frozen=True):
    """The wall clock jumped: no run is started until it is set right or an operator judges it.
    Version 2 holds the decision, `gpu.clock`."""

    ENTRY = "clock.held"
    VERSION = 2
    wall_ms: int
    monotonic_ms: int
    boot: str
    host: str
    ahead_ms: int
    reason: str
    output: Document | UnsetType = UNSET


# -- runs and leases ------------------------------------------------------------------------------


class RunPhase(Body, frozen=True):
    """A run is in another phase, or in the same for another reason."""

    ENTRY = "run.phase"
    run: str
    phase: str
    reason: str
    message: str
    job: str | UnsetType = UNSET
    """The plan id of the start that this entry records."""
    paused: bool | UnsetType = UNSET
    stopping: bool | UnsetType = UNSET
    shortfall_gpus: int | UnsetType = UNSET
    ended_ms: int | UnsetType = UNSET
    code: int | UnsetType | None = UNSET
    signal: int | UnsetType | None = UNSET
    exit_reason: str | UnsetType | None = UNSET
    outcome: int | UnsetType | None = UNSET
    """The resolve that preempted it."""
    restarts: int | UnsetType = UNSET
    """It starts again on the devices that it has, or waits again, and how often it has done so."""
    starts_ms: int | UnsetType = UNSET
    """Its command starts again then, and not before."""
    delays: int | UnsetType = UNSET
    """How many restarts in a row have waited, this one too."""
    protected_since_ms: int | UnsetType = UNSET
    """It waits again by its own limits, and its minimum runtime counts from here, not anew."""


class RunGrown(Body, frozen=True):
    """A run got back groups that an outcome had taken."""

    ENTRY = "run.grown"
    run: str
    width: int
    message: str


class PodMismatch(Body, frozen=True):
    """A pod of a run is not as it is leased: on another node, or with more devices. What is done
    about it names this entry."""

    ENTRY = "pod.mismatch"
    run: str
    reason: str
    message: str
    pod: str
    node: str


class JobUnknown(Body, frozen=True):
    """A process runs that the ledger did not start: it was restored from before, or its run is
    deleted. It is asked to end by this entry, and has its grace."""

    ENTRY = "job.unknown"
    run: str
    job: str
    grace_ms: int
    message: str
    devices: tuple[str, ...] = ()
    """What it has: given to no run until it is gone."""


class JobGone(Body, frozen=True):
    """A process that the ledger did not start has ended: its devices are free."""

    ENTRY = "job.gone"
    run: str
    job: str


class UseRow(msgspec.Struct, frozen=True):
    """How busy leased devices were on one UTC day, in GPU-milliseconds, of what was read.
    `idle_ms`: they did nothing at all."""

    day: int
    owner: str
    run: str
    payer: str
    budget: str
    envelope: str
    borrowed: bool
    read_ms: int
    busy_ms: int
    idle_ms: int


class RunsUsed(Body, frozen=True):
    """Sums of readings since the entry before: a fact that reports add up, and no decision."""

    ENTRY = "gpu.used"
    rows: tuple[UseRow, ...]


class RunWarned(Body, frozen=True):
    """A run may lose leases at a time that is announced; `slot` stands for that start."""

    ENTRY = "run.warned"
    run: str
    slot: str
    start_ms: int
    chance: float
    chance_error: float
    message: str


class RunNominated(Body, frozen=True):
    """An owner offers a run for preemption before the owner's others, or withdraws the offer."""

    ENTRY = "run.nominated"
    run: str
    nominated: bool


class RunReclaimed(Body, frozen=True):
    """Leases that a run is to give back: all (`preempts`), or spares and groups."""

    ENTRY = "run.cut"
    run: str
    outcome: int | None
    leases: dict[str, str]
    preempts: bool
    draw: int | None
    grace_ms: int
    reason: str


class LeaseTerms(msgspec.Struct, frozen=True):
    """What a lease is, as long as it is open."""

    run: str
    owner: str
    role: str
    group: int
    slots: tuple[str, ...]
    budget: str
    envelope: str
    borrowed: bool
    start_ms: int
    expected_end_ms: int | None
    reason: str

    @property
    def gpus(self) -> int:
        return len(self.slots)

    @property
    def is_active(self) -> bool:
        """Whether it counts to the run's width; a spare does not."""
        return self.role == "Active"

    def terms(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in LeaseTerms.__struct_fields__}

    def to_lease(self, name: str) -> Lease:
        payer, end_ms = (self.budget, self.envelope), self.expected_end_ms
        terms = (self.owner, *payer, self.gpus, self.start_ms, None, end_ms, self.borrowed)
        return Lease(name, *terms)


class LeaseOpen(Body, LeaseTerms, frozen=True):
    """A lease begins."""

    ENTRY = "lease.open"
    lease: str


class LeaseClose(Body, frozen=True):
    """A lease ends."""

    ENTRY = "lease.close"
    lease: str
    run: str
    end_ms: int
    reason: str
    outcome: int | UnsetType = UNSET
    """The resolve that decided it."""


OVERDRAFT = "overdraft"
"""The kind of a lease that began without funding: no cap stopped paying for it."""


class LeaseUnfunded(Body, frozen=True):
    """A cap does not pay for a lease any more."""

    ENTRY = "lease.unfunded"
    lease: str
    run: str
    at_ms: int
    kind: str
    budget: str
    name: str
    hours: bool
    message: str
    recalled_for: str | UnsetType = UNSET
    """The run for which the owner of the envelope recalled it."""
    decision: int | UnsetType = UNSET
    """The recorded decision that this follows from, where the cap does not say it."""


class LeaseFunded(Body, frozen=True):
    """A lease is paid for again."""

    ENTRY = "lease.funded"
    lease: str
    run: str
    at_ms: int


class HoldPart(msgspec.Struct, frozen=True):
    """GPU-milliseconds held in one period."""

    from_ms: int
    gpu_ms: int


class ChargeBody(Body, frozen=True):
    """What an envelope pays for a lease."""

    lease: str
    budget: str
    envelope: str


class ChargeHold(ChargeBody, frozen=True):
    """Hours are promised to a lease."""

    ENTRY = "charge.hold"
    gpu_ms: int
    parts: tuple[HoldPart, ...]


class ChargePost(ChargeBody, frozen=True):
    """What a lease used in all."""

    ENTRY = "charge.post"
    owner: str
    borrowed: bool
    used_ms: int
    overdraft_ms: int
    parts: tuple[ChargePart, ...]
    payer: str = ""


class ChargeVoid(ChargeBody, frozen=True):
    """What a lease held and did not use."""

    ENTRY = "charge.void"
    gpu_ms: int


# -- decisions ------------------------------------------------------------------------------------


class FundBinding(msgspec.Struct, frozen=True):
    """A cap that stood in the way; limits and use of hours are in hours."""

    kind: str
    budget: str | None
    name: str
    limit: int | float | bool | None
    used: int | float


class FundRefusal(msgspec.Struct, frozen=True):
    """Why a request is not funded, and what would help."""

    code: str
    message: str
    shortfall_gpus: int
    binding: list[FundBinding]
    remedy: Document | None


class Funding(msgspec.Struct, frozen=True):
    """The output of `gpu.fund`."""

    funded: bool
    gpus: int
    plan: list[Document]
    refusal: FundRefusal | None


class FundDecision(Body, frozen=True):
    """Which envelopes pay for a run, or why none do."""

    ENTRY = "gpu.fund"
    run: str
    output: Funding


class RunDecision(Body, frozen=True):
    """A decision about a run."""

    run: str
    output: Document


class PlaceDecision(RunDecision, frozen=True):
    """Which devices a run gets, or how many are missing."""

    ENTRY = "gpu.place"


class ResizeDecision(RunDecision, frozen=True):
    """Which leases a run ends and begins: it shrinks, or a node is lost."""

    ENTRY = "gpu.resize"


class BackfillDecision(RunDecision, frozen=True):
    """Whether a run may start, or grow, before others that wait for devices. In version 2 a head
    leaves less time to others the longer it waits; version 3 decides which runs are heads."""

    ENTRY = "gpu.backfill"
    VERSION = 3


class RestartDecision(RunDecision, frozen=True):
    """Whether a run that has ended starts again."""

    ENTRY = "gpu.restart"


class LimitDecision(RunDecision, frozen=True):
    """Which limit of a run is over."""

    ENTRY = "gpu.limit"


class IdleTimes(msgspec.Struct, frozen=True):
    """A streak as it is written."""

    since: str
    read: str


class IdleOfRun(msgspec.Struct, frozen=True):
    """The streak of one start of a run; None: its devices are in use."""

    run: str
    job: str
    streak: IdleTimes | None


class IdleRuns(msgspec.Struct, frozen=True):
    """The output of `gpu.idle`."""

    runs: tuple[IdleOfRun, ...]


class IdleDecision(Body, frozen=True):
    """Since when the devices of runs that have an idle limit do nothing."""

    ENTRY = "gpu.idle"
    output: IdleRuns


class AfterDecision(RunDecision, frozen=True):
    """Whether a run that starts after others may start."""

    ENTRY = "gpu.after"


class QuarantineDecision(Body, frozen=True):
    """Devices that hold memory that no run has, and those that are clean again."""

    ENTRY = "gpu.quarantine"
    output: Document


class StartDecision(RunDecision, frozen=True):
    """How wide a run starts or grows, or what it lacks."""

    ENTRY = "gpu.start"
    cause: str
    """What asked: admission, growth, reservation, run, or draw."""


class RefundDecision(Body, frozen=True):
    """Which leases of a budget lose their funding, or have it again."""

    ENTRY = "gpu.refund"
    budget: str
    output: Document


class DeficitDecision(Body, frozen=True):
    """Which scope is short of how many GPUs, and which leases are candidates. In version 2 a run
    takes no devices where an envelope that would pay for it is promised to its owner; in version 3
    none are taken for a group that could only be divided between its location and elsewhere."""

    ENTRY = "gpu.deficit"
    VERSION = 3
    cause: str
    output: Document


class RecallDecision(RunDecision, frozen=True):
    """Which leases of others lose their funding to the owner of their envelope, for its run. In
    version 2 nothing is recalled for a run that would find no room."""

    ENTRY = "gpu.recall"
    VERSION = 2


class OverdrawDecision(RunDecision, frozen=True):
    """A run starts without funding, on devices that would be idle."""

    ENTRY = "gpu.overdraw"


class ReserveDecision(Body, frozen=True):
    """A reservation may be made or moved: by which policy."""

    ENTRY = "gpu.reserve"
    reservation: str
    run: str
    output: Document


class OrderDecision(Body, frozen=True):
    """In which order runs or reservations are considered."""

    output: Document

    def document(self) -> Document:
        return {"output": self.output}  # plain data or canonical text, thousands of rows

    @property
    def key(self) -> str:
        """The last one of each is kept."""
        return self.ENTRY

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row["run"] for row in self.output["order"])


class QueueDecision(OrderDecision, frozen=True):
    """Of waiting runs. Version 2 orders by tier and age, and not by submission alone; in version 3
    an open outcome holds only runs back that need its scope."""

    ENTRY = "gpu.queue"
    VERSION = 3


class GrowDecision(OrderDecision, frozen=True):
    """Of shrunk runs that may grow. Version 2 has the holds of version 3 of the queue."""

    ENTRY = "gpu.grow"
    VERSION = 2


class RankDecision(OrderDecision, frozen=True):
    """Of waiting runs that recall funding, reclaim devices or start unfunded."""

    ENTRY = "gpu.rank"

    @property
    def key(self) -> str:
        return f"{self.ENTRY}.{self.output['cause']}"


class ActivateDecision(OrderDecision, frozen=True):
    """Of reservations that are due, and which of them may preempt."""

    ENTRY = "gpu.activate"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row["reservation"] for row in self.output["order"])


# -- the resolver ---------------------------------------------------------------------------------


class OwnerPseudonym(Body, frozen=True):
    """The secret of an owner's pseudonyms, by its hash."""

    ENTRY = "owner.pseudonym"
    commitment: str
    owner: str


class ChainOpened(Body, frozen=True):
    """A flavor's sequence of outcomes, and the hash of the entropy of its first.

    Of the first protocol: a scope's, with its location, and whether a cap binds in it.
    """

    ENTRY = "gpu.resolve.scope"
    capped: bool
    chain: str
    flavor: str
    location: dict[str, str]
    next_commitment: str


class OutcomeCommitted(Body, frozen=True):
    """The conflict is frozen: these candidates, these odds, this entropy, before any draw."""

    ENTRY = "gpu.resolve.commit"
    commitment: Commitment

    def document(self) -> Document:
        return self.commitment.document()

    @classmethod
    def of(cls, document: Document) -> Self:
        return cls(Commitment.of(document))


class OutcomeCase(Body, frozen=True):
    """Right behind a commitment: what it is for, in clear names."""

    ENTRY = "gpu.resolve.case"
    chain: str
    k: int
    flavor: str
    cause: str
    run: str | None
    reservation: str | None
    node: str | None
    nonce_owners: tuple[str, ...]
    asked: int | None = None
    deficit: int | UnsetType = UNSET
    """The recorded decision that the conflict was frozen from; early outcomes have none."""


class OutcomeDrawn(Body, frozen=True):
    """A commitment is kept: the entropy is revealed, the next one fixed."""

    ENTRY = "gpu.resolve.draw"
    reveal: Reveal
    commit_head: Document
    """The ledger's signed head after the commitment."""

    def document(self) -> Document:
        return self.reveal.document(self.commit_head)

    @classmethod
    def of(cls, document: Document) -> Self:
        return cls(Reveal.of(document), document["commit_head"])


class OutcomeVoided(OutcomeDrawn, frozen=True):
    """A commitment is cancelled; what it would have been is disclosed all the same."""

    ENTRY = "gpu.resolve.void"


class OutcomeApplied(Body, frozen=True):
    """Everything that an outcome reclaims is free, and the run that it was for has started."""

    ENTRY = "gpu.resolve.applied"
    outcome: int
    started: str | None


class StepName(msgspec.Struct, frozen=True):
    """One step of a request: a cap of a budget by kind and name; or the place, without a name."""

    kind: str
    name: str


class Place(msgspec.Struct, frozen=True):
    """GPUs to free somewhere."""

    flavor: str
    location: dict[str, str]
    gpus: int


class BudgetRequested(Body, frozen=True):
    """A budget is to be brought back within its caps, step by step."""

    ENTRY = "gpu.resolve.asked"
    budget: str
    steps: tuple[StepName, ...]
    place: Place | None


class StepSkipped(Body, frozen=True):
    """A step of a request needs no resolve, or cannot have one."""

    ENTRY = "gpu.resolve.passed"
    asked: int
    budget: str
    kind: str
    name: str
    reason: str
    message: str


class NonceGiven(Body, frozen=True):
    """An owner adds bytes to the next outcome that concerns it, and signs them."""

    ENTRY = "gpu.resolve.nonce"
    owner: str
    nonce: str
    size: int | UnsetType = UNSET
    """How many entries the owner knew of when it signed: an old nonce is no new one."""
    signature: str | UnsetType = UNSET
    """With the owner's key; nonces without a signature are not used any more."""


class OwnerKey(Body, frozen=True):
    """The key that an owner signs its nonces with."""

    ENTRY = "owner.key"
    owner: str
    public_key: str
    signature: str
    """Made with that key: its holder asks for it."""
    approval: str | None
    """Made with the key before; None: it is the owner's first."""


class BeaconValue(Body, frozen=True):
    """The value of a beacon's round."""

    ENTRY = "gpu.beacon"
    source: str
    round: int
    value: str


class ReservationState(Body, frozen=True):
    """A reservation is in another state, or in the same for another reason."""

    ENTRY = "reservation.state"
    reservation: str
    run: str
    state: str
    reason: str
    message: str
    shortfall_gpus: int


# -- the border -----------------------------------------------------------------------------------


def _types(base: type[Body]) -> dict[str, type[Body]]:
    found: dict[str, type[Body]] = {}
    for kind in base.__subclasses__():
        found |= {kind.ENTRY: kind} if "ENTRY" in vars(kind) else {}
        found |= _types(kind)
    return found


TYPES: dict[str, type[Body]] = _types(Body)
"""Every kind of entry that the control plane writes and folds."""


def encode(entry: NewEntry) -> Draft:
    """As the ledger takes it. A decision's input stands in the body, or among the blobs."""
    body = entry.body.document()
    digest, blobs = entry.input_digest, entry.blobs
    if isinstance(entry.input, Blob) and entry.input.size > INPUT_BYTES_MAX:
        digest, blobs = entry.input.digest, (*blobs, entry.input)
    elif entry.input is not None:
        asked = entry.input
        data = asked.document() if isinstance(asked, Blob) else canonical(asked)
        digest = sha256(data).hexdigest()
        if len(data) > INPUT_BYTES_MAX:
            blobs = (*blobs, Blob.of(data))
        else:
            body["input"] = Rendered(data.decode())
    return Draft(
        kind=entry.body.ENTRY,
        time_ms=entry.time_ms,
        author=entry.author,
        body=body,
        plan_id=entry.plan_id,
        effect=entry.effect,
        input_digest=digest,
        blobs=blobs,
        version=entry.body.VERSION if entry.version is None else entry.version,
        reasons=entry.reasons,
    )


def object_of(entry: Entry) -> ObjectApplied | ObjectDeleted | None:
    """Of an entry about an object."""
    for kind in (ObjectApplied, ObjectDeleted):
        if entry.kind == kind.ENTRY:
            return kind.of(entry.body)
    return None


def decode(entry: Entry) -> Body | None:
    """What a recorded entry says; None for entries of other governors and of the ledger itself."""
    kind = TYPES.get(entry.kind)
    return None if kind is None else kind.of(entry.body)
