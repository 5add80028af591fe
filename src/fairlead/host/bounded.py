"""A server of an agent at a port that every user of the machine can reach."""

import contextlib
import socket
import socketserver
import sys
import threading
from typing import Any

CONNECTIONS_MOST = 32


class BoundedServer(socketserver.ThreadingMixIn):
    """A thread for each connection. Beyond so many connections the one ends that has asked nothing
    for longest: half a question keeps neither others away nor the agent from its files."""

    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._open: dict[Any, None] = {}
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open[request] = None
            if len(self._open) > CONNECTIONS_MOST:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        super().process_request(request, client_address)

    def went_on(self, request: Any) -> None:
        with self._guard:
            if request in self._open:
                del self._open[request]
                self._open[request] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # one that has gone is no news
            super().handle_error(request, client_address)  # type: ignore[misc]

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)  # type: ignore[misc]
