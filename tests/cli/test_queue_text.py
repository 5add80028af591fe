"""What `get runs` and `explain` say of a run in the queue."""

from typing import Any

import pytest

from fairlead.cli.gpu.objects import COLUMNS

HEAD = {
    "position": 1,
    "waiting": 12,
    "gpus": 4,
    "on": "box",
    "earliestStart": "2026-01-01T03:25:00Z",
    "after": "sweep",
    "afterOwner": "a",
    "assumed": False,
}
FIRST = "first at about 2026-01-01T03:25:00Z"


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (None, "NoDevices"),
        ({"position": 3, "waiting": 12}, "NoDevices (3/12)"),
        (HEAD, f"waits for 4 GPUs on box; {FIRST} when sweep ends (1/12)"),
        (
            HEAD | {"assumed": True},
            "waits for 4 GPUs on box; first when sweep ends, which has no known duration (1/12)",
        ),
        (
            HEAD | {"lacks": "envelopes"},
            f"waits for envelopes that pay for 4 GPUs of H100; {FIRST} when sweep ends (1/12)",
        ),
        (HEAD | {"lacks": "devices"}, f"waits for 4 GPUs on box; {FIRST} when sweep ends (1/12)"),
        (HEAD | {"gpus": 1, "on": None, "after": None}, f"waits for 1 GPU of H100; {FIRST} (1/12)"),
    ],
)
def test_a_row_says_where_a_run_stands_in_the_queue(queue: Any, text: str) -> None:
    """Its position; of the first also when it starts, and which run has to end for it."""
    run = {
        "spec": {"flavor": "H100"},
        "status": {"paused": False, "reason": "NoDevices", "queue": queue},
    }
    (reason,) = [column for column in COLUMNS["Run"] if column.title == "REASON"]
    assert reason.read(run) == text
