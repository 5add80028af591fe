"""Closed enums of reasons, one per governor. A decision never invents a string of its own."""

from enum import StrEnum


class CpuReason(StrEnum):
    """Why a pod's need is what it is, and what was bent to make the grants fit."""

    DEMAND_DRIVEN = "demand-driven"
    """The need follows the demand signal."""
    USAGE_FALLBACK = "usage-fallback"
    """Demand reads 0 although usage is near the minimum: the signal looks broken, usage decides."""
    SIGNAL_MISSING_USAGE = "signal-missing.usage"
    """No demand signal; the need follows usage."""
    SIGNAL_MISSING_HOLD = "signal-missing.hold"
    """No demand signal and no usage; the current grant is held."""
    SIGNAL_MISSING_MIN = "signal-missing.min"
    """No demand signal, no usage, no current grant; the minimum is all that is known."""
    MIN_ABOVE_MAX = "min-above-max"
    """The minimum was above the maximum; the ceiling wins."""
    GUARDRAIL_RELAXED = "guardrail-relaxed"
    """The lower bounds together passed the capacity; this pod's was lowered to fit."""


class BoundReason(StrEnum):
    """Which guardrail set the bounds that a pod's grant may move in."""

    COOLDOWN = "cooldown"
    """The grant changed less than a cooldown ago: it is held."""
    DEAD_BAND = "dead-band"
    """The target is so near that a write is not worth it: the grant is held."""
    STEP = "step"
    """One step at most, up or down."""
    GRACE = "grace"
    """Young or newly found: it keeps its limit, as far as the other pods leave capacity."""
    NEWCOMER = "newcomer"
    """The limit in force is still the user's: the first grant may lie anywhere."""
    UNLIMITED = "unlimited"
    """No limit is in force yet: there is nothing to move from."""
    LENDING = "lending"
    """It gets less than it needs, and uses what the others leave: what it lacks is taken off its
    guarantee, down to its minimum."""
    LATENCY = "latency-target"
    """Its threads wait longer for a CPU than its latency target allows, or did a while ago."""


class CoverRefusal(StrEnum):
    """Why a GPU request is not covered: the first single relaxation that would have helped."""

    BORROW_LIMIT_EXCEEDED = "BorrowLimitExceeded"
    """The run may not borrow, or not as much as it would take."""
    ACL_DENIED = "ACLDenied"
    """A sponsor would have enough, but does not lend to this owner."""
    INTEGRAL_CAP_EXCEEDED = "IntegralCapExceeded"
    """GPUs are free, but their hours are used up or promised."""
    CONCURRENCY_CAP_EXCEEDED = "ConcurrencyCapExceeded"
    """Too many GPUs at once."""
    NO_ENVELOPE = "NoEnvelope"
    """Nothing of the flavor is reachable in an open window."""


class CutKind(StrEnum):
    """How a lease is ended when GPUs are missing."""

    DROP_SPARE = "DropSpare"
    """It stood by and was not needed yet."""
    SHRINK = "Shrink"
    """Its malleable run goes on with fewer groups."""
    RANDOM_PREEMPT = "RandomPreempt"
    """Its run was selected in the lottery."""


class Exclusion(StrEnum):
    """Why an open lease is no candidate for preemption."""

    FLAVOR = "flavor"
    """Its devices are of another flavor."""
    LOCATION = "location"
    """A label of the scope's location differs or is missing."""
    PAYER = "payer"
    """No envelope under the cap that binds pays for it."""
    BENEFICIARY = "beneficiary"
    """It belongs to the run that is to be placed."""
    ENDING = "ending"
    """Its run stops, or is losing leases already."""
    MIN_RUNTIME = "min-runtime"
    """Its run is funded, and started less than the minimum runtime ago."""
    COOLDOWN = "cooldown"
    """Its run is funded, and was preempted less than the cooldown ago."""
    FUNDED = "funded"
    """Its run is funded, and only unfunded runs are preempted for this one."""


class OverdrawReason(StrEnum):
    """Whether a run starts without funding, on devices that would be idle."""

    STARTS = "Starts"
    NO_ENVELOPE = "NoEnvelope"
    """Its owner has no open envelope of the flavor to count the overdraft in."""
    NO_DEVICES = "NoDevices"
    FUNDED_RUN_WAITS = "FundedRunWaits"
    """A funded run waits that could use the devices."""


