"""`fairlead run -i`: this terminal, raw, as the keyboard of a run."""

import base64
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator

from fairlead.cli.client import Client, ServerError, Unreachable, segment

_READ, _RETRY_S = 1024, 0.2


@contextlib.contextmanager
def attached(client: Client, name: str) -> Iterator[None]:
    """Pass on what is typed, Ctrl-C too, and the size of the window, until the run has ended."""
    keyboard, before = sys.stdin.fileno(), termios.tcgetattr(sys.stdin.fileno())
    wake, told = os.pipe()
    typing = threading.Thread(target=_type, args=(client, name, keyboard, wake), daemon=True)
    changed = signal.signal(signal.SIGWINCH, lambda *_: os.write(told, b"s"))
    try:
        tty.setraw(keyboard)
        typing.start()
        yield
    finally:
        os.write(told, b"e")
        typing.join(timeout=2)
        signal.signal(signal.SIGWINCH, changed)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _type(client: Client, name: str, keyboard: int, wake: int) -> None:
    path, resized, rest = f"/v1/runs/{segment(name)}/keyboard", True, b""
    while True:
        size = shutil.get_terminal_size()
        where = {"rows": size.lines, "columns": size.columns} if resized else {}
        if rest or resized:
            try:
                body = {"text": base64.b64encode(rest[:_READ]).decode(), **where}
                taken = client.call("POST", path, body=body)["taken"]
            except (ServerError, Unreachable):
                taken = -1  # not running yet, or the control plane is starting again
            if taken >= 0:
                rest, resized = rest[taken:], False
        ready, _, _ = select.select(
            [wake] if rest else [wake, keyboard], [], [], _RETRY_S if rest or resized else None
        )
        if wake in ready:
            signs = os.read(wake, 64)
            if b"e" in signs:
                return
            resized = True
        if keyboard in ready:
            typed = os.read(keyboard, _READ)
            if not typed:
                time.sleep(_RETRY_S)  # the terminal is gone; the run goes on
            rest += typed
