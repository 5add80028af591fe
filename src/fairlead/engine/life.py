"""The record of a life: which entry holds everything, and which follows from the one before."""

from typing import Any, NamedTuple

from fairlead.ports.recorder import Recorder


class Link(NamedTuple):
    """How the next entry is tied to the one before."""

    follows: bool
    """What it leaves out is in the entries before."""
    whole: bool
    """It is to hold everything."""


class LifeRecord:
    """Appends the decisions of one governor. After one that could not be recorded, or `break_off`,
    the next entry holds everything."""

    def __init__(self, kind: str, version: int) -> None:
        self._kind, self._version = kind, version
        self._linked = False

    def break_off(self) -> None:
        """The next entry does not follow from the last: another configuration, or another state."""
        self._linked = False

    def next(self, recorder: Recorder) -> Link:
        """How to make the input of the next entry; `append` is to follow."""
        follows, self._linked = self._linked, False
        return Link(follows, not follows or recorder.begins_segment(self._kind))

    def append(self, recorder: Recorder, time_ms: int, *, input: Any, output: Any) -> int:
        """Record a decision before it is applied; its sequence number. Documents, or where the
        recorder is one of files, their canonical text (`Rendered`)."""
        sequence = recorder.append(
            self._kind, version=self._version, time_ms=time_ms, input=input, output=output
        )
        self._linked = True
        return sequence
