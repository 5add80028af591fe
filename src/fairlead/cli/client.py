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

from fairlead.cli.head_check import HEADERS, read_headers
from fairlead.cli.heads import Heads
from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.patience import Patience
from fairlead.ledger.place import state_directory
from fairlead.ports.faults import PermanentFault

SOCKET = "fairlead.sock"
MACHINE = Path("/var/lib/fairlead") / SOCKET
TIMEOUT_S = 90
F = TypeVar("F", bound=Callable[..., Any])

server_option: Callable[[F], F] = click.option(
    "--server",
    envvar="FAIRLEAD_SERVER",
    metavar="WHERE",
    help="A socket's path or http://127.0.0.1:PORT [default: this machine's control plane].",
)


class Answer(click.ClickException):
    """An error that the server explained: refused, bad input or a fault."""

    exit_code: int  # type: ignore[misc]  # its own for each status

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status, self.code = status, str(error.get("code"))
        self.path, self.about = error.get("path"), str(error.get("message"))
        message = f"{self.path}: {self.about}" if self.path else self.about
        if status == 401:
            message += " (FAIRLEAD_TOKEN_FILE names the file of a token; the socket needs none)"
        super().__init__(message)
        bad = status in (400, 404, 405, 413, 422)
        self.exit_code = EXIT_FAULT if status >= 500 else EXIT_BAD_INPUT if bad else EXIT_REFUSED

    def saying(self, message: str) -> "Answer":
        """The same no in other words."""
        return Answer(self.status, {"code": self.code, "message": message})

    def show(self, file: object = None) -> None:
        """One line; the word says which kind of no it is."""
        words = {EXIT_REFUSED: "refused", EXIT_FAULT: "fault", EXIT_BAD_INPUT: "error"}
        click.echo(f"{words[self.exit_code]}: {self.message}", err=True)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Talks to one server. `heads` False: without a look at the ledger, for completions."""

    def __init__(
        self, where: str | None, *, heads: bool = True, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.where = where or _default()
        self._heads = Heads(self.where) if heads else None
        self._token, self._timeout_s = _token(), timeout_s

    def get(self, path: str, **query: Any) -> Any:
        """Read something."""
        return self.call("GET", path, query=query)

    def call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """One request and its JSON; text for what is not JSON."""
        response, data = self._answer(method, path, body, query or {})
        is_json = (response.headers.get_content_type()) == "application/json"
        return json.loads(data) if is_json else data.decode(errors="replace")

    def data(self, path: str, **query: Any) -> bytes:
        """The very bytes of a reply: a file whose digests are to hold."""
        return self._answer("GET", path, None, query)[1]

    def _answer(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        with Patience(f"waiting for {self.where}"):
            response, data = self._exchange(method, path, body, query)
        self._check(response)
        if response.status >= 400:
            raise Answer(response.status, _error(data))
        return response, data

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """A reply that goes on, as it comes."""
        response, connection = self._send("GET", path, None, query)
        with connection:
            self._check(response)
            if response.status >= 400:
                raise Answer(response.status, _error(self._read(response)))
            connection.wait_for_ever()  # a run may say nothing for hours
            try:
                while data := response.read1(65536):
                    yield data
            except (OSError, http.client.HTTPException) as error:
                raise PermanentFault(f"{self.where}: the server went away") from error

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        """Proof that the log of the old size begins the one of the new size; None without one."""
        response, data = self._exchange("GET", "/v1/consistency", None, {"old": old, "new": new})
        if response.status == 422:
            return None  # there is no such proof: the log is shorter than it was
        if response.status >= 400:
            raise Answer(response.status, _error(data))
        try:
            return tuple(bytes.fromhex(each) for each in json.loads(data)["proof"])
        except (ValueError, KeyError, TypeError):
            return None

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        """What the ledger says of its keys, with proofs."""
        response, data = self._exchange("GET", "/v1/ledger", None, {"size": size})
        if response.status >= 400:
            raise Answer(response.status, _error(data))
        found = json.loads(data)
        return found if isinstance(found, list) else []

    def _check(self, response: http.client.HTTPResponse) -> None:
        """The head of a reply. Who is not let in is not shown a proof either; what stands between
        us and the server may answer for it, with an error and without a head."""
        if self._heads is None or response.status in (401, 403):
            return
        head = read_headers({name: response.headers.get(name, "") for name in HEADERS})
        if head is not None or response.status < 400:
            self._heads.see(head, self)

    def _exchange(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        response, connection = self._send(method, path, body, query)
        with connection:
            return response, self._read(response)

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
            raise PermanentFault(_unreachable(self.where, error)) from error

    def _connect(self) -> http.client.HTTPConnection:
        if not self.where.startswith(("http://", "https://")):
            return _UnixConnection(self.where.removeprefix("unix:"), self._timeout_s)
        try:
            parts = urlsplit(self.where)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise click.UsageError(f"{self.where!r}: {error}") from error
        if not host:
            raise click.UsageError(f"{self.where!r} names no host")
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s)
        if self._token is not None and host not in ("localhost", "::1", "127.0.0.1"):
            raise click.UsageError("a token is sent to this machine or over https, not in the open")
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise PermanentFault(f"{self.where}: the server went away") from error


class _Closing:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def wait_for_ever(self) -> None:
        """From here on silence is no sign that the server is gone."""
        if self._connection.sock is not None:
            self._connection.sock.settimeout(None)


def segment(text: str) -> str:
    """A name as a part of a path."""
    return quote(text, safe="")


def _unreachable(where: str, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return f"{where}: {reason} (the socket is for the members of its group)"
    if isinstance(error, TimeoutError):
        return f"{where} did not answer in time"
    return f"no control plane answers on {where}: {reason} (see `fairlead up`)"


def _default() -> str:
    own = state_directory() / SOCKET
    return str(MACHINE if not own.exists() and MACHINE.exists() else own)


def _token() -> str | None:
    path = os.environ.get("FAIRLEAD_TOKEN_FILE")
    if not path:
        return None
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise click.UsageError(f"FAIRLEAD_TOKEN_FILE: {path}: {error.strerror}") from error
    # What is in the file is never said: it may be a secret all the same.
    if not token or any(not 0x21 <= byte <= 0x7E for byte in token):
        raise click.UsageError(f"FAIRLEAD_TOKEN_FILE: {path}: must hold one token and nothing else")
    return token.decode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return {"code": "Unknown", "message": data[:200].decode(errors="replace")}
