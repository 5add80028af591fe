"""Manifests: what users write as YAML and the API takes as JSON, checked and turned into values.

    apiVersion: fairlead.dev/v1alpha1
    kind: Run                       # Budget, Run, Node, Reservation; Lease is the server's own
    metadata: {name: train-1, labels: {team: vision}}
    spec: {owner: team-a, flavor: H100, totalGPUs: 8, duration: 2h}

What the server writes (`status`, and `uid`, `generation`, `creationTimestamp` in `metadata`) is
ignored in input, so that `get -o yaml`, an editor and `apply` work together. A `resourceVersion`
that is given must still be the current one. Of a Run's spec only `funding` can be changed.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from fairlead.core import gpu
from fairlead.core.gpu.place import Node
from fairlead.core.gpu.restart import RESTARTS_DEFAULT, RESTARTS_MAX
from fairlead.core.reasons import EndCause
from fairlead.core.units import repeats
from fairlead.schema import funding as documents
from fairlead.schema.border import BadInput, check_shape, refuse_nul
from fairlead.schema.convert import convert
from fairlead.schema.derive import Style
from fairlead.schema.times import DurationText, TimeText, parse_kept_time
from fairlead.schema.times import parse_duration as parse_duration  # noqa: PLC0414 - the border's

API_VERSION = "fairlead.dev/v1alpha1"
RUN_MUTABLE = frozenset({"funding"})

Kind = Literal["Budget", "Run", "Node", "Reservation"]
K = TypeVar("K")
S = TypeVar("S")

MEMORY_MIN, MEMORY_MAX = 4 * 2**20, 64 * 2**40
_MEMORY = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti|k|M|G|T|)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# -- specs: what users write, field by field --------------------------------------------------

GPUS_MAX = 100_000
HOURS_MAX = 2_000_000_000  # in milliseconds still an integer that JSON keeps
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        # `$` alone would let a newline at the end through.
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?(?!\n)$",
        description="lower-case letters, digits, dots and dashes, a letter or digit at both ends",
    ),
]
LABEL_MAX, AFTER_MAX = 253, 1000
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_MAX)]
Gpus = Annotated[int, Meta(ge=1, le=GPUS_MAX)]
GpusOrNone = Annotated[int, Meta(ge=0, le=GPUS_MAX)]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
Time = TimeText
Duration = DurationText
Directory = Annotated[
    str, Meta(description="absolute", extra_json_schema={"pattern": "^(/|$)", "maxLength": 4096})
]
Labels = dict[str, str]
Octal = Annotated[
    str, Meta(pattern=r"^0[0-7]{3}(?!\n)$", description='an octal mode in quotes, like "0027"')
]


class Metadata(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """Who it is. All but name and labels is the server's; a given resourceVersion must match."""

    name: Name
    labels: Labels = field(default_factory=dict)
    resource_version: int | None = None
    uid: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None


MANIFEST = Style(
    camel=True,
    strict=False,
    left_out={gpu.Budget: {"name"}},
    size_max=GPUS_MAX,
    text_max=LABEL_MAX,
    hours_max=HOURS_MAX,
    suffix="Spec",
)


@MANIFEST.derived(gpu.Budget)
class BudgetSpec(msgspec.Struct):
    """What an owner has; `parents` are owners."""

    if TYPE_CHECKING:
        owner: str
        envelopes: list[Any]


class MalleableSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A run that takes any width from the minimum in steps."""

    min_gpus: Gpus = field(name="minTotalGPUs")
    step_gpus: Gpus = field(name="stepGPUs", default=1)


class FundingSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whether a run may borrow, how much, and from whom, in order."""

    allow_borrow: bool = field(name="allowBorrow", default=False)
    max_borrow_gpus: GpusOrNone | None = field(name="maxBorrowGPUs", default=None)
    sponsors: list[Label] = field(default_factory=list)
    allow_unfunded: bool | UnsetType = field(name="allowUnfunded", default=UNSET)
    """Start without funding on devices that would be idle; the first to be preempted. Left out of
    the document where it is not given."""


@MANIFEST.derived(gpu.FailurePolicy)
class FailurePolicySpec(msgspec.Struct):
    """What follows when a run's command, or one of its ranks, fails; without one it has failed."""


class WarnBeforeSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How long before it may be preempted a run is told, and by which signal besides the file
    that FAIRLEAD_WARNING_FILE names."""

    before: Duration = "10m"
    signal: Literal["HUP", "USR1", "USR2"] | None = None


class SecretFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A secret by reference: the file is read when the command starts, never before."""

    file: Annotated[str, Meta(min_length=1)]


class AfterSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A run that has to end first, and how."""

    run: Name
    condition: gpu.AfterCondition = gpu.AfterCondition.OK


class RunSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """GPUs for an owner, and what to run on them."""

    owner: Label
    flavor: Label
    gpus: Gpus = field(name="totalGPUs")
    group_gpus: Gpus | None = field(name="groupGPUs", default=None)
    malleable: MalleableSpec | None = None
    spares_per_group: GpusOrNone = field(name="sparesPerGroup", default=0)
    location: Labels = field(default_factory=dict)
    duration: Duration | None = None
    funding: FundingSpec = FundingSpec()
    command: list[str] = field(default_factory=list)
    env: Labels = field(default_factory=dict)
    secret_env: dict[str, SecretFile] = field(name="secretEnv", default_factory=dict)
    working_directory: Directory | None = field(name="workingDirectory", default=None)
    checkpoint_grace: Duration | None = field(name="checkpointGrace", default=None)
    """Between being asked to end, or to shrink, and being made to."""
    failure_policy: FailurePolicySpec | UnsetType = field(name="failurePolicy", default=UNSET)
    """Left out of the document where it is not given, like those below: specs that earlier versions
    recorded are as they were."""
    warn_before: WarnBeforeSpec | UnsetType = field(name="warnBefore", default=UNSET)
    priority: Priority | UnsetType = UNSET
    """Among the waiting runs of its owner, higher first; it moves no other owner's runs."""
    restart_policy: gpu.RestartPolicy | UnsetType = field(name="restartPolicy", default=UNSET)
    backoff_limit: Annotated[int, Meta(ge=0, le=RESTARTS_MAX)] | UnsetType = field(
        name="backoffLimit", default=UNSET
    )
    max_runtime: Duration | UnsetType = field(name="maxRuntime", default=UNSET)
    """After this time with devices it is asked to end; `duration` is only what it is expected to
    take."""
    idle_after: Duration | UnsetType = field(name="idleAfter", default=UNSET)
    """After so long without work on any of its devices it is warned, or asked to end."""
    idle_action: Literal["Warn", "Release"] | UnsetType = field(name="idleAction", default=UNSET)
    cpus: Annotated[float, Meta(ge=0.001, le=4096)] | UnsetType = UNSET
    memory: Annotated[str, Meta(description="like 512Mi, 16Gi, 2G")] | UnsetType = UNSET
    pids: Annotated[int, Meta(ge=16, le=4_194_304)] | UnsetType = UNSET
    """Processes and threads that it may have; not given: 32768, where that can be held."""
    after: Annotated[list[AfterSpec], Meta(max_length=AFTER_MAX)] | UnsetType = UNSET
    """Runs that have to end before it starts."""
    umask: Octal | UnsetType = UNSET
    """Of the command's process; not given: 0027."""
    terminal: bool | UnsetType = UNSET
    """Whether the command runs on a terminal that its owner types into (`fairlead run -i`)."""


class NodeSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A machine: its devices' flavor and count, and where it stands. It is this host, or virtual:
    for tutorials and tests."""

    flavor: Label
    devices: Annotated[int, Meta(ge=0, le=1024)]
    location: Labels = field(default_factory=dict)
    cordoned: bool = False
    virtual: bool | UnsetType = UNSET
    foreign: Annotated[int, Meta(ge=0, le=1024)] | UnsetType = UNSET
    """Devices that others than Fairlead hold: so many fewer are given out. Left out where there are
    none: specs that earlier versions recorded are as they were."""


class ReservationSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """A run that is to start at its time, if need be by preemption."""

    run: Name
    earliest_start: Time


Spec = BudgetSpec | RunSpec | NodeSpec | ReservationSpec


# -- manifests ---------------------------------------------------------------------------------


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    """What every manifest has, read first to know which it is."""

    api_version: str
    kind: str


class _Manifest(
    msgspec.Struct, Generic[K, S], forbid_unknown_fields=True, frozen=True, rename="camel"
):
    api_version: Literal["fairlead.dev/v1alpha1"]
    kind: K
    metadata: Metadata
    spec: S
    status: Any = None


class BudgetManifest(_Manifest[Literal["Budget"], BudgetSpec], frozen=True):
    """A Budget as written."""


class RunManifest(_Manifest[Literal["Run"], RunSpec], frozen=True):
    """A Run as written."""


class NodeManifest(_Manifest[Literal["Node"], NodeSpec], frozen=True):
    """A Node as written."""


class ReservationManifest(_Manifest[Literal["Reservation"], ReservationSpec], frozen=True):
    """A Reservation as written."""


Manifest = BudgetManifest | RunManifest | NodeManifest | ReservationManifest
SHAPES: dict[str, type[Manifest]] = {
    "Budget": BudgetManifest,
    "Run": RunManifest,
    "Node": NodeManifest,
    "Reservation": ReservationManifest,
}
SPECS: dict[str, type[Spec]] = {
    "Budget": BudgetSpec,
    "Run": RunSpec,
    "Node": NodeSpec,
    "Reservation": ReservationSpec,
}


def read_manifest(value: Any) -> Manifest:
    """Check one manifest, shape and meaning; `BadInput` with the path of the offender."""
    refuse_nul(value)
    head = check_shape(value, _Head)
    if head.api_version != API_VERSION:
        raise BadInput("apiVersion", f"must be {API_VERSION}, got {head.api_version!r}")
    if head.kind not in SHAPES:
        raise BadInput("kind", f"must be one of {', '.join(SHAPES)}, got {head.kind!r}")
    manifest = check_shape(value, SHAPES[head.kind])
    if isinstance(manifest, BudgetManifest):
        to_budget(manifest.metadata.name, manifest.spec)
        for number, envelope in enumerate(manifest.spec.envelopes):
            window = envelope.window
            for end, text in (("start", window.start_ms), ("end", window.end_ms)) if window else ():
                parse_kept_time(text, f"spec.envelopes[{number}].window.{end}")
    elif isinstance(manifest, RunManifest):
        _check_run(manifest.spec)
        after = [name for name, _ in after_of(manifest.spec)]
        for fault in repeats("after", "run", after):
            raise BadInput(f"spec.{fault.field}", fault.message)
    elif isinstance(manifest, ReservationManifest):
        parse_kept_time(manifest.spec.earliest_start, "spec.earliestStart")
    return manifest


def read_spec(kind: str, value: Any) -> Spec:
    """A spec that was checked before, as the ledger keeps it."""
    return convert(value, SPECS[kind])


def spec_document(spec: Spec) -> dict[str, Any]:
    """A spec as plain data with every default filled in: equal specs, equal documents."""
    plain = msgspec.to_builtins(spec)
    return dict(plain)


def budget_document(name: str, spec: BudgetSpec) -> Any:
    """The same budget as a document of the `gpu.cover` contract."""
    return documents.FUND.restyled(gpu.Budget, spec, name=name)


def to_budget(name: str, spec: BudgetSpec) -> gpu.Budget:
    """Core's budget; names unique, members known, windows forward, no owner its own parent."""
    budget = MANIFEST.to_core(gpu.Budget, spec, "spec", name=name)
    for fault in documents.budget_faults((budget,)):
        raise BadInput("spec.parents", fault.message)
    return budget


def warn_before_ms(spec: RunSpec) -> int:
    """How long before an announced start a run at risk is told."""
    wanted = WarnBeforeSpec() if spec.warn_before is UNSET else spec.warn_before
    return parse_duration(wanted.before, "spec.warnBefore.before")


def _check_run(spec: RunSpec) -> None:
    to_request(spec)
    warn_before_ms(spec)
    to_restarts(spec)
    max_runtime_ms(spec)
    memory_bytes(spec)
    idle_after_ms(spec)
    per_group, spares = spec.group_gpus, spec.spares_per_group
    if per_group is not None and per_group > spec.gpus:
        raise BadInput("spec.groupGPUs", f"must be at most totalGPUs, {spec.gpus}")
    for where, names in (("env", spec.env), ("secretEnv", spec.secret_env)):
        for name in names:
            if not _VARIABLE.fullmatch(name):
                form = "must have names of letters, digits and _, with no digit first"
                raise BadInput(f"spec.{where}", f"{form}, got {name!r}")
    both = sorted(set(spec.env) & set(spec.secret_env))
    if both:
        raise BadInput("spec.secretEnv", f"repeats a name of env: {both[0]!r}")
    if spec.malleable is not None and per_group is None:
        step = spec.malleable.step_gpus
        message = "is required for a malleable run, which shrinks and grows by whole groups"
        raise BadInput("spec.groupGPUs", f"{message}: for example {step}, its step")
    if spares and per_group is not None:
        widths = {"totalGPUs": spec.gpus}
        if spec.malleable is not None:
            widths["malleable.minTotalGPUs"] = spec.malleable.min_gpus
            widths["malleable.stepGPUs"] = spec.malleable.step_gpus
        for name, width in widths.items():
            if width % per_group:
                raise BadInput(f"spec.{name}", f"must be whole groups of {per_group} with spares")
    grace_ms(spec)
    if any(not part for part in spec.command[:1]):
        raise BadInput("spec.command[0]", "must be a program")
    if not (spec.working_directory or "/").startswith("/"):
        raise BadInput("spec.workingDirectory", f"must be absolute, got {spec.working_directory!r}")


