"""A browser for the tests of a file, and the rule that no page may complain."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browser import Visits, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def visits(browser: Browser) -> Iterator[Visits]:
    """Opens pages; afterwards no console has complained and no request left the host."""
    made = Visits(browser)
    try:
        yield made
        made.assert_quiet()
    finally:
        made.close()
