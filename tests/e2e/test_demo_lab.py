"""`fairlead up --demo` as a visitor sees it: alive, real, quiet, and gone when it ends."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.api.access import user_name
from fairlead.api.lab import CASTS, OWNERS, POLICY, manifests
from fairlead.cli.client import Client
from fairlead.cli.up import command
from tests.e2e.demos import Demo


def test_the_lab_lives_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Runs that really run, a share and a loan; Ctrl-C twice ends it, its runs and its folder."""
    demo = Demo(tmp_path)
    try:
        demo.until("has told two acts", lambda: len(demo.acts()) >= 2)
        assert [act["act"] for act in demo.acts()[:2]] == ["share", "lend"]
        assert {row["owner"] for row in demo.ask("/v1/budgets")} == OWNERS
        leases = demo.ask("/v1/leases")
        slots = {slot.partition("#")[0] for row in leases for slot in row["slots"]}
        assert slots == {"alpha", "beta"}
        assert any(row["gpus"] for row in demo.ask("/v1/owes"))
        demo.until("started commands", lambda: list((demo.folder / "runs" / "jobs").iterdir()))
        demo.names = frozenset(row["run"] for row in leases)
        rules = demo.ask("/v1/policy")
        assert (rules["resolver"], rules["minNotice"], rules["cooldown"]) == (
            "enforce",
            "10s",
            "20s",
        )
        (applied,) = demo.ask("/v1/entries?kind=object.applied&limit=1")["items"]
        assert applied["author"] == user_name(os.geteuid()), "who started it, root too"
        _look_from_another_shell(demo, tmp_path)
        _eject_a_backend(demo)
        assert "cover failed" in (demo.folder / "fairlead.log").read_text(), "the log is a file"
    finally:
        demo.stop()
    demo.assert_gone()
    said = demo.terminal
    assert len(said.splitlines()) < 16, "where to look and how to stop, and no more"
    assert "cover failed" not in said
    assert "Ctrl-C" in said


def _look_from_another_shell(demo: Demo, home: Path) -> None:
    """As the terminal and the tutorial say, while commands run: a root's, too. The checkpoints that
    are seen of it go with it: no later alarm."""
    (lines,) = re.findall(r"export (?:.*\\\n)*.*", demo.terminal)
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    asked = "fairlead status; fairlead audit verify; fairlead replay"
    subprocess.run(["sh", "-ec", f"{lines}\n{asked}"], env=env, check=True)
    assert (demo.folder / "heads.json").is_file()
    assert not list(home.rglob("heads.json"))


def _eject_a_backend(demo: Demo) -> None:
    """As on the page. The simulated service obeys as an agent does."""
    control = Client(str(demo.folder / "fairlead.sock"))
    control.change("POST", "/v1/groups/simulated-web/backends/a/orders/isolate")
    demo.until("is ejected", lambda: demo.ask("/v1/groups/simulated-web")["ejected"] == ["a"])


def test_the_lab_is_what_it_says() -> None:
    """Two nodes, four teams; each cast fills every device, one shares, one borrows, one waits."""
    made = manifests()
    kinds = [each["kind"] for each in made]
    devices = sum(each["spec"]["devices"] for each in made if each["kind"] == "Node")
    budgets = {
        each["metadata"]["name"]: each["spec"]["envelopes"][0]
        for each in made
        if each["kind"] == "Budget"
    }
    assert (kinds.count("Node"), set(budgets)) == (2, OWNERS)
    for cast in CASTS:
        playing = (cast.shares, cast.borrows, cast.other)
        assert sum(part.gpus for part in playing) == devices
        assert len({part.owner for part in (*playing, cast.reserves)}) == 4
        assert cast.shares.gpus > budgets[cast.shares.owner]["concurrency"]
        assert cast.borrows.gpus > budgets[cast.borrows.owner]["concurrency"]
        (sponsor,) = cast.borrows.sponsors
        assert cast.borrows.owner in budgets[sponsor]["lending"]["to"]
        assert cast.reserves.gpus <= budgets[cast.reserves.owner]["concurrency"]


def test_an_option_that_is_given_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo's policy replaces defaults only."""
    seen = {}

    class Stop(Exception):
        pass

    def control_server(config: object) -> None:
        seen["config"] = config
        raise Stop

    monkeypatch.setattr("fairlead.compose.up.control_server", control_server)
    given = ["--demo", "--cooldown", "7s", "--data", str(tmp_path)]
    assert isinstance(CliRunner().invoke(command, given).exception, Stop)
    config = seen["config"]
    assert config.resolver == "enforce"  # type: ignore[attr-defined]
    assert config.preemption.cooldown_ms == 7_000  # type: ignore[attr-defined]
    assert config.preemption.min_notice_ms == POLICY.min_notice_ms  # type: ignore[attr-defined]
    refused = CliRunner().invoke(command, ["--verbose"])
    assert "--verbose is for --demo" in refused.output
