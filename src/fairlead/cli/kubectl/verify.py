"""`verify`: exports an outcome and runs the independent verifier on it."""

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

import click

from fairlead.cli.audit.checkpoints import read_heads
from fairlead.cli.client import Client
from fairlead.cli.options import Integer, flag
from fairlead.ports.faults import PermanentFault

_NAME = "fairlead_verify.py"


def _verifier() -> ModuleType:
    """The one file that people without Fairlead use, as it is shipped."""
    here = Path(__file__).resolve()
    found = [here.with_name(_NAME), here.parents[4] / "verify" / _NAME]
    path = next((path for path in found if path.is_file()), None)
    spec = None if path is None else importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PermanentFault(f"this installation lacks {_NAME}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@click.command("verify")
@click.argument("number", type=Integer(1), metavar="N")
@flag("--public", "Open no names in the export.")
def verify(*, number: int, public: bool) -> None:
    """Verify outcome N: its lottery, its place in the ledger.

    Exports the outcome and runs `fairlead_verify.py` on it, against the ledger's checkpoint that
    you saw last. Exit code 1: something does not hold.

    \b
      kubectl runs outcome
      kubectl runs verify 812
    """
    client = Client()
    client.get("/v1/head")
    seen = read_heads().seen(client.where)
    head = None if seen is None else f"{seen.size}:{seen.root}"
    data = client.data(f"/v1/outcomes/{number}/export", public=public or None, head=head)
    with tempfile.NamedTemporaryFile(prefix="outcome-", suffix=".json") as file:  # mode 0600
        file.write(data)
        file.flush()
        arguments = [file.name, *(("--head", head) if head else ())]
        code = _verifier().main(arguments)
    click.get_current_context().exit(code)
