"""The claims of a water-fill, and the points where they start and stop to rise.

A claim is a plain object, and so are the loops over claims: mypyc keeps their numbers unboxed.

Events are numbered: 2*index where claim `index` starts, 2*index + 1 where it stops. Between two of
them the level is number/rate: `number` units are left to claims that rise at `rate` together.
"""


class Claim:
    """One claimant of a water-fill: x(t) = clamp(base + rate*t, low, high).

    The rate is an integer, or a product of two doubles (`weight`, `demand`) as long as `rough`
    works on it, which also uses what follows.
    """

    __slots__ = (
        "base",
        "demand",
        "high",
        "least",
        "low",
        "most",
        "pace",
        "rate",
        "rises",
        "weight",
    )

    def __init__(
        self, base: int, rate: int, low: int, high: int, *, weight: float = 0.0, demand: float = 1.0
    ) -> None:
        self.base = base
        self.rate = rate
        self.low = low
        self.high = high
        self.weight = weight
        self.demand = demand
        self.pace = weight * demand
        self.least = 0.0
        self.most = 0.0
        self.rises = False


def events_of(claims: list[Claim], starts: list[int]) -> list[int]:
    events: list[int] = []
    for index, claim in enumerate(claims):
        if claim.rate and starts[index] < claim.high:
            events.append(2 * index + 1)
            if starts[index] > claim.base:  # held up by its low bound until t reaches it
                events.append(2 * index)
    return events


def reach(claims: list[Claim], event: int) -> int:
    """What a claim has taken at an event, from its base: it is at t = reach/rate."""
    claim = claims[event // 2]
    return (claim.high if event % 2 else claim.low) - claim.base


def rising_at_start(claims: list[Claim], starts: list[int], events: list[int]) -> int:
    """The rate before the first event."""
    rate = 0
    for event in events:
        claim = claims[event // 2]
        if starts[event // 2] <= claim.base:
            rate += claim.rate
    return rate
