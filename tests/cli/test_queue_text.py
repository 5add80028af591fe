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
SECOND = {"position": 2, "waiting": 12, "gpus": 2, "on": "box", "lacks": "devices"}
FIRST = "first at about 2026-01-01T03:25:00Z"


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (None, "NoDevices"),
        (SECOND, "waits for 2 GPUs on box (2/12)"),
        (SECOND | {"cordoned": True}, "waits for 2 GPUs on box: it is cordoned (2/12)"),
        (
            SECOND | {"cordoned": True, "on": None},
            "waits for 2 GPUs of H100: every node is cordoned (2/12)",
        ),
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
        "status": {"paused": False, "phase": "Pending", "reason": "NoDevices", "queue": queue},
    }
    (reason,) = [column for column in COLUMNS["Run"] if column.title == "REASON"]
    assert reason.read(run) == text


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            {"reason": "Queued", "queue": SECOND},
            "waits for 2 GPUs on box: it would delay a run before it (2/12)",
        ),
        (
            {
                "reason": "CapExceeded",
                "queue": SECOND | {"lacks": "envelopes"},
                "refusal": {"message": "1 GPUs short of 2; raise x from 1 to 2", "remedy": {}},
            },
            "not funded: 1 GPU short of 2 (2/12)",
        ),
        ({"reason": "DependencyPending", "message": "starts after run/a"}, "starts after run/a"),
        ({"reason": "Submitted", "message": ""}, "Submitted"),
        (
            {"phase": "Reserved", "reason": "Submitted", "reservation": "monday"},
            "starts by reservation/monday",
        ),
    ],
)
def test_every_run_that_waits_has_a_reason(status: dict[str, Any], text: str) -> None:
    """In a sentence, not only the first of a queue."""
    run = {"spec": {"flavor": "H100"}, "status": {"paused": False, "phase": "Pending"} | status}
    (reason,) = [column for column in COLUMNS["Run"] if column.title == "REASON"]
    assert reason.read(run) == text
