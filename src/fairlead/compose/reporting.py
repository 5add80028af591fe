"""Where an agent's reports meet the control plane's API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.host.http import HttpEndpoint, NoReply, parse, stream
from fairlead.node.report import NotTaken, Reporter, Send
from fairlead.schema.border import BadInput
from fairlead.schema.reports import NOT_LEADER, ReportSettings

if TYPE_CHECKING:
    import ssl

TIMEOUT_S, REPLY_BYTES_MAX = 5.0, 2**20
REPLICAS_TRIED = 5
_LOCAL = ("localhost", "::1", "127.0.0.1")


@contextmanager
def reporting(
    settings: ReportSettings,
    name: str,
    *,
    warn: Callable[[str], None],
    taken: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Iterator[Reporter]:
    """A reporter that sends while the block runs; `name` is the agent's unless it has its own."""
    agent = settings.agent or name
    reporter = Reporter(http_send(settings), agent=agent, warn=warn, taken=taken)
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.close()


def http_send(settings: ReportSettings) -> Send:
    """Send to a Unix socket, or to an address with the token of a file. `BadInput` for an address
    that no token may be sent to."""
    _endpoint(settings, None)

    def send(body: bytes) -> bytes:
        endpoint = _endpoint(settings, _trusted(settings.ca_file))
        headers = {"Content-Type": "application/json", **_authorization(settings.token_file)}
        for _ in range(REPLICAS_TRIED):
            status, data = _post(settings, endpoint, body, headers)
            # Several replicas are behind one address, and one of them leads.
            if status != 503 or f'"{NOT_LEADER}"'.encode() not in data:
                break
        if status == 200:
            return data
        # What is wrong with a body stays wrong; everything else may pass.
        again = status not in (400, 413, 422)
        text = data[:300].decode(errors="replace")
        raise NotTaken(f"{settings.to} answered {status}: {text}", again=again)

    return send


def _post(
    settings: ReportSettings, endpoint: HttpEndpoint, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    sending = stream(endpoint, "POST", "/v1/reports", body, headers, timeout_s=TIMEOUT_S)
    try:
        with sending as reply:
            return reply.status, reply.read(REPLY_BYTES_MAX)
    except NoReply as error:
        raise NotTaken(f"{settings.to}: {error}", again=True) from error


def _endpoint(settings: ReportSettings, tls: "ssl.SSLContext | None") -> HttpEndpoint:
    try:
        endpoint = parse(settings.to, tls=tls)
    except ValueError as error:
        raise BadInput("report.to", f"{error}; got {settings.to!r}") from error
    if settings.ca_file is not None and endpoint.tls is None:
        raise BadInput("report.ca_file", "is for https only")
    local = endpoint.unix is not None or endpoint.host in _LOCAL
    if settings.token_file is not None and endpoint.tls is None and not local:
        raise BadInput("report.to", "must be https: a token goes over http to this machine only")
    return endpoint


def _trusted(ca_file: str | None) -> "ssl.SSLContext | None":
    """Read for each report: authorities are replaced while the agent runs."""
    if ca_file is None:
        return None
    import ssl  # noqa: PLC0415 - 15 ms that an agent of a socket does not pay

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise NotTaken(f"report.ca_file: {ca_file}: {error}", again=True) from error


def _authorization(token_file: str | None) -> dict[str, str]:
    """Read for each report: a token may be replaced while the agent runs."""
    if token_file is None:
        return {}
    try:
        token = Path(token_file).read_bytes().strip()
    except OSError as error:
        raise NotTaken(f"report.token_file: {token_file}: {error.strerror}", again=True) from error
    if not token or any(not 0x21 <= byte <= 0x7E for byte in token):
        raise NotTaken(f"report.token_file: {token_file}: must hold one token", again=True)
    return {"Authorization": f"Bearer {token.decode()}"}
