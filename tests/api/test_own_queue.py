"""A tenant of a cluster learns when its run starts, and not whose run ends then."""

import pytest

from fairlead.api.queries import HIDDEN, Asker, own_queue
from fairlead.engine.gpu import Author

ASKER = Asker(Author("ada", frozenset({"a"})), "team-a")


@pytest.mark.parametrize(("owner", "shown"), [("a", "a.sweep"), ("b", HIDDEN)])
def test_the_run_that_ends_is_named_to_its_owner_only(owner: str, shown: str) -> None:
    queue = {"position": 1, "waiting": 2, "after": f"{owner}.sweep", "afterOwner": owner}
    made = own_queue(ASKER, {"status": {"phase": "Pending", "queue": queue}})
    assert made["status"]["queue"]["after"] == shown
    assert made["status"]["queue"]["position"] == 1


@pytest.mark.parametrize("queue", [None, {"position": 2, "waiting": 2}])
def test_a_run_without_a_promise_is_shown_as_it_is(queue: object) -> None:
    document = {"status": {"queue": queue}}
    assert own_queue(ASKER, document) == document
