"""The GPU governor's decisions: who pays for which GPUs and why not, and who gives way."""

from fairlead.core.gpu.conflict import (
    Conflict,
    ConflictLease,
    ConflictRun,
    Malleable,
    Role,
    Scope,
    ScopeCap,
    conflict_bytes,
    conflict_digest,
)
from fairlead.core.gpu.cover import Plan, Refusal, cover
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
from fairlead.core.gpu.outcome import check_outcome, commitment_for
from fairlead.core.gpu.remedy import Change, Remedy, Value, cover_or_remedy
from fairlead.core.gpu.resolution import Action, CutTier, Forecast, Resolution, RiskRound, Round
from fairlead.core.gpu.resolve import forecast, resolve
from fairlead.core.gpu.route import Book
from fairlead.core.gpu.usage import Usage, aggregate, period_at, tally
from fairlead.core.gpu.walk import Binding, Line

__all__ = [
    "HOUR_MS",
    "Action",
    "AggregateCap",
    "Binding",
    "Book",
    "Budget",
    "Change",
    "Conflict",
    "ConflictLease",
    "ConflictRun",
    "CutTier",
    "Envelope",
    "Families",
    "Forecast",
    "Lease",
    "Lending",
    "Line",
    "Malleable",
    "Plan",
    "Recurrence",
    "Refusal",
    "Remedy",
    "Request",
    "Resolution",
    "RiskRound",
    "Role",
    "Round",
    "Scope",
    "ScopeCap",
    "Sharing",
    "Tier",
    "Usage",
    "Value",
    "Window",
    "aggregate",
    "check_outcome",
    "commitment_for",
    "conflict_bytes",
    "conflict_digest",
    "cover",
    "cover_or_remedy",
    "cycle_in",
    "forecast",
    "period_at",
    "resolve",
    "tally",
]
