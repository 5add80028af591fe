"""The command line's client of the API: requests, exit codes, and the checkpoint of every reply.

The server is --server, else FAIRLEAD_SERVER, else the socket of this user's control plane, else the
machine's: a path or `unix:PATH` for a socket, `http://127.0.0.1:8470` for loopback with a token
from the file that FAIRLEAD_TOKEN_FILE names.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from email.message import Message
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import click

from fairlead.cli.audit.checkpoints import (
    HEADERS,
    LedgerChanged,
    check_reply,
    held_checkpoint,
    read_headers,
)
from fairlead.cli.input import MANIFEST_PATH, Source, object_name
from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.options import dry_run_option, output_option, server_option
from fairlead.cli.table import Output, as_called, cell, waiting
from fairlead.core.units import counted
from fairlead.host.http import HttpEndpoint, HttpStream, NoReply, parse, stream
from fairlead.host.paths import state_directory
from fairlead.ports.faults import PermanentFault

SOCKET = "fairlead.sock"
MACHINE = Path("/var/lib/fairlead") / SOCKET
PAGE = 500
"""Objects that one request asks for."""
TIMEOUT_S, HASTY_S = 90.0, 2.0
ARRAY = "fairlead.dev/array"
"""The label of an array's tasks; its value is the name of the array."""


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
        return ServerError(self.status, {"code": self.code, "message": message})

    def show(self, file: object = None) -> None:
        """One line; its first word says which kind of error it is."""
        words = {EXIT_REFUSED: "refused", EXIT_FAULT: "fault", EXIT_BAD_INPUT: "error"}
        click.echo(f"{words[self.exit_code]}: {self.message}", err=True)


class Unreachable(PermanentFault):
    """The server did not answer, or not to the end: it may be starting again."""


class Reply(Protocol):
    """A reply whose body is still to come: whole, or in chunks."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Message: ...

    def read(self) -> bytes: ...

    def chunks(self) -> Iterator[bytes]: ...


class Transport(Protocol):
    """How requests reach a control plane: over HTTP, or through Kubernetes."""

    @property
    def where(self) -> str:
        """The server, as errors and kept checkpoints name it."""

    def proves(self, method: str, path: str) -> bool:
        """Whether the reply carries the ledger's checkpoint."""

    def open(
        self, method: str, path: str, query: dict[str, str], body: Any, *, timeout_s: float
    ) -> AbstractContextManager[Reply]: ...


TRANSPORT = "fairlead.transport"
"""In the context of a command: makes its transport; else it is HTTP to --server."""


