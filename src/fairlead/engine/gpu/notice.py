"""Whether an author may make or move a reservation: `core.gpu.reserve`, on what is known.

What is allowed is recorded with the reservation; a refusal names the rule and what would do.
"""

from fairlead.core.gpu import ReserveAnswer, ReserveRequest, reserve
from fairlead.core.reasons import ReserveReason
from fairlead.engine.gpu.entries import NewEntry, ReserveDecision
from fairlead.engine.gpu.projection import Projection, starts_ms
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.values import Author, Config, Refused
from fairlead.schema.gpu import STYLE
from fairlead.schema.objects import ReservationManifest
from fairlead.schema.times import format_duration, format_time, parse_time

MINUTE_MS = 60_000


class ReservationRules:
    """The operator's policy for the reservations of one batch."""

    def __init__(self, projection: Projection, config: Config, now_ms: int) -> None:
        self._projection, self._config, self.now_ms = projection, config, now_ms
        self._made: dict[str, list[int]] = {}
        """Starts of the batch's new reservations so far, by owner."""

    def decide(
        self, manifest: ReservationManifest, before: Stored | None, owner: str, author: Author
    ) -> list[NewEntry]:
        """The recorded decision; raises `Refused`. Nothing where the start stays as it is."""
        start_ms = parse_time(manifest.spec.earliest_start, "spec.earliestStart")
        moved_ms = None if before is None else starts_ms(before)
        if start_ms == moved_ms:
            return []
        others = self._open(owner)
        asked = ReserveRequest(
            now_ms=self.now_ms,
            owner=owner,
            start_ms=start_ms,
            open_reservations=len(others) - (before is not None),
            policy=self._config.preemption,
            exempt=author.admin or owner in self._config.may_resolve,
            moved_from_ms=moved_ms,
        )
        found = reserve(asked)
        name = manifest.metadata.name
        if not found.allowed:
            why = f"reservation {name!r}: {_sentence(asked, found, others)}"
            raise Refused(found.reason.value, f"{why} (fairlead describe policy)")
        if before is None:
            self._made.setdefault(owner, []).append(start_ms)
        body = ReserveDecision(name, manifest.spec.run, STYLE.from_core(found))
        document, reasons = STYLE.from_core(asked), (found.reason.value,)
        by = author.user
        return [NewEntry(body, self.now_ms, author=by, input=document, reasons=reasons)]

    def _open(self, owner: str) -> list[int]:
        """Starts of an owner's reservations that wait."""
        projection, made = self._projection, self._made.get(owner, [])
        waiting = (
            stored
            for stored in projection.of_kind("Reservation")
            if projection.resolver.reservations[stored.name].waits
            and projection.owner_of(stored) == owner
        )
        return sorted([*made, *map(starts_ms, waiting)])


def _sentence(asked: ReserveRequest, found: ReserveAnswer, others: list[int]) -> str:
    """The rule that is broken, and what would do."""
    # In whole minutes: by the time that it is typed, a time to the millisecond would not do.
    minutes = -(-(found.earliest_ms or 0) // MINUTE_MS)
    earliest = format_time(minutes * MINUTE_MS)
    if found.reason is ReserveReason.IN_THE_PAST:
        return f"its start is in the past; the earliest that would do is {earliest}"
    if found.reason is ReserveReason.NOTICE_TOO_SHORT:
        notice = format_duration(asked.policy.min_notice_ms)
        return (
            f"a reservation needs {notice} notice; the earliest start that would do is {earliest}"
        )
    most = asked.policy.max_reservations
    due = f"; the next of them is due at {format_time(others[0])}" if others else ""
    return f"owner {asked.owner!r} has {asked.open_reservations} open reservations of {most}{due}"