def grace_ms(spec: RunSpec) -> int | None:
    """How long a run asks for to save its work when it is to end or to shrink."""
    grace = spec.checkpoint_grace
    return None if grace is None else parse_duration(grace, "spec.checkpointGrace")


def to_request(spec: RunSpec) -> gpu.Request:
    """What cover is asked for: the width and its spares, which are paid like the rest."""
    malleable = spec.malleable
    if malleable is not None:
        if malleable.min_gpus > spec.gpus:
            raise BadInput("spec.malleable.minTotalGPUs", f"must be at most totalGPUs, {spec.gpus}")
        if (spec.gpus - malleable.min_gpus) % malleable.step_gpus:
            raise BadInput(
                "spec.totalGPUs",
                f"must be {malleable.min_gpus} plus a multiple of {malleable.step_gpus}",
            )
    duration, with_spares = spec.duration, to_shape(spec).with_spares
    return gpu.Request(
        owner=spec.owner,
        flavor=spec.flavor,
        gpus=with_spares(spec.gpus),
        location=spec.location,
        min_gpus=None if malleable is None else with_spares(malleable.min_gpus),
        step_gpus=None if malleable is None else with_spares(malleable.step_gpus),
        duration_ms=None if duration is None else parse_duration(duration, "spec.duration"),
        allow_borrow=spec.funding.allow_borrow,
        max_borrow_gpus=spec.funding.max_borrow_gpus,
        sponsors=tuple(spec.funding.sponsors),
    )


def max_runtime_ms(spec: RunSpec) -> int | None:
    """How long a run may hold devices; None: as long as it wants."""
    most = spec.max_runtime
    return None if most is UNSET else parse_duration(most, "spec.maxRuntime")


def idle_after_ms(spec: RunSpec) -> int | None:
    after = spec.idle_after
    if after is UNSET and spec.idle_action is not UNSET:
        raise BadInput("spec.idleAfter", "is required with idleAction")
    return None if after is UNSET else parse_duration(after, "spec.idleAfter")


def cpu_millicores(spec: RunSpec) -> int | None:
    return None if spec.cpus is UNSET else max(1, round(spec.cpus * 1000))


def memory_bytes(spec: RunSpec) -> int | None:
    """What a run's processes may hold in memory; None: as much as there is."""
    if spec.memory is UNSET:
        return None
    match = _MEMORY.fullmatch(spec.memory)
    found = int(match[1]) * _UNITS[match[2]] if match else 0
    if not MEMORY_MIN <= found <= MEMORY_MAX:
        raise BadInput("spec.memory", f"must be like 16Gi, 4Mi to 64Ti, got {spec.memory!r}")
    return found


def to_restarts(spec: RunSpec) -> tuple[gpu.FailurePolicy, gpu.RestartPolicy]:
    """How often a run starts again, and after which ends. `failurePolicy` alone means OnFailure;
    `backoffLimit` is its `maxRestarts` by the name that Jobs of Kubernetes have for it."""
    wanted, limit, policy = spec.restart_policy, spec.backoff_limit, gpu.FailurePolicy()
    if spec.failure_policy is not UNSET:
        policy = MANIFEST.to_core(gpu.FailurePolicy, spec.failure_policy, "spec.failurePolicy")
        wanted = gpu.RestartPolicy.ON_FAILURE if wanted is UNSET else wanted
        if EndCause.FAILED not in wanted.causes:
            raise BadInput("spec.restartPolicy", "must be OnFailure or Always with a failurePolicy")
        if limit is not UNSET and policy.max_restarts:
            raise BadInput("spec.backoffLimit", "is failurePolicy.maxRestarts; give one of them")
    if limit is not UNSET:
        policy = replace(policy, max_restarts=limit)
    elif spec.failure_policy is UNSET or (spec.restart_policy and not policy.max_restarts):
        policy = replace(policy, max_restarts=RESTARTS_DEFAULT)
    return policy, gpu.RestartPolicy.ON_PREEMPTION if wanted is UNSET else wanted


def after_of(spec: RunSpec | None) -> list[tuple[str, gpu.AfterCondition]]:
    """What a run starts after; nothing for None."""
    wanted = UNSET if spec is None else spec.after
    return [] if wanted is UNSET else [(one.run, one.condition) for one in wanted]


def to_shape(spec: RunSpec) -> gpu.GangShape:
    return gpu.GangShape(spec.group_gpus, spec.spares_per_group)


def foreign_of(spec: NodeSpec) -> int:
    return 0 if spec.foreign is UNSET else spec.foreign


def to_node(name: str, spec: NodeSpec, free: tuple[int, ...]) -> Node:
    """Core's node with the ordinals that no lease holds."""
    return Node(name, spec.flavor, spec.location, free, spec.cordoned)
