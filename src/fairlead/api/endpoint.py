"""The typed layer: an endpoint declares what it takes and returns; the rest follows from that.

    routes = Routes()

    @routes("GET /v1/objects/{kind}", ObjectList, ListQuery)
    def list_objects(service: Service, call: Call) -> dict[str, Any]:
        \"\"\"List objects of a kind.\"\"\"

Parsing, limits, authentication, errors and the OpenAPI document (the summary is the docstring's
first line) all come from the same `Endpoint`, so none can be forgotten for one of them.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fairlead.api.access import AccessGate, Unauthenticated
from fairlead.api.rates import TooManyRequests
from fairlead.api.service import Service
from fairlead.core.invariant import InvariantBroken
from fairlead.engine.gpu import Author, Denied, EditConflict, Forbidden, NotFound, Refused
from fairlead.host.log import Log
from fairlead.ports.faults import Fault, TemporaryFault
from fairlead.ports.ledger import Archived
from fairlead.schema.border import BadInput, check_shape, parse_json
from fairlead.schema.convert import convert

BODY_BYTES_MAX = 4 * 2**20
DEPTH_MAX, VALUES_MAX = 32, 400_000
_AT_ONCE_BYTES = 64 * 1024
"""A body that is parsed in the event loop; 4 MiB would keep all others waiting for a second."""
ANONYMOUS = Author("anonymous")
IN_A_RUN = (
    "a process of a run may read, and act on its own run only: ask from outside of the run, or "
    "with a token of the run's own"
)
NO_GRANTS = (
    "{} cannot grant what outlives it (users, tokens, an owner's key): use this machine's socket, "
    "without a token"
)
ONLY_REPORTS = "the token of an agent reports its node and its groups, and nothing else"
_log = Log("fairlead.api")
Needs = Literal["nothing", "user", "admin", "agent"]
Beside = Callable[..., Awaitable[Any]]
"""Calls a function with what else it is given, while the event loop takes other requests."""
T = TypeVar("T", bound=msgspec.Struct)
Handler = TypeVar("Handler", bound=Callable[..., Any])
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`")


class TooLarge(Exception):
    """The body is over the limit (HTTP 413)."""


class Malformed(Exception):
    """The body is not JSON, nested too deeply, or ends where one looks (HTTP 400). `path`: of the
    field, where one is to blame."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked."""

    author: Author
    path: dict[str, str]
    query: Any
    body: Any
    request: Request
    authenticate: Callable[[], Author]
    """Authenticates again: a stream must end when its token is revoked."""
    account: Hashable = None
    """Whose share of the server it uses; None: an admin's, which is not bounded."""

    @property
    def by(self) -> dict[str, Any]:
        """Who changes something, and whether it is a preview."""
        return {"author": self.author, "dry_run": self.query.dry_run}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. `handle` runs in a worker thread, unless it is async."""

    method: str
    path: str
    summary: str
    handle: Callable[[Service, Call], Any]
    answer: Any
    query: type[msgspec.Struct] | None = None
    body: Any = None
    body_bytes_max: int = BODY_BYTES_MAX
    needs: Needs = "nothing"
    media: str = "application/json"
    also: tuple[str, ...] = ()
    """Other media types of the same answer, as text."""
    errors: tuple[int, ...] = ()
    any_kind: bool = False
    """Whether `{kind}` may be Lease, which is read-only."""
    unlimited: bool = False
    """Whether it is answered however often it is asked."""
    own_run: bool = False
    """Whether a process of a run may ask, about its own run, although it needs a user."""
    grants: bool = False
    """Whether it gives rights that last: only a user itself asks for it, on the socket. Revoking a
    leaked token, and ending a session, must undo the leak."""
    page: bool = False
    """For a browser: links from other sites may lead here."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Who may ask, by `_check_rights`: any of these. None: every reader."""
        if self.needs == "nothing":
            return ()
        more = {"user": ("run",) if self.own_run else (), "admin": (), "agent": ("admin",)}
        return self.needs, *more[self.needs]

    @property
    def statuses(self) -> list[int]:
        """Every documented error status."""
        statuses = {400, 401, 403, 422, 429, 500, 503, *self.errors}
        statuses |= {413} if self.body is not None else set()
        statuses |= {404} if "{" in self.path else set()
        return sorted(statuses)


class Routes(list[Endpoint]):
    """Collects the endpoints of a module; the decorators return the handler unchanged."""

    def __call__(
        self, route: str, answer: Any, query: Any = None, **options: Any
    ) -> Callable[[Handler], Handler]:
        """Register the handler of `METHOD /path`; `options` are fields of `Endpoint`."""
        method, path = route.split(" ")

        def register(handle: Handler) -> Handler:
            summary = (inspect.getdoc(handle) or "").partition("\n")[0].rstrip(".")
            self.append(Endpoint(method, path, summary, handle, answer, query, **options))
            return handle

        return register


async def read_call(endpoint: Endpoint, gate: AccessGate, request: Request, beside: Beside) -> Call:
    """Authenticate and parse; raises before anything is done."""
    if has_two_ends(request):
        raise Malformed("has Content-Length and Transfer-Encoding")
    try:
        author = gate.author(request, page=endpoint.page)
    except (Unauthenticated, Forbidden):
        gate.rates.take(place_of(request))  # guessing is no way around
        raise
    account = account_of(request, author)
    limited = not endpoint.unlimited and account is not None
    if limited:
        gate.rates.take(account)
    if endpoint.needs != "nothing" and author is None:
        raise Unauthenticated("this request needs a token; without one the server is read-only")
    author = author or ANONYMOUS
    _check_rights(endpoint, author)
    # The filters in the address of a view are its script's to read.
    pairs = [] if endpoint.page else request.query_params.multi_items()
    query = read_query(pairs, endpoint.query)
    body = None
    if endpoint.body is not None:
        small = _declared_bytes(request) <= _AT_ONCE_BYTES
        async with gate.bodies.of(None if small else account):
            data = await _read(request, endpoint.body_bytes_max)
        if limited:
            gate.rates.charge(account, len(data))
        if len(data) <= _AT_ONCE_BYTES:
            body = read_body(data, endpoint.body)
        else:
            body = await beside(read_body, data, endpoint.body)
    path, again = dict(request.path_params), lambda: gate.author(request) or ANONYMOUS
    return Call(author, path, query, body, request, again, account)


