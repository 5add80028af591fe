"""What the API takes and gives about giving way: forecasts, resolves, outcomes, chance."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from fairlead.api.shapes import Shape
from fairlead.core.units import INTEGER_MAX
from fairlead.schema.specs import GPUS_MAX, Label

Mode = Literal["off", "dry-run", "enforce"]
Tier = Literal["unfunded", "nominated", "funded"]
Stage = Literal["committed", "drawn", "applied", "void"]


class CutRow(Shape):
    """A lease that ends by rule, whatever the chance."""

    run: str
    owner: str
    lease: str
    kind: Literal["DropSpare", "Shrink"]
    gpus: int
    tier: Tier


class RiskRow(Shape):
    """A run that may be drawn: one in so many in the first draw; `certain`: all of them will."""

    run: str
    owner: str
    tier: Tier
    one_in: int = field(name="oneIn")
    certain: bool


class PlaceDocument(Shape):
    """Where GPUs are missing."""

    flavor: str
    location: dict[str, str]


class Forecast(Shape, kw_only=True):
    """Who gives way by rule, who is at risk and with which odds, and what would still be missing.

    Where a draw is open, cuts by rule may come back after it.
    """

    scope: PlaceDocument | None
    deficit_gpus: int = field(name="deficitGPUs")
    shortfall_gpus: int = field(name="shortfallGPUs")
    cuts: list[CutRow]
    at_risk: list[RiskRow] = field(name="atRisk")


class Outlook(Forecast, kw_only=True):
    """The same for a run that waits: when it could start, with and without others giving way.

    A refusal: nobody pays for it, and so nobody is asked to give way. Times are null where no end
    of what is in its way is known.
    """

    starts: bool
    refusal: dict[str, Any] | None
    earliest_start: str | None = field(name="earliestStart")
    without_cuts: str | None = field(name="withoutCuts")


class CapName(Shape):
    """An aggregate cap, or an envelope as a cap of its own."""

    budget: Label
    name: Label


class ResolveBody(Shape):
    """GPUs of a flavor somewhere, or what a lowered cap does not pay for any more; not both.

    A budget: all of its caps that bind, one after the other by name, and then the GPUs, if any.
    """

    flavor: Label | None = None
    location: dict[Label, Label] = field(default_factory=dict)
    gpus: Annotated[int, Meta(ge=1, le=GPUS_MAX)] | None = None
    cap: CapName | None = None
    budget: Label | None = None


class ResolveStep(Shape):
    """One resolve of several. Each waits for the one before, and is decided on what that left.

    Passed: nobody has to give way for it any more, or it cannot be done; the events say why. The
    forecast is of the world before the first one.
    """

    kind: Literal["aggregate", "envelope", "place"]
    name: str | None
    state: Literal["forecast", "begun", "waits", "passed"]
    outcome: int | None
    forecast: Forecast


class Resolved(Shape):
    """What a resolve came to; no outcome: a dry run, nothing is missing, or it is not enforced.

    Of a budget, outcome and forecast are those of the first step.
    """

    outcome: int | None
    resolver: Mode
    forecast: Forecast
    steps: list[ResolveStep] = field(default_factory=list)


class OutcomeRow(Shape):
    """One outcome."""

    outcome: int
    stage: Stage
    flavor: str
    k: int
    cause: str
    deficit_gpus: int = field(name="deficitGPUs")
    label: str | None
    committed: str


class OutcomeDocument(Shape, rename="camel"):
    """One outcome in full. Names are pseudonyms; `names` opens those that the caller may know."""

    outcome: int
    stage: Stage
    chain: str
    k: int
    committed: str
    answered: str | None
    final_seq: int | None
    cause: str | None
    run: str | None
    reservation: str | None
    scope: dict[str, Any]
    deficit_gpus: int = field(name="deficitGPUs")
    beacon: dict[str, Any] | None
    owner_weighting: Literal["owners", "tokens"]
    label: str | None
    seed: str | None
    reason: str | None
    tokens: list[dict[str, Any]]
    result: dict[str, Any] | None
    names: dict[str, str]


class VoidBody(Shape):
    """Why an outcome is given up; it is recorded under the name of whoever says it."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class Voided(Shape):
    """What became of it."""

    outcome: int
    stage: Stage


class NonceBody(Shape):
    """An owner's own bytes for the next outcome that it has a stake in."""

    nonce: Annotated[str, Meta(pattern="^([0-9a-f]{2}){1,64}$")]


class Nonce(Shape):
    """As recorded."""

    owner: str
    nonce: str


class BeaconBody(Shape):
    """The value of a round, as its public source says it."""

    source: Label
    round: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    value: Annotated[str, Meta(pattern="^([0-9a-f]{2}){1,256}$")]


class ExportQuery(Shape):
    """Whose names to open (default: the caller's own), or nobody's; and heads that were kept."""

    owner: Label | None = None
    public: bool = False
    head: (
        Annotated[
            str,
            Meta(pattern="^[1-9][0-9]{0,15}:[0-9a-f]{64}(,[1-9][0-9]{0,15}:[0-9a-f]{64}){0,99}$"),
        ]
        | None
    ) = None
    """SIZE:ROOT, several with commas: the file then shows that the log only grew since."""