class RecallReason(StrEnum):
    """Who loses the funding of a lease to the owner of the envelope that pays for it."""

    BORROWED = "borrowed"
    """An owner that is no family."""
    COUSIN = "cousin"
    CHILD = "child"
    """An owner that names the envelope's owner as a parent."""
    SIBLING = "sibling"


class ReserveReason(StrEnum):
    """Whether a reservation may be made, or moved."""

    ALLOWED = "Allowed"
    IN_THE_PAST = "StartInThePast"
    NOTICE_TOO_SHORT = "NoticeTooShort"
    """Its start is nearer than the minimum notice."""
    QUOTA = "ReservationQuota"
    """Its owner has as many open reservations as an owner may have."""


class QuotaReason(StrEnum):
    """Whether an owner may have one more run, or a larger one."""

    ALLOWED = "Allowed"
    OPEN_RUNS = "OpenRunsQuota"
    """Its owner has as many runs that have not ended as an owner may have."""
    MANIFEST_BYTES = "ManifestBytesQuota"
    """The manifests of its owner take as many bytes as an owner may keep."""


class DeficitReason(StrEnum):
    """Whether GPUs are missing, and whether preemption could free them."""

    RESOLVABLE = "Resolvable"
    """GPUs are missing, and the candidates hold enough."""
    NOT_ENOUGH = "NotEnough"
    """GPUs are missing, and all candidates together hold too few."""
    NO_DEVICES = "NoDevices"
    """No node in service can hold the gang."""
    FITS = "Fits"
    """The gang can be placed on free devices."""
    WITHIN_CAP = "WithinCap"
    """Nothing is above the cap."""
    ENVELOPE_PROMISED = "EnvelopePromised"
    """An envelope of another owner would pay, which that owner recalled for a run that waits."""
    NODE_EMPTY = "NodeEmpty"
    """No candidate holds a device of the node."""


class StartReason(StrEnum):
    """Whether a run starts, or grows, and if not, what it lacks."""

    STARTS = "Starts"
    """It is funded, and there are devices."""
    NOT_FUNDED = "NotFunded"
    """No envelopes pay for it, not even for its minimum."""
    NO_DEVICES = "NoDevices"
    """It is funded, and finds no place."""
    STARTS_LATER = "StartsLater"
    """It finds a place at its minimum on the devices that are to be freed."""


class ResizeReason(StrEnum):
    """Whether a run goes on with other devices, and if not, why."""

    RESIZED = "Resized"
    NO_SPARES = "NoSpares"
    """A group lost more devices than it has spares elsewhere."""
    WIDTH = "WidthOutOfRange"
    """Below its minimum, or not below its width."""
    STEP = "NotWholeSteps"
    GROUPS = "NotWholeGroups"
    """No number of whole groups leaves that width."""


class EndCause(StrEnum):
    """What ended a run's command, or took its devices."""

    FAILED = "failed"
    """Its command failed, or is gone."""
    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"
    """Its devices were taken for another run, or its node is out of service."""
    INTERRUPTED = "interrupted"
    """The machine was restarted, or the ledger restored: its command is gone."""
    MAX_RUNTIME = "maxRuntime"
    HOURS_USED = "hoursUsed"
    """The hours of a hard envelope are used up."""
    IDLE = "idle"


class LimitReason(StrEnum):
    """Whether a run is within its limits, and if not, which is over."""

    WITHIN = "Within"
    MAX_RUNTIME = "MaxRuntimeOver"
    """It has held devices for as long as its `maxRuntime`."""
    HOURS_USED = "HoursUsedUp"
    """The GPU-hours of an envelope with `enforcement: hard` are used up."""
    IDLE = "Idle"
    """Its devices have done nothing for as long as its `idleAfter`."""


class RestartReason(StrEnum):
    """Whether a run that has ended starts again, and if not, why."""

    RESTARTS = "Restarts"
    """At once, on the devices that it has."""
    REQUEUES = "Requeues"
    """When there are devices for it again."""
    POLICY = "NotByPolicy"
    """Its restart policy does not start it again after such an end."""
    NONE_LEFT = "NoRestartsLeft"
    """It was started again as often as its policy allows."""
    EXIT_CODE = "FailExitCode"
    """With this exit code it fails at once."""


class AfterReason(StrEnum):
    """Whether a run that starts after others may start."""

    READY = "DependenciesMet"
    WAITS = "DependencyPending"
    """A run that it starts after has not ended."""
    FAILED = "DependencyFailed"
    """A run that had to succeed failed, or was deleted."""


