"""The flight recorder: every fast decision, hash-chained, bounded, replayable. See README.md."""

from fairlead.recorder.reader import CorruptRecord, RecordVerified, read, replay, verify
from fairlead.recorder.writer import FileRecorder

__all__ = ["CorruptRecord", "FileRecorder", "RecordVerified", "read", "replay", "verify"]
