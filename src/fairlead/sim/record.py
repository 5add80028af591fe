"""What a run leaves behind: decisions as bytes, observations, a picture per second, one digest.

The digest is SHA-256 over the canonical JSON of everything recorded, in order. Two runs with the
same digest saw the same and decided the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from fairlead.core.canonical import canonical
from fairlead.core.cpu import CpuMode, NodePlan, NodeSnapshot, Policy, allocate
from fairlead.ports.cpu import Sighting
from fairlead.schema.border import read_document
from fairlead.schema.cpu import AllocateDocument, to_node_snapshot


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: the recorded bytes, and the values that a reader gets out of them."""

    time_ms: int
    snapshot: NodeSnapshot
    plan: NodePlan
    input: bytes
    result: bytes


class PodFrame(NamedTuple):
    """One pod in one second: means over the second, the limit at its end. In millicores."""

    uid: str
    want: int
    limit: int | None
    used: int
    unserved: int
    throttled: float
    """Share of the second's bandwidth periods that were throttled."""
    opted_out: bool


class Frame(NamedTuple):
    """The node at the end of one second. `mode` is None until the first decision."""

    time_ms: int
    policy: Policy
    mode: CpuMode | None
    shadow_price: float | None
    capacity: int
    limits_total: int
    """Σ of the limits that are ours."""
    pods: tuple[PodFrame, ...]


class Happening(NamedTuple):
    """One line of the story."""

    time_ms: int
    kind: str
    text: str


class Recorder:
    """Collects a run. Nothing here influences it."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.frames: list[Frame] = []
        self.story: list[Happening] = []
        self._hash = sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of all decisions and observations so far, in hex."""
        return self._hash.hexdigest()

    def decision(self, time_ms: int, document: dict[str, Any], result: dict[str, Any]) -> Decision:
        """Record a decision before it is applied, as the documents that any reader would get."""
        recorded = canonical(document)
        snapshot = to_node_snapshot(read_document(recorded, AllocateDocument))
        made = Decision(time_ms, snapshot, allocate(snapshot), recorded, canonical(result))
        self.decisions.append(made)
        self._digest({"decision": time_ms})
        self._hash.update(made.input + b"\n" + made.result + b"\n")
        return made

    def observation(self, time_ms: int, sightings: Sequence[Sighting]) -> None:
        """Record what the sensors reported, in the order of the pods' names."""
        seen = {each.uid: _sighting(each) for each in sightings}
        self._digest({"observation": time_ms, "pods": seen})

    def happening(self, time_ms: int, kind: str, text: str) -> None:
        """Add a line to the story."""
        self.story.append(Happening(time_ms, kind, text))

    def _digest(self, value: dict[str, Any]) -> None:
        self._hash.update(canonical(value) + b"\n")


def _sighting(sighting: Sighting) -> list[int | None]:
    """Compact, because there is one per pod and second."""
    read = sighting.containers[0].counters
    if read is None:
        return [sighting.limit_millicores, None]
    return [
        sighting.limit_millicores,
        read.usage_us,
        read.periods,
        read.throttled_periods,
        read.throttled_us,
    ]
