"""Named fault points: the world asks at each opportunity whether something goes wrong here.

A rule of the scenario fires with a probability per opportunity (each rule and subject has its own
stream), at given times, or both. With `duration_s` 0 a given time fires once per subject, at the
first opportunity; otherwise for as long as it lasts.
"""

from collections.abc import Sequence

from fairlead.schema.scenario import FaultDocument, FaultPoint
from fairlead.sim.entropy import Entropy, Stream


class Faults:
    """The scenario's rules by point, and what has fired already."""

    def __init__(self, rules: Sequence[FaultDocument], entropy: Entropy) -> None:
        self._rules: dict[FaultPoint, list[tuple[int, FaultDocument]]] = {}
        for place, rule in enumerate(rules):
            self._rules.setdefault(rule.point, []).append((place, rule))
        self._entropy = entropy
        self._streams: dict[tuple[int, str], Stream] = {}
        self._spent: set[tuple[int, str, int]] = set()
        self.fired: dict[str, int] = {}
        """How often each point fired, for the report."""

    def fires(self, point: FaultPoint, subject: str, now_ms: int) -> FaultDocument | None:
        """The rule that fires for `subject` (a pod, or the agent) now, if any does."""
        for place, rule in self._rules.get(point, ()):
            if rule.pods and subject not in rule.pods:
                continue
            # Both are asked, so that a given time does not shift the luck of later opportunities.
            lucky = self._lucky(place, rule, subject, now_ms)
            timely = self._timely(place, rule, subject, now_ms)
            if lucky or timely:
                self.fired[point.value] = self.fired.get(point.value, 0) + 1
                return rule
        return None

    def _lucky(self, place: int, rule: FaultDocument, subject: str, now_ms: int) -> bool:
        if not rule.probability or now_ms < rule.from_s * 1000:
            return False
        if rule.until_s is not None and now_ms >= rule.until_s * 1000:
            return False
        key = (place, subject)
        if key not in self._streams:
            self._streams[key] = self._entropy.stream("fault", str(place), subject)
        return self._streams[key].chance(rule.probability)

    def _timely(self, place: int, rule: FaultDocument, subject: str, now_ms: int) -> bool:
        for at_s in rule.at_s:
            start_ms = at_s * 1000
            if now_ms < start_ms:
                continue
            if rule.duration_s == 0 or rule.point is FaultPoint.AGENT_CRASH:
                # A crash happens once; its duration is how long the agent is away.
                if (place, subject, at_s) not in self._spent:
                    self._spent.add((place, subject, at_s))
                    return True
            elif now_ms < start_ms + rule.duration_s * 1000:
                return True
        return False
