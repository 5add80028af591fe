"""Threads that write by rank; no server is needed."""

import threading

from fairlead.kube.writers import RankedWriters

WAIT_S = 10


def test_what_matters_more_overtakes_what_was_handed_over_before() -> None:
    writers, gate, begun = RankedWriters(1, "test"), threading.Event(), threading.Event()
    written: list[str] = []

    def hold() -> bool:
        begun.set()
        return gate.wait(WAIT_S)

    def note(name: str) -> bool:
        written.append(name)
        return True

    first = writers.submit(hold, (9,))
    assert begun.wait(WAIT_S)
    made = [
        writers.submit(lambda name=name: note(name), rank)  # type: ignore[misc]
        for name, rank in (("end", (1, 0)), ("small", (0, -1)), ("wide", (0, -8)), ("asked", (0,)))
    ]
    made.append(writers.submit(lambda: note("wide too"), (0, -8)))
    gate.set()
    assert all(future.result(WAIT_S) for future in (first, *made))
    assert written == ["asked", "wide", "wide too", "small", "end"]
    writers.close()


def test_a_write_that_fails_tells_who_waits_and_no_other() -> None:
    writers = RankedWriters(2, "test")
    failed = writers.submit(lambda: bool(1 // 0), (0,))
    assert isinstance(failed.exception(WAIT_S), ZeroDivisionError)
    assert writers.submit(lambda: True, (0,)).result(WAIT_S)
    writers.close()


def test_after_the_end_nothing_is_begun_and_what_is_under_way_is_waited_for() -> None:
    writers, gate, begun = RankedWriters(1, "test"), threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> bool:
        begun.set()
        gate.wait(WAIT_S)
        done.append("slow")
        return True

    under_way = writers.submit(slow, (0,))
    assert begun.wait(WAIT_S)
    waiting = writers.submit(lambda: bool(done.append("late")), (1,))  # type: ignore[func-returns-value]
    threading.Timer(0.05, gate.set).start()
    writers.close()
    assert under_way.done()
    assert done == ["slow"]
    assert waiting.cancelled()
    assert writers.submit(lambda: True, (0,)).cancelled()