class QueueReason(StrEnum):
    """Why a run has its place in the queue."""

    SUBMITTED = "submitted"
    """By the order of submission."""
    TIER = "tier"
    """Its owner has asked for more than its envelopes grant: it is moved back."""
    PRIORITY = "priority"
    """Its owner's priorities gave it the place of another run of that owner."""
    PROMISED = "promised"
    """It was the first of its scope, and was promised its earliest start: it stays first."""


class BackfillReason(StrEnum):
    """Whether a run may start while others before it in the queue wait for devices."""

    ENDS_BEFORE = "EndsBefore"
    """It ends before any of them could start."""
    LEAVES_ROOM = "LeavesRoom"
    """It uses devices that none of them needs at its start."""
    DELAYS = "DelaysHead"
    """It would delay one of them: it waits."""


class ActivationReason(StrEnum):
    """Whether other runs may be preempted for a reservation that is due."""

    DUE = "Due"
    PREEMPTED_ONCE = "PreemptedOnce"
    """Others were preempted for it once, and it did not start."""
    OUTCOME_VOIDED = "OutcomeVoided"
    """An operator voided its outcome, or nothing has changed since it was void."""


class RankCause(StrEnum):
    """What waiting runs are ranked for."""

    RECALL = "recall"
    """Funding of their owner's envelopes that others use."""
    RECLAIM = "reclaim"
    """Devices of unfunded runs, for funded ones that lack devices."""
    OVERDRAW = "overdraw"
    """Idle devices, for runs that no budget pays for."""


class GrowthReason(StrEnum):
    """Why a shrunk run has its place among those that may grow."""

    NAME = "name"


class QueueHold(StrEnum):
    """Why a run is not considered for admission, or for growth, now."""

    RESERVATION_NOT_DUE = "ReservationNotDue"
    """Its reservation starts it, later."""
    RESERVATION_DUE = "ReservationDue"
    """Its reservation is due and starts it; the queue does not."""
    RESOLVE_OPEN = "ResolveOpen"
    """Free devices of its flavor are kept for the winner of an open outcome."""
    NOT_SETTLED = "NotSettled"
    """It is paused, ends, or has leases to give back; said of runs that are to grow."""


class TrafficReason(StrEnum):
    """Why a tick decided as it did. The order of the members is their priority: a tick names the
    first two that hold.
    """

    FAILSAFE = "failsafe"
    """The agent found its own heartbeat stale. Said by the agent, never by a tick."""
    FULL = "full"
    """As many were inside as may be, and what came beyond was told to try again. Said by the
    agent of an open admission, never by a tick."""
    NO_BACKENDS = "no_backends"
    """The group is empty: everything is denied."""
    ALL_ISOLATED = "all_isolated"
    """No backend may be routed to: a drip goes to the least bad."""
    PSI_STALL = "psi_stall"
    """A node has stood still for too many of its last samples."""
    TTF = "ttf"
    """Something exhaustible runs out soon."""
    RETRY_STORM = "retry_storm"
    """Clients repeat themselves: retries per success are above their limit."""
    ERRORS = "errors"
    """A routable backend carries the absolute error penalty."""
    CONDUCTANCE = "conductance"
    """The group lets too little flow through for the pressure it is under."""
    SKEW = "skew"
    """Requests went elsewhere than the weights wanted."""
    SIGNAL_MISSING_LATENCY = "signal_missing.latency"
    """Latency is unknown for some backends (the worst is assumed) or for all (left out)."""
    SIGNAL_MISSING_ERRORS = "signal_missing.errors"
    """The same for error rates."""
    SIGNAL_MISSING_QUEUE = "signal_missing.queue"
    """The same for queues."""
    SIGNAL_MISSING_BOTH = "signal_missing.both"
    """Neither latency nor errors of any backend are known: slots freeze, admission is soft."""
    ISOLATION = "isolation"
    """A backend is isolated."""
    GUARD_HOLD = "guard_hold"
    """The step would have made the skew worse and was not taken."""
    PRESSURE_ERRORS = "pressure.errors"
    """Slots moved, mostly because of errors."""
    PRESSURE_LATENCY = "pressure.latency"
    """Slots moved, mostly because of latency."""
    PRESSURE_QUEUE = "pressure.queue"
    """Slots moved, mostly because of queues."""
    MONOPOLY = "monopoly"
    """One backend: nothing to route, admission only."""
    STEADY = "steady"
    """Nothing moves and nothing is wrong."""
