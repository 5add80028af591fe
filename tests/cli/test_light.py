"""A table costs what it shows: a command imports neither YAML, nor keys, nor the decisions; and a
control plane that reads no files and is asked for no metrics takes no memory for these."""

import subprocess
import sys

HEAVY = {
    "yaml",
    "numpy",
    "cryptography",
    "starlette",
    "traceback",
    "fairlead.core.gpu",
    "fairlead.engine",
    "fairlead.ledger.entries",
    "fairlead.schema.funding",
}
LOOK = "import sys, fairlead.cli.main, {module}; print(*sys.modules)"


def imported(module: str) -> set[str]:
    """The modules in a fresh interpreter after this one; those that a test brought do not count."""
    command = (sys.executable, "-I", "-c", LOOK.format(module=module))
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_commands_that_show_tables_import_nothing_heavy() -> None:
    """With all of this, `fairlead get runs` took 280 ms; without, 120 (`bench.cli`)."""
    for module in ("fairlead.cli.gpu.objects", "fairlead.cli.gpu.budgets"):
        assert imported(module) & HEAVY == set(), module
        assert module in imported(module), "the look itself works"


def test_a_controller_takes_no_memory_for_files_and_metrics() -> None:
    """3 MiB: its objects are JSON, and metrics are written where its API is served."""
    found = imported("fairlead.kube.controller")
    assert "fairlead.engine.gpu.measures" in found
    assert not found & {"yaml", "prometheus_client", "wsgiref"}
