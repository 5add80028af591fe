"""The command line's client of the API: requests, exit codes, and the checkpoint of every reply.

The server is --server, else FAIRLEAD_SERVER, else the socket of this user's control plane, else the
machine's: a path or `unix:PATH` for a socket, `http://127.0.0.1:8470` for loopback with a token
from the file that FAIRLEAD_TOKEN_FILE names.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from fairlead.cli.audit.checkpoints import HEADERS, Checkpoints, read_headers
from fairlead.cli.input import MANIFEST_PATH, Source, dry_run_option
from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.progress import WaitNotice
from fairlead.cli.table import Decorator, Output, output_option
from fairlead.host.http import HttpEndpoint, HttpStream, NoReply, parse, stream
from fairlead.host.paths import state_directory
from fairlead.ports.faults import PermanentFault

SOCKET = "fairlead.sock"
MACHINE = Path("/var/lib/fairlead") / SOCKET
TIMEOUT_S = 90

server_option: Decorator = click.option(
    "--server",
    envvar="FAIRLEAD_SERVER",
    metavar="WHERE",
    help="Socket path or http://127.0.0.1:PORT.",
)


class ServerError(click.ClickException):
    """An error that the server explained: a refusal, bad input or a fault."""

    exit_code: int  # type: ignore[misc]  # its own for each status

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status, self.code = status, str(error.get("code"))
        self.path, self.about = error.get("path"), str(error.get("message"))
        message = f"{self.path}: {self.about}" if self.path else self.about
        if status == 401:
            message += " (set FAIRLEAD_TOKEN_FILE to a token's file, or use the Unix socket)"
        super().__init__(message)
        bad = status in (400, 404, 405, 413, 422)
        self.exit_code = EXIT_FAULT if status >= 500 else EXIT_BAD_INPUT if bad else EXIT_REFUSED

    def saying(self, message: str) -> "ServerError":
        """The same error with another message."""
        return ServerError(self.status, {"code": self.code, "message": message})

    def show(self, file: object = None) -> None:
        """One line; its first word says which kind of error it is."""
        words = {EXIT_REFUSED: "refused", EXIT_FAULT: "fault", EXIT_BAD_INPUT: "error"}
        click.echo(f"{words[self.exit_code]}: {self.message}", err=True)


@contextmanager
def explained(sources: Sequence[Source]) -> Iterator[None]:
    """Turn an error about `manifests[3].spec.x` into one about that document of that file."""
    try:
        yield
    except ServerError as error:
        match = MANIFEST_PATH.match(error.path or "")
        if match is None or int(match[1]) >= len(sources):
            raise
        inside = (error.path or "")[match.end() :]
        parts = [sources[int(match[1])].place, *([inside] if inside else []), error.about]
        raise error.saying(": ".join(parts)) from None


class Client:
    """Talks to one server. `verify` False: checkpoints are not checked, for completions."""

    def __init__(
        self, where: str | None, *, verify: bool = True, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.where = where or _default()
        self._checkpoints = Checkpoints(self.where) if verify else None
        self._token, self._timeout_s = _token(), timeout_s

    def get(self, path: str, **query: Any) -> Any:
        """GET, with the query's names as keywords."""
        return self.call("GET", path, query=query)

    def call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """One request and its JSON; text for what is not JSON."""
        reply = self._checked(method, path, body, query or {})
        is_json = reply.headers.get_content_type() == "application/json"
        return json.loads(reply.body) if is_json else reply.body.decode(errors="replace")

    def data(self, path: str, **query: Any) -> bytes:
        """The bytes of a reply, for files whose digests must hold."""
        return self._checked("GET", path, None, query).body

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """A streamed reply, chunk by chunk; a run may print nothing for hours."""
        with self._stream("GET", path, None, query) as reply:
            self._check(reply.status, reply.headers)
            if reply.status >= 400:
                raise ServerError(reply.status, _error(reply.read()))
            try:
                yield from reply.chunks()
            except NoReply as error:
                raise PermanentFault(f"{self.where}: the server closed the connection") from error

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        """Proof that the log of the old size begins the one of the new size; None without one."""
        reply = self._exchange("GET", "/v1/consistency", None, {"old": old, "new": new})
        if reply.status == 422:
            return None  # there is no such proof: the log is shorter than it was
        if reply.status >= 400:
            raise ServerError(reply.status, _error(reply.body))
        try:
            return tuple(bytes.fromhex(node) for node in json.loads(reply.body)["proof"])
        except (ValueError, KeyError, TypeError):
            return None

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        """The ledger's entries about its own keys and epochs, with proofs."""
        reply = self._exchange("GET", "/v1/ledger", None, {"size": size})
        if reply.status >= 400:
            raise ServerError(reply.status, _error(reply.body))
        rows = json.loads(reply.body)
        return rows if isinstance(rows, list) else []

    def _checked(self, method: str, path: str, body: Any, query: dict[str, Any]) -> HttpStream:
        with WaitNotice(f"waiting for {self.where}"):
            reply = self._exchange(method, path, body, query)
        self._check(reply.status, reply.headers)
        if reply.status >= 400:
            raise ServerError(reply.status, _error(reply.body))
        return reply

    def _check(self, status: int, headers: Message) -> None:
        """Check the checkpoint of a reply. A server that refuses us sends no proof either, and a
        proxy in between may answer with an error and no checkpoint."""
        if self._checkpoints is None or status in (401, 403):
            return
        signed = read_headers({name: headers.get(name, "") for name in HEADERS})
        if signed is not None or status < 400:
            self._checkpoints.see(signed, self)

    def _exchange(self, method: str, path: str, body: Any, query: dict[str, Any]) -> HttpStream:
        with self._stream(method, path, body, query) as reply:
            try:
                reply.read()
                return reply
            except NoReply as error:
                raise PermanentFault(f"{self.where}: the server closed the connection") from error

    @contextmanager
    def _stream(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> Iterator[HttpStream]:
        values = {key: _text(value) for key, value in query.items() if value is not None}
        target = path + ("?" + urlencode(values) if values else "")
        headers = {"Accept": "*/*"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        endpoint, timeout_s = self._endpoint(), self._timeout_s
        with ExitStack() as stack:
            try:
                opened = stream(
                    endpoint, method, target, body=data, headers=headers, timeout_s=timeout_s
                )
                reply = stack.enter_context(opened)
            except NoReply as error:
                raise PermanentFault(_unreachable(self.where, error)) from error
            yield reply

    def _endpoint(self) -> HttpEndpoint:
        try:
            endpoint = parse(self.where)
        except ValueError as error:
            raise click.UsageError(f"{self.where!r}: {error}") from error
        local = endpoint.unix is not None or endpoint.host in ("localhost", "::1", "127.0.0.1")
        if self._token is not None and endpoint.tls is None and not local:
            raise click.UsageError("a token is sent over https or to this machine only")
        return endpoint


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def _unreachable(where: str, error: NoReply) -> str:
    if error.permission:
        return f"{where}: {error} (only members of the socket's group may connect)"
    if error.timed_out:
        return f"{where} did not answer in time"
    return f"no control plane answers on {where}: {error} (see `fairlead up`)"


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
    # The content is never printed: it may be a secret even if it is not a token.
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


def reads_api(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that asks the server: it is called with the client and its output."""

    @functools.wraps(function)
    def command(*, server: str | None, output: str, dry_run: bool = False, **values: Any) -> Any:
        return function(Client(server), Output(output, dry_run=dry_run), **values)

    return output_option(server_option(command))


def changes_api(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with `--dry-run`, which `output.dry_run` holds."""
    return dry_run_option(reads_api(function))
