"""The flight recorder: every fast decision, hash-chained, bounded, replayable. See README.md."""

from fairlead.recorder.reader import CorruptRecord as CorruptRecord
from fairlead.recorder.reader import RecordVerified as RecordVerified
from fairlead.recorder.reader import read as read
from fairlead.recorder.reader import replay as replay
from fairlead.recorder.reader import verify as verify
from fairlead.recorder.writer import FileRecorder as FileRecorder
