"""What requests may carry behind the question mark, as types."""

from typing import Annotated, Literal

from msgspec import Meta

from fairlead.api.shapes import Count, Shape
from fairlead.core.units import INTEGER_MAX
from fairlead.schema.specs import GPUS_MAX, Label

By = Literal["owner", "envelope", "budget", "run"]
Period = Literal["day", "week", "month", "quarter"]


class OwnerQuery(Shape):
    """Only those of an owner."""

    owner: Label | None = None


class DryRunQuery(Shape):
    """Whether to say only what would happen."""

    dry_run: bool = False


class ActionQuery(DryRunQuery):
    """`width`: how many GPUs a run is to shrink to; of that verb alone."""

    width: Annotated[int, Meta(ge=1, le=GPUS_MAX)] | None = None


class PutQuery(DryRunQuery):
    """`expected_version`: only if the object is still in that version; 0: only if there is none."""

    expected_version: Count | None = None


class EventsQuery(Shape):
    """Where to begin, and how long to wait for something new."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_s: Annotated[int, Meta(ge=0, le=60)] = 0


class WatchQuery(Shape):
    """Where to begin; without it, now. `limit`: end after so many."""

    after: Count | None = None
    limit: Annotated[int, Meta(ge=1, le=INTEGER_MAX)] | None = None


class LogsQuery(Shape):
    """`follow`: go on until the run has ended. `tail`: begin so many lines before the end."""

    follow: bool = False
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None


class SponsorsQuery(Shape):
    """Who asks, and for what."""

    owner: Label
    flavor: Label


class ReportQuery(Shape):
    """Which UTC days, cut into periods, told apart by what.

    `since` and `until` are RFC 3339; the days that they touch count. Without them: until now, from
    the beginning of the period that was 30 days earlier.
    """

    by: By = "envelope"
    period: Period = "month"
    since: str | None = None
    until: str | None = None
    format: Literal["json", "csv"] = "json"


class EntriesQuery(Shape):
    """The size of the log that proofs are to be about; without it, the newest."""

    size: Annotated[int, Meta(ge=1, le=INTEGER_MAX)] | None = None


class ConsistencyQuery(Shape):
    """Two sizes."""

    old: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    new: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