def _check_rights(endpoint: Endpoint, author: Author) -> None:
    """Raises `Forbidden` where who asks may not ask for this at all."""
    if author.in_run and endpoint.needs != "nothing" and not endpoint.own_run:
        raise Forbidden(IN_A_RUN)
    if author.agent is not None and endpoint.needs not in ("nothing", "agent"):
        raise Forbidden(ONLY_REPORTS)
    if endpoint.needs == "agent" and author.agent is None and not author.admin:
        raise Forbidden(f"{author.user} is not an agent: see `fairlead tokens create --agent`")
    if endpoint.needs == "admin" and not author.admin:
        raise Forbidden(f"{author.user} is not an admin")
    if endpoint.grants and (author.session is not None or author.token is not None):
        raise Forbidden(NO_GRANTS.format("a token" if author.session is None else "a session"))


def account_of(request: Request, author: Author | None) -> Hashable:
    """Whose share of the server a request takes; None: an admin's, which is not bounded. All runs
    of a user have one share: a tenant that starts a hundred has no hundred."""
    if author is None or author.in_run:
        return place_of(request)
    return None if author.admin else ("user", author.user)


def has_two_ends(request: Request) -> bool:
    """Whether a proxy in front may have seen the body end elsewhere, and another request in it."""
    return {"content-length", "transfer-encoding"} <= set(request.headers.keys())


def place_of(request: Request) -> Hashable:
    """All that is known of an anonymous reader: a user of this machine, or an address."""
    return getattr(request.state, "place", "")


def read_query(pairs: Sequence[tuple[str, str]], shape: type[T] | None) -> T | None:
    if shape is None:
        if pairs:
            raise BadInput(f"query.{pairs[0][0]}", "is not a known parameter")
        return None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise BadInput("query", "names a parameter twice")
    try:
        return convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
    if match := _FIELD.fullmatch(text):
        unknown = match["how"] == "contains unknown"
        what = "is not a known parameter" if unknown else "is required"
        raise BadInput(f"query.{match['name']}", what)
    what, _, where = text.partition(" - at `$.")
    raise BadInput(f"query.{where.rstrip('`')}" if where else "query", what)


def _declared_bytes(request: Request) -> int:
    """The length of its body; where it comes in pieces, the most that it may have."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else BODY_BYTES_MAX


async def _read(request: Request, bytes_max: int) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > bytes_max:
            raise TooLarge(f"must be at most {bytes_max} bytes")
    return bytes(data)


def read_body(data: bytes, shape: Any) -> Any:
    # As many as there are values, or more; counted before any is made.
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUES_MAX:
        raise TooLarge(f"must have at most {VALUES_MAX} values")
    try:
        value = parse_json(data)
    except BadInput as error:
        raise Malformed(error.message, None if error.path == "$" else error.path) from None
    if _deep(value, DEPTH_MAX):
        raise Malformed(f"is nested more than {DEPTH_MAX} levels deep")
    return value if shape is dict else check_shape(value, shape)


def _deep(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    members = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_deep(member, left - 1) for member in members)


def reply_to(
    error: Exception, request: Request, on_bug: Callable[[InvariantBroken], None]
) -> Response:
    """The reply to a request that failed, whatever with: expected, the environment's, or a bug."""
    if isinstance(error, InvariantBroken):
        on_bug(error)
        return problem(500, "Bug", str(error))
    reply = failure(error)
    if reply is not None:
        return reply
    _log.error("request failed", path=request.url.path, method=request.method, exc_info=error)
    if isinstance(error, Fault):
        return problem(500, "Fault", str(error))
    return problem(500, "Bug", "see the server's log")


def failure(error: Exception) -> Response | None:
    """An expected error as a reply; None for an unexpected one."""
    for kind, status, code in _ERRORS:
        if isinstance(error, kind):
            path = getattr(error, "path", None)  # of the field, or of the manifest in a batch
            message = error.message if isinstance(error, BadInput | Denied) else str(error)
            named = error.reason if isinstance(error, Denied) else code
            reply = problem(status, named, message, path)
            if isinstance(error, TooManyRequests):
                reply.headers["Retry-After"] = str(error.retry_after_s)
            return reply
    return None


def problem(status: int, code: str, message: str, path: str | None = None) -> Response:
    body = {"error": {"code": code, "path": path, "message": message}}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 503:
        headers["Retry-After"] = "1"
    return Response(msgspec.json.encode(body), status, headers, "application/json")


_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (BadInput, 422, "Invalid"),
    (Malformed, 400, "Malformed"),
    (ClientDisconnect, 400, "Malformed"),  # the client is gone; no defect of ours
    (TooLarge, 413, "TooLarge"),
    (Unauthenticated, 401, "Unauthenticated"),
    (TooManyRequests, 429, "TooManyRequests"),
    (Forbidden, 403, "Forbidden"),
    (NotFound, 404, "NotFound"),
    (EditConflict, 409, "Conflict"),
    (Refused, 409, "Refused"),
    (Archived, 404, "Archived"),
    (TemporaryFault, 503, "TemporaryFault"),
)
