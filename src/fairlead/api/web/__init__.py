"""The web page: a shell, modules and a style sheet, served as they are.

Every view has its own address; all of them answer with the shell, and `app.js` opens the view. The
content policy allows these files and requests to this server, nothing else.
"""

from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.service import Service

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",  # the empty icon, so that no browser asks for one
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
VIEWS = (
    "/",
    "/gpu",
    "/runs/{name}",
    "/preemption",
    "/preemption/{outcome}",
    "/cpu",
    "/cpu/{node}",
    "/traffic",
    "/traffic/{group}",
    "/ledger",
    "/ledger/{seq}",
    "/decision/{id:path}",
    "/signin",
    "/submit",
)
"""The addresses of the views, as `app.js` knows them."""
VERIFIER = "verify.mjs"
"""The published verifier: the very file that people without Fairlead run."""
SCRIPTS = (
    "app.js",
    VERIFIER,
    *(
        f"lib/{name}.js"
        for name in (
            "actions",
            "address",
            "api",
            "burndown",
            "chart",
            "checkpoint",
            "devices",
            "dialog",
            "dom",
            "events",
            "files",
            "fleet",
            "gantt",
            "graph",
            "live",
            "nodes",
            "output",
            "owners",
            "runs",
            "scrubber",
            "session",
            "standing",
            "story",
            "verify",
            "words",
        )
    ),
    *(
        f"views/{name}.js"
        for name in (
            "cpu",
            "decision",
            "entry",
            "gpu",
            "group",
            "ledger",
            "node",
            "outcome",
            "overview",
            "preemption",
            "run",
            "signin",
            "submit",
            "traffic",
        )
    ),
)
_TEXT = "; charset=utf-8"
_FILES = {
    **dict.fromkeys(VIEWS, ("page.html", "text/html" + _TEXT)),
    "/web/page.css": ("page.css", "text/css" + _TEXT),
    **{f"/web/{name}": (name, "text/javascript" + _TEXT) for name in SCRIPTS},
}


def content(name: str) -> bytes:
    """A file of the page. The verifier is beside it where Fairlead is installed; in a checkout it
    is in `verify/`."""
    here = files(__package__) / name
    if name == VERIFIER and not here.is_file():
        return (Path(__file__).resolve().parents[4] / "verify" / VERIFIER).read_bytes()
    return here.read_bytes()


def _page(path: str, name: str, media: str) -> Endpoint:
    data = content(name)
    tag = f'"{sha256(data).hexdigest()[:16]}"'
    # A browser asks again each time, and gets the file only where it has changed.
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}

    def handle(service: Service, call: Call) -> Response:
        if tag in call.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=media)

    # One view loads some thirty files: they would use up what its reader may ask per second.
    said = "The web page"
    return Endpoint("GET", path, said, handle, str, media=media, page=True, unlimited=True)


def wants_page(request: Request) -> bool:
    """Whether a person asks with a browser: programs get an error as JSON."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def missing_page() -> Response:
    """The shell for an address without a view: it says so, and has the way to the others."""
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return Response(content("page.html"), 404, headers, "text/html" + _TEXT)


PAGES = tuple(_page(path, name, media) for path, (name, media) in _FILES.items())
