"""`fairlead clock`, on a control plane whose machine's clock jumps."""

import json
from typing import Any

import pytest

from fairlead.host import clock
from tests.api.servers import run
from tests.cli.shells import Shell
from tests.e2e.planes import documents

DAY_MS = 86_400_000


def _state(shell: Shell) -> str:
    return str(json.loads(shell.ok("clock", "-o", "json"))["state"])


def _anchors(shell: Shell) -> list[dict[str, Any]]:
    events = shell.server.ok("GET", "/v1/events?after=0&limit=1000")["items"]
    return [event for event in events if event["kind"] == "clock.anchored"]


def test_a_jump_is_shown_stops_starts_and_is_judged(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 where there is nothing to judge; who judged it stands in the ledger."""
    assert shell.ok("clock").splitlines()[0] == "state        steady"
    refused = shell("clock", "reject")
    assert (refused.returncode, "agrees with the ledger" in refused.stderr) == (1, True)
    assert shell("clock", "maybe").returncode == 2
    right = clock.now_ms
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now_ms", lambda: right() - 400 * DAY_MS)
        shell.server.until("held", lambda: _state(shell) == "held")
        off_ms = json.loads(shell.ok("clock", "-o", "json"))["differenceMs"]
        assert abs(off_ms + 400 * DAY_MS) <= 1_000, "the two clocks are read one after the other"
        assert " behind " in shell.ok("clock")
        shell.ok("submit", "-f", "-", input=documents(run("late", command=["true"])))
        assert shell.server.status("Run", "late")["phase"] == "Pending"
        assert "(dry run)" in shell.ok("clock", "reject", "--dry-run")
        assert _state(shell) == "held"
        shell.ok("clock", "reject")
        assert _state(shell) == "offset"
        assert shell.server.ended("late")["phase"] == "Completed"
    shell.server.until("recorded", lambda: _anchors(shell)[-1]["body"]["reason"] == "Returned")
    assert _state(shell) == "steady"
    judged = _anchors(shell)[-2]
    assert judged["body"]["reason"] == "Rejected"
    assert judged["author"] != "fairlead"
