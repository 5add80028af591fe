"""The command line's side of the API: one request, errors as exit codes, the ledger's head kept.

The server is found by --server, then FAIRLEAD_SERVER, then the socket of this user's control plane,
then the machine's: a path or `unix:PATH` for a socket, `http://127.0.0.1:8470` for loopback with a
token from the file that FAIRLEAD_TOKEN_FILE names.
"""

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click

from fairlead.cli.heads import Heads, Proof
from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_REFUSED
from fairlead.ledger.place import state_directory
from fairlead.ports.faults import PermanentFault

SOCKET = "fairlead.sock"
MACHINE = Path("/var/lib/fairlead") / SOCKET
TIMEOUT_S = 90
F = TypeVar("F", bound=Callable[..., Any])

server_option: Callable[[F], F] = click.option(
    "--server", envvar="FAIRLEAD_SERVER", metavar="WHERE",
    help="A socket's path or http://127.0.0.1:PORT [default: this machine's control plane].",
)  # fmt: skip


class Answer(click.ClickException):
    """An error that the server explained: refused, bad input or a fault."""

    exit_code: int  # type: ignore[misc]  # its own for each status

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status, self.code = status, str(error.get("code"))
        path = error.get("path")
        super().__init__(f"{path}: {error.get('message')}" if path else str(error.get("message")))
        bad = status in (400, 404, 405, 413, 422)
        self.exit_code = EXIT_FAULT if status >= 500 else EXIT_BAD_INPUT if bad else EXIT_REFUSED

    def show(self, file: object = None) -> None:
        """One line; the word says which kind of no it is."""
        words = {EXIT_REFUSED: "refused", EXIT_FAULT: "fault", EXIT_BAD_INPUT: "error"}
        click.echo(f"{words[self.exit_code]}: {self.message}", err=True)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Talks to one server."""

    def __init__(self, where: str | None) -> None:
        self._where = where or _default()
        self._heads = Heads(self._where)
        self._token = _token()

    def get(self, path: str, **query: Any) -> Any:
        """Read something."""
        return self.call("GET", path, query=query)

    def call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """One request and its JSON; text for what is not JSON."""
        response, connection = self._send(method, path, body, query or {})
        with connection:
            data = self._read(response)
        if response.status != 401:  # who is not let in is not shown a proof either
            self._keep(response)
        if response.status >= 400:
            raise Answer(response.status, _error(data))
        is_json = (response.headers.get_content_type()) == "application/json"
        return json.loads(data) if is_json else data.decode(errors="replace")

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """A reply that goes on, as it comes."""
        response, connection = self._send("GET", path, None, query)
        with connection:
            if response.status >= 400:
                raise Answer(response.status, _error(self._read(response)))
            try:
                while data := response.read1(65536):
                    yield data
            except (OSError, http.client.HTTPException) as error:
                raise PermanentFault(f"{self._where}: the server went away") from error

    def _send(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> tuple[http.client.HTTPResponse, "_Closing"]:
        connection = self._connect()
        given = {key: _text(value) for key, value in query.items() if value is not None}
        url = path + ("?" + urlencode(given) if given else "")
        headers = {"Accept": "*/*"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, url, data, headers)
            return connection.getresponse(), _Closing(connection)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise PermanentFault(
                f"no control plane answers on {self._where}: {reason} (see `fairlead up`)"
            ) from error

    def _connect(self) -> http.client.HTTPConnection:
        if self._where.startswith(("http://", "https://")):
            parts = urlsplit(self._where)
            if parts.hostname is None:
                raise click.UsageError(f"{self._where!r} names no host")
            kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
            if parts.scheme == "https":
                kind = http.client.HTTPSConnection
            return kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        return _UnixConnection(self._where.removeprefix("unix:"))

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise PermanentFault(f"{self._where}: the server went away") from error

    def _keep(self, response: http.client.HTTPResponse) -> None:
        head, ledger = response.getheader("Fairlead-Head"), response.getheader("Fairlead-Ledger")
        if head and ledger:
            self._heads.see(ledger, head, self._prove)

    def _prove(self, old: int, new: int) -> Proof:
        response, connection = self._send("GET", "/v1/consistency", None, {"old": old, "new": new})
        with connection:
            data = self._read(response)
        if response.status == 422:
            return None  # there is no such proof: the log is shorter than it was
        if response.status >= 400:
            raise Answer(response.status, _error(data))
        return tuple(bytes.fromhex(each) for each in json.loads(data)["proof"])


class _Closing:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def segment(text: str) -> str:
    """A name as a part of a path."""
    return quote(text, safe="")


def _default() -> str:
    own = state_directory() / SOCKET
    return str(MACHINE if not own.exists() and MACHINE.exists() else own)


def _token() -> str | None:
    path = os.environ.get("FAIRLEAD_TOKEN_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise click.UsageError(f"FAIRLEAD_TOKEN_FILE: {path}: {error.strerror}") from error


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return {"code": "Unknown", "message": data[:200].decode(errors="replace")}
