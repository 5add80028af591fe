"""The specs of objects: what users write under `spec`, field by field.

Read by `fairlead.schema.objects`, which knows the manifests around them and what they mean.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, field

from fairlead.core import gpu
from fairlead.schema import gpu as documents

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
Label = Annotated[str, Meta(min_length=1, max_length=253)]
Gpus = Annotated[int, Meta(ge=1, le=GPUS_MAX)]
GpusOrNone = Annotated[int, Meta(ge=0, le=GPUS_MAX)]
Hours = Annotated[float, Meta(ge=0, le=HOURS_MAX)]
Duration = Annotated[str, Meta(description="like 90m, 2h, 1h30m, 45s, 1d")]
Labels = dict[str, str]


class Metadata(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """Who it is. All but name and labels is the server's; a given resourceVersion must match."""

    name: Name
    labels: Labels = field(default_factory=dict)
    resource_version: int | None = None
    uid: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None


class WindowSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """start <= t < end, RFC 3339 with a zone."""

    start: documents.Time
    end: documents.Time


class LendingSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """To whom an envelope may be lent: exact owners, prefixes like `org:*`, or `*`."""

    allow: bool = False
    to: list[Label] = field(default_factory=list)
    max_gpus: GpusOrNone | None = field(name="maxConcurrency", default=None)
    max_gpu_hours: Hours | None = field(name="maxGPUHours", default=None)


class EnvelopeSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A right to use some GPUs of one flavor somewhere, during a window."""

    name: Label
    flavor: Label
    concurrency: Gpus
    location: Labels = field(default_factory=dict)
    max_gpu_hours: Hours | None = field(name="maxGPUHours", default=None)
    window: WindowSpec | None = None
    recurrence: gpu.Recurrence | None = None
    sharing: gpu.Sharing = gpu.Sharing.FAMILY
    lending: LendingSpec = LendingSpec()


class AggregateCapSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A cap over several envelopes of the same budget."""

    name: Label
    flavor: Label
    envelopes: list[Label]
    max_gpus: GpusOrNone | None = field(name="maxConcurrency", default=None)
    max_gpu_hours: Hours | None = field(name="maxGPUHours", default=None)


class BudgetSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """What an owner has; `parents` are owners."""

    owner: Label
    parents: list[Label] = field(default_factory=list)
    envelopes: list[EnvelopeSpec] = field(default_factory=list)
    aggregate_caps: list[AggregateCapSpec] = field(default_factory=list)


class MalleableSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A run that takes any width from the minimum in steps."""

    min_gpus: Gpus = field(name="minTotalGPUs")
    step_gpus: Gpus = field(name="stepGPUs", default=1)


class FundingSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whether a run may borrow, how much, and from whom, in order."""

    allow_borrow: bool = field(name="allowBorrow", default=False)
    max_borrow_gpus: GpusOrNone | None = field(name="maxBorrowGPUs", default=None)
    sponsors: list[Label] = field(default_factory=list)


class SecretFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A secret by reference: the file is read when the command starts, never before."""

    file: Annotated[str, Meta(min_length=1)]


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
    working_directory: str | None = field(name="workingDirectory", default=None)
    checkpoint_grace: Duration | None = field(name="checkpointGrace", default=None)
    """Between being asked to end, or to shrink, and being made to."""


class NodeSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A machine: its devices' flavor and count, and where it stands."""

    flavor: Label
    devices: Annotated[int, Meta(ge=0, le=1024)]
    location: Labels = field(default_factory=dict)
    cordoned: bool = False


class ReservationSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """A run that is to start at its time, if need be by others giving way."""

    run: Name
    earliest_start: documents.Time


Spec = BudgetSpec | RunSpec | NodeSpec | ReservationSpec
