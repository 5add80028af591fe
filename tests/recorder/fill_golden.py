"""`python -m tests.recorder.fill_golden`: write the golden segment, if there is none.

It is made of real clearings; the format and the decisions behind it are promises once committed.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.core.cpu import Policy, clear
from fairlead.ports.recorder import Recorder
from fairlead.recorder import FileRecorder
from fairlead.schema.cpu import from_plan, from_snapshot
from tests.core.cpu.cases import random_snapshot
from tests.recorder.documents import clearings

GOLDEN = Path(__file__).parent / "golden" / "segment-00000001.jsonl"
FORMAT_1 = GOLDEN.with_name("format-1.jsonl")
"""The same as release 0.1 wrote it: the later entries as patches."""


def write(recorder: Recorder) -> None:
    """Clearings of one node as they follow each other, then unrelated and hostile ones."""
    made = clearings(pods=6, changed=2, capacity_millicores=5_000)
    for number in range(6):
        input, output = next(made)
        time_ms = 5_000 * number
        seq = recorder.append("cpu.clear", version=1, time_ms=time_ms, input=input, output=output)
        if number % 3 != 2:
            recorder.mark(seq, "applied", time_ms=time_ms + 40)
        else:
            recorder.mark(seq, "voided", time_ms=time_ms + 40, note="the agent was restarted")
    rng = random.Random(20)
    for policy in Policy:
        snapshot = random_snapshot(rng, policy)
        input, output = from_snapshot(snapshot), from_plan(clear(snapshot))
        recorder.append("cpu.clear", version=1, time_ms=60_000, input=input, output=output)


def main() -> None:
    """An existing file is never touched."""
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN.name} exists; remove it to write another")
    with TemporaryDirectory() as directory:
        with FileRecorder(directory) as recorder:
            write(recorder)
        GOLDEN.write_bytes((Path(directory) / GOLDEN.name).read_bytes())


if __name__ == "__main__":
    main()
