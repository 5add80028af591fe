"""A command that ignores SIGTERM: it ends after its grace for certain, and at once by --force."""

from pathlib import Path

from tests.api.servers import budget, node, run, serving, short_folder
from tests.cli.shells import Shell
from tests.e2e.planes import documents

DEAF = ["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1000 & wait; done"]


def test_the_longest_grace_does_not_outlive_force(tmp_path: Path) -> None:
    """`checkpointGrace: 20d` is cut at submission; --force does not wait for what is left."""
    with short_folder() as folder, serving(folder, grace_ms=600_000) as server:
        server.apply(node(), budget("team-a"))
        shell = Shell(server, tmp_path / "heads")
        manifest = documents(run("deaf", command=DEAF, checkpointGrace="20d"))
        submitted = shell("submit", "-f", "-", input=manifest)
        assert "is cut to 10m" in submitted.stderr + submitted.stdout
        server.until("running", lambda: server.status("Run", "deaf")["phase"] == "Running")
        shell.ok("cancel", "deaf")
        shell.ok("cancel", "deaf", "--force")
        status = server.ended("deaf")  # within a minute, and the grace is ten
        assert status["reason"] == "Cancelled"
        assert shell("cancel", "deaf", "--force").returncode == 1, "it has ended"
        assert shell("pause", "deaf", "--force").returncode == 2


def test_no_cancelled_run_outlives_its_grace(tmp_path: Path) -> None:
    with short_folder() as folder, serving(folder, grace_ms=500) as server:
        server.apply(node(), budget("team-a"))
        shell = Shell(server, tmp_path / "heads")
        shell("submit", "-f", "-", input=documents(run("deaf", command=DEAF)))
        server.until("running", lambda: server.status("Run", "deaf")["phase"] == "Running")
        shell.ok("cancel", "deaf")
        assert server.ended("deaf")["reason"] == "Cancelled"
