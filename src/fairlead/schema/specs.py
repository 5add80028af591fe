"""The specs of objects: what users write under `spec`, field by field.

Read by `fairlead.schema.objects`, which knows the manifests around them and what they mean.
"""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, field

from fairlead.core import gpu
from fairlead.schema.derive import Style

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
LABEL_MAX = 253
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_MAX)]
Gpus = Annotated[int, Meta(ge=1, le=GPUS_MAX)]
GpusOrNone = Annotated[int, Meta(ge=0, le=GPUS_MAX)]
Time = Annotated[str, Meta(description="RFC 3339 with a zone, e.g. 2026-01-01T00:00:00Z")]
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
    """A run that is to start at its time, if need be by preemption."""

    run: Name
    earliest_start: Time


Spec = BudgetSpec | RunSpec | NodeSpec | ReservationSpec
