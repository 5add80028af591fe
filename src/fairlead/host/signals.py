"""What a signal asks for is done by a thread of its own.

A handler interrupts the main thread wherever it is. `Event.set` there waits for ever where the main
thread is just inside `Event.wait`, and holds the lock that both take.
"""

import signal
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue


def on_signals(numbers: Sequence[int], act: Callable[[], object]) -> None:
    """Call `act`, which may take locks, for each of these signals that comes."""
    heard: SimpleQueue[int] = SimpleQueue()  # its `put` may interrupt itself
    for number in numbers:
        signal.signal(number, lambda number, _: heard.put(number))

    def serve() -> None:
        while True:
            heard.get()
            act()

    threading.Thread(target=serve, name="signals", daemon=True).start()
