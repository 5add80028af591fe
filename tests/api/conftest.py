"""One server for the tests of a file; they use names of their own."""

from collections.abc import Iterator

import pytest

from tests.api.servers import Running, budget, node, serving, short_folder


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(), budget("team-a"), budget("team-b"))
        yield running
