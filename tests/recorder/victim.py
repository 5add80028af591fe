"""A writer to be killed: `python -m tests.recorder.victim DIRECTORY FIRST_NUMBER`.

It says "ready" before it opens the record, then what was acknowledged, one line each, after the
call has returned: "entry SEQ NUMBER" and "mark SEQ". The lines go out unbuffered: what was said was
promised.
"""

import os
import sys

from fairlead.recorder import FileRecorder
from tests.recorder.documents import small

# Small segments, so that beginnings of segments are often what is interrupted; all are kept.
RING = {"segment_bytes": 3_000}


def main(directory: str, number: int) -> None:
    """Append for ever, marking all but every third entry."""
    os.write(1, b"ready\n")
    with FileRecorder(directory, **RING) as recorder:
        while True:
            seq = recorder.append(**small(number))
            os.write(1, f"entry {seq} {number}\n".encode())
            if number % 3:
                recorder.mark(seq, "applied", time_ms=number)
                os.write(1, f"mark {seq}\n".encode())
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
