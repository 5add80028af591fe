"""Requests and replies of the lists that are paged and filtered here."""

from typing import Annotated, Literal

from msgspec import Meta

from fairlead.api.shapes import Count, Event, Shape
from fairlead.engine.gpu.history import RunAttempt
from fairlead.engine.gpu.utilisation import UseReading
from fairlead.schema.objects import Label

Text = Annotated[str, Meta(max_length=200)]
PageLimit = Annotated[int, Meta(ge=1, le=500)]


class RunsQuery(Shape):
    """`phase`: one or several, with commas between. `text`: a part of the name or the owner.
    `ended=fold`: runs that have ended are counted, and listed only where `phase` names them.
    `cursor`: `next` of the page before."""

    phase: Annotated[str, Meta(max_length=100)] = ""
    owner: Label | None = None
    flavor: Label | None = None
    text: Text = ""
    ended: Literal["fold", "show"] = "show"
    limit: PageLimit = 50
    cursor: Count | None = None


class QueueQuery(Shape):
    """`cursor`: `next` of the page before, which is a position."""

    limit: PageLimit = 50
    cursor: Count = 0


class NodesQuery(Shape):
    """`text`: a part of the name. `cursor`: `next` of the page before."""

    flavor: Label | None = None
    text: Text = ""
    limit: PageLimit = 100
    cursor: Text = ""


class TimelineQuery(NodesQuery):
    """RFC 3339 times; by default from a day ago to a day ahead."""

    since: str | None = None
    until: str | None = None


class BurnDownQuery(Shape):
    """Limit the answer to one budget."""

    budget: Label | None = None


class HistoryQuery(Shape):
    """`cursor`: `next` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: Count | None = None


class RunHistoryPage(Shape):
    """The newest events and attempts first; `use` by time. `decisions` are the numbers of events
    that record a decision. `complete`: no event of the run is left out."""

    attempts: list[RunAttempt]
    events: list[Event]
    decisions: list[int]
    complete: bool
    next: int | None
    use: list[UseReading]
