"""One control plane for the tests of a file; they use names of their own."""

import sys
from collections.abc import Iterator

import pytest
import structlog

from tests.api.servers import budget, node, serving, short_folder
from tests.cli.shells import Shell

# The server logs in this process, too: not among what a command prints.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    heads = tmp_path_factory.mktemp("heads") / "heads.json"
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(), budget("team-a"))
        yield Shell(running, heads)