class Client:
    """Talks to one server. `hasty`, for completions: it waits less, and checks no checkpoint."""

    def __init__(
        self,
        where: str | None = None,
        *,
        hasty: bool = False,
        dry_run: bool = False,
        ctx: click.Context | None = None,
    ) -> None:
        ctx = ctx or click.get_current_context(silent=True)
        make = None if ctx is None else ctx.meta.get(TRANSPORT)
        self._transport: Transport = HttpTransport(where) if make is None else make(ctx)
        self.where, self.dry_run = self._transport.where, dry_run
        self._hasty, self._timeout_s = hasty, HASTY_S if hasty else TIMEOUT_S

    def get(self, path: str, **query: Any) -> Any:
        """GET, with the query's names as keywords."""
        return self.call("GET", path, query=query)

    def call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """One request and its JSON; text for what is not JSON."""
        notice = waiting(f"waiting for {self.where}")
        with notice, self._open(method, path, query or {}, body) as reply:
            data, media = reply.read(), reply.headers.get_content_type()
        return json.loads(data) if media == "application/json" else data.decode(errors="replace")

    def exchange(self, path: str, **query: Any) -> tuple[bytes, Message]:
        """One GET: its bytes and its headers."""
        with self._open("GET", path, query) as reply:
            return reply.read(), reply.headers

    def change(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """A request that changes something, or previews it."""
        made = self.call(method, path, body=body, query={"dry_run": self.dry_run, **query})
        _warn(made, "")
        return made

    def apply(self, sources: Sequence[Source], *more: Any) -> list[dict[str, Any]]:
        """Apply manifests; an error about `manifests[3].spec.x` names that document's file."""
        manifests = [*(source.document for source in sources), *more]
        body = {"manifests": manifests, "dry_run": self.dry_run}
        try:
            made = list(self.call("POST", "/v1/apply", body=body)["items"])
            for item in made:
                _warn(item, f"{object_name(item['object'])}: ")
            return made
        except ServerError as error:
            match = MANIFEST_PATH.match(error.path or "")
            if match is None:
                raise
            inside = (error.path or "")[match.end() :]
            # One that a command made has no file, and its place in the batch says nothing.
            of = [source.place for source in sources[int(match[1]) :][:1]]
            parts = [*of, *([inside] if inside else []), error.about]
            raise error.saying(": ".join(parts)) from None

    def data(self, path: str, **query: Any) -> bytes:
        """The bytes of a reply, for files whose digests must hold."""
        with self._open("GET", path, query) as reply:
            return reply.read()

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """A streamed reply, chunk by chunk; a run may print nothing for hours."""
        with self._open("GET", path, query) as reply:
            yield from reply.chunks()

    def objects(self, kind: str, **query: Any) -> list[dict[str, Any]]:
        """All objects of a kind, page by page; a cluster answers with one page."""
        items: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.get(f"/v1/objects/{kind}", limit=PAGE, cursor=cursor, **query)
            items += page["items"]
            cursor = page.get("next")
        return items

    def get_object(self, kind: str, name: str) -> dict[str, Any]:
        with self.about(kind, name) as path:
            return dict(self.get(f"/v1/objects/{path}"))

    def change_object(
        self, method: str, kind: str, name: str, action: str = "", **query: Any
    ) -> dict[str, Any]:
        with self.about(kind, name) as path:
            return dict(self.change(method, f"/v1/objects/{path}{action}", **query))

    @contextmanager
    def about(self, kind: str, name: str) -> Iterator[str]:
        """The path of an object; where it is unknown, the error names a similar one."""
        try:
            yield f"{kind}/{segment(name)}"
        except ServerError as error:
            if error.status != 404:
                raise
            items = self.objects(kind)
            names = [item["metadata"]["name"] for item in items]
            if name in names:
                raise  # it is there; what is missing is something of it
            similar = get_close_matches(name, names, n=1)
            tasks = [
                item for item in items if item["metadata"].get("labels", {}).get(ARRAY) == name
            ]
            hint = as_called(f" (see `fairlead get {kind.lower()}s`)")
            if tasks:
                hint = f"; it is an array of {counted(len(tasks), 'task')}: name one of them"
                hint += as_called(f" (see `fairlead get runs -l {ARRAY}={name}`)")
            elif similar:
                hint = f"; did you mean {similar[0]!r}?"
            raise error.saying(error.message + hint) from None

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        """Proof that the log of the old size begins the one of the new size; None without one."""
        try:
            reply = self._unchecked("/v1/consistency", old=old, new=new)
            return tuple(bytes.fromhex(node) for node in reply["proof"])
        except ServerError as error:
            if error.status != 422:
                raise
            return None  # there is no such proof: the log is shorter than it was
        except (ValueError, KeyError, TypeError):
            return None

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        rows = self._unchecked("/v1/ledger", size=size)
        return rows if isinstance(rows, list) else []

    def _unchecked(self, path: str, **query: Any) -> Any:
        """For the check itself: what it asks is proved by what it compares."""
        with self._open("GET", path, query, checked=False) as reply:
            return json.loads(reply.read())

    def _check(self, status: int, headers: Message) -> None:
        """Check the checkpoint of a reply. A server that refuses us sends no proof either, and a
        proxy in between may answer with an error and no checkpoint."""
        if self._hasty or status in (401, 403):
            return
        signed = read_headers({name: headers.get(name, "") for name in HEADERS})
        if signed is not None or status < 400:
            check_reply(self.where, signed, self)

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        *,
        checked: bool = True,
    ) -> Iterator[Reply]:
        values = {key: _text(value) for key, value in query.items() if value is not None}
        sending = self._transport.open(method, path, values, body, timeout_s=self._timeout_s)
        with sending as reply:
            if checked and self._transport.proves(method, path):
                try:
                    self._check(reply.status, reply.headers)
                except LedgerChanged as alarm:
                    raise LedgerChanged(f"{alarm}{_effect(method, reply.status)}") from None
            if reply.status >= 400:
                raise ServerError(reply.status, _error(reply.read()))
            yield reply


class HttpTransport:
    """Requests to `fairlead up`: over its socket, or over TCP with a token."""

    def __init__(self, where: str | None) -> None:
        self.where, self._token = where or _default(), _token()

    def proves(self, method: str, path: str) -> bool:
        return True

    @contextmanager
    def open(
        self, method: str, path: str, query: dict[str, str], body: Any, *, timeout_s: float
    ) -> Iterator[HttpStream]:
        target = path + ("?" + urlencode(query) if query else "")
        headers = {"Accept": "*/*"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        held = None if method == "GET" else held_checkpoint(self.where)
        if held is not None:
            headers["Fairlead-Held"] = held
        endpoint, reply = self._endpoint(), None
        sending = stream(endpoint, method, target, body=data, headers=headers, timeout_s=timeout_s)
        try:
            with sending as reply:
                yield reply
        except NoReply as error:
            closed = f"{self.where}: the server closed the connection"
            message = _unreachable(self.where, error) if reply is None else closed
            raise Unreachable(message) from error

    def _endpoint(self) -> HttpEndpoint:
        try:
            endpoint = parse(self.where)
        except ValueError as error:
            raise click.UsageError(f"{self.where!r}: {error}") from error
        local = endpoint.unix is not None or endpoint.host in ("localhost", "::1", "127.0.0.1")
        if self._token is not None and endpoint.tls is None and not local:
            raise click.UsageError("a token is sent over https or to this machine only")
        return endpoint


def _warn(made: Any, about: str) -> None:
    """What the server warns of, for the person at the terminal; programs find it in the reply."""
    for warning in made.get("warnings", ()) if isinstance(made, dict) else ():
        click.echo(f"warning: {about}{cell(warning)}", err=True)


def _effect(method: str, status: int) -> str:
    """What became of a request whose reply cannot be trusted."""
    if method == "GET":
        return ""
    if status >= 400:
        return "\n  the server refused the request: nothing was changed"
    return "\n  the server says that it did what was asked"


def segment(text: str) -> str:
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
    def command(
        *, server: str | None = None, output: str, dry_run: bool = False, **values: Any
    ) -> Any:
        client, out = Client(server, dry_run=dry_run), Output(output, dry_run=dry_run)
        return function(client, out, **values)

    return output_option(server_option(command))


def changes_api(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with `--dry-run`, which both know of."""
    return dry_run_option(reads_api(function))
