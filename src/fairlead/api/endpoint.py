"""The typed layer: an endpoint says what it takes and gives; the rest follows from that.

Parsing, limits, authentication, errors and the OpenAPI document all come from the same `Endpoint`,
so that none of them can be forgotten for one of them.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.gate import Gate, Unauthenticated
from fairlead.api.service import Service
from fairlead.engine.gpu import Author, Conflict, Denied, Forbidden, NotFound, Refused
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.ledger import Archived
from fairlead.schema.border import BadInput, check_shape, parse_json

BODY_BYTES_MAX = 4 * 2**20
DEPTH_MAX = 32
ANONYMOUS = Author("anonymous")
Needs = Literal["nothing", "user", "admin"]
T = TypeVar("T", bound=msgspec.Struct)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`")


class TooLarge(Exception):
    """The body is over the limit (HTTP 413)."""


class Malformed(Exception):
    """Not JSON at all, or not to be read as such (HTTP 400)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked."""

    author: Author
    path: dict[str, str]
    query: Any
    body: Any
    request: Request
    again: Callable[[], Author]
    """Who asks, asked anew: a reply that goes on must end when its token is revoked."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. `handle` runs in a worker thread unless it answers itself."""

    method: str
    path: str
    summary: str
    handle: Callable[[Service, Call], Any]
    answer: Any
    query: type[msgspec.Struct] | None = None
    body: Any = None
    needs: Needs = "nothing"
    media: str = "application/json"
    also: tuple[str, ...] = ()
    """Other forms of the same answer, as text."""
    stream: Callable[[Service, Call], Awaitable[Response]] | None = None
    """An async function that answers with a response of its own."""
    errors: tuple[int, ...] = field(default=())
    any_kind: bool = False
    """Whether `{kind}` may be Lease, too: those are only looked at."""
    page: bool = False
    """For a browser: a link from elsewhere may lead here."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """All that it may answer besides success; every one is a documented error."""
        found = {400, 401, 403, 422, 500, 503, *self.errors}
        if self.body is not None:
            found.add(413)
        if "{" in self.path:
            found.add(404)
        return tuple(sorted(found))


async def read_call(endpoint: Endpoint, gate: Gate, request: Request) -> Call:
    """Who asks for what; raises before anything is done."""
    author = gate.author(request, page=endpoint.page)
    if endpoint.needs != "nothing" and author is None:
        raise Unauthenticated("without a token this server is only read")
    author = author or ANONYMOUS
    if endpoint.needs == "admin" and not author.admin:
        raise Forbidden(f"{author.user} is no admin")
    query = None if endpoint.query is None else _query(request, endpoint.query)
    if endpoint.query is None and request.query_params:
        raise BadInput(f"query.{next(iter(request.query_params))}", "is not a known parameter")
    body = None
    if endpoint.body is not None:
        body = _body(await _read(request), endpoint.body)
    return Call(
        author,
        dict(request.path_params),
        query,
        body,
        request,
        again=lambda: gate.author(request) or ANONYMOUS,
    )


def _query(request: Request, shape: type[T]) -> T:
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) != len(pairs):
        raise BadInput("query", "names a parameter twice")
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
    if match := _FIELD.fullmatch(text):
        unknown = match["how"] == "contains unknown"
        what = "is not a known parameter" if unknown else "is required"
        raise BadInput(f"query.{match['name']}", what)
    what, _, where = text.partition(" - at `$.")
    raise BadInput(f"query.{where.rstrip('`')}" if where else "query", what)


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES_MAX:
            raise TooLarge(f"must be at most {BODY_BYTES_MAX} bytes")
    return bytes(data)


def _body(data: bytes, shape: Any) -> Any:
    try:
        value = parse_json(data)
    except BadInput as error:
        raise Malformed(error.message) from None
    if _deep(value, DEPTH_MAX):
        raise Malformed(f"is nested more than {DEPTH_MAX} levels deep")
    return value if shape is dict else check_shape(value, shape)


def _deep(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    members = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_deep(member, left - 1) for member in members)


def failure(error: Exception) -> Response | None:
    """An expected no as a reply; None for anything that nobody expected."""
    for kind, status, code in _ERRORS:
        if isinstance(error, kind):
            path = getattr(error, "path", None)  # of the field, or of the manifest in a batch
            message = error.message if isinstance(error, BadInput | Denied) else str(error)
            named = error.reason if isinstance(error, Denied) else code
            return problem(status, named, message, path)
    return None


def problem(status: int, code: str, message: str, path: str | None = None) -> Response:
    """The one shape of an error."""
    body = {"error": {"code": code, "path": path, "message": message}}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 503:
        headers["Retry-After"] = "1"
    return Response(msgspec.json.encode(body), status, headers, "application/json")


_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (BadInput, 422, "Invalid"),
    (Malformed, 400, "Malformed"),
    (TooLarge, 413, "TooLarge"),
    (Unauthenticated, 401, "Unauthenticated"),
    (Forbidden, 403, "Forbidden"),
    (NotFound, 404, "NotFound"),
    (Conflict, 409, "Conflict"),
    (Refused, 409, "Refused"),
    (Archived, 404, "Archived"),
    (TemporaryFault, 503, "TemporaryFault"),
)
