"""The GPU governor's decisions: who pays for which GPUs, and why not."""

from fairlead.core.gpu.cover import Line, Plan, Refusal, cover
from fairlead.core.gpu.family import Families, Tier, cycle_in
from fairlead.core.gpu.model import (
    HOUR_MS,
    AggregateCap,
    Budget,
    Envelope,
    Lease,
    Lending,
    Recurrence,
    Request,
    Sharing,
    Window,
)
from fairlead.core.gpu.remedy import Change, Remedy, Value, find_remedy
from fairlead.core.gpu.route import Binding, Book
from fairlead.core.gpu.usage import Usage, aggregate, period_at, tally

__all__ = [
    "HOUR_MS",
    "AggregateCap",
    "Binding",
    "Book",
    "Budget",
    "Change",
    "Envelope",
    "Families",
    "Lease",
    "Lending",
    "Line",
    "Plan",
    "Recurrence",
    "Refusal",
    "Remedy",
    "Request",
    "Sharing",
    "Tier",
    "Usage",
    "Value",
    "Window",
    "aggregate",
    "cover",
    "cycle_in",
    "find_remedy",
    "period_at",
    "tally",
]
