"""Which leases of a conflict are candidates: the test of a scope, asked for every lease."""

from collections.abc import Mapping

from fairlead.core.gpu.conflict import Scope
from fairlead.core.reasons import Exclusion


class ScopeTest:
    """Asked a hundred thousand times, so what it compares with is worked out once."""

    __slots__ = ("_flavor", "_labels", "_payers", "capped")

    def __init__(self, scope: Scope) -> None:
        cap = scope.cap
        self._flavor = scope.flavor
        self._labels = list(scope.location.items())
        self.capped = cap is not None
        """Whether it matters who pays."""
        self._payers = set() if cap is None else {(cap.budget, name) for name in cap.envelopes}

    def exclusion(
        self, flavor: str, location: Mapping[str, str], budget: str, envelope: str
    ) -> Exclusion | None:
        """The first thing that puts a lease out of scope; None: it is a candidate."""
        return self.elsewhere(flavor, location) or self.unpaid(budget, envelope)

    def elsewhere(self, flavor: str, location: Mapping[str, str]) -> Exclusion | None:
        if flavor != self._flavor:
            return Exclusion.FLAVOR
        for key, value in self._labels:
            if location.get(key) != value:
                return Exclusion.LOCATION
        return None

    def unpaid(self, budget: str, envelope: str) -> Exclusion | None:
        if not self.capped or (budget, envelope) in self._payers:
            return None
        return Exclusion.PAYER
