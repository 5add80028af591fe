"""The flight recorder: every fast decision, hash-chained, bounded, replayable. See README.md."""

from fairlead.recorder.reader import CorruptRecord, Verified, read, verify
from fairlead.recorder.replay import Replayed, replay
from fairlead.recorder.writer import FileRecorder
from fairlead.schema.replay import SHIPPED, Verdict

__all__ = [
    "SHIPPED",
    "CorruptRecord",
    "FileRecorder",
    "Replayed",
    "Verdict",
    "Verified",
    "read",
    "replay",
    "verify",
]
