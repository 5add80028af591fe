"""Pods that the node agent cannot read are told of: in its log once, and in its status."""

import json
from pathlib import Path

import pytest

from fairlead.cli.node.commands import NodeLog
from tests.cli.shells import run_inside


def test_the_log_tells_once_of_a_pod_that_stays_unread(capsys: pytest.CaptureFixture[str]) -> None:
    log = NodeLog(dry_run=True)
    for unread in ({"new"}, {"half"}, {"half"}, {"half"}, set(), {"half"}, {"half"}):
        log.tell_unread(unread)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["pod"]) for line in told] == [("not governed", "half")] * 2
    assert "cpuacct" in told[0]["reason"]


def test_the_status_lists_them(tmp_path: Path) -> None:
    names = ("total_need", "capacity_millicores", "limits_millicores", "shadow_price")
    status = dict.fromkeys(names, 0) | {"mode": "uncongested", "policy": "nash", "pods": []}
    status |= {"time_ms": 0, "clear_ms": 5000, "observed_only": False, "failures": []}
    status |= {"actuate": "limits", "unread": ["half"]}
    (tmp_path / "status.json").write_text(json.dumps(status))
    done = run_inside("node", "status", "--state-dir", str(tmp_path), environment={})
    assert b"not governed: half: " in done.stdout, done
