"""The web page: three files, served as they are.

It shows what every user of this machine may read, and cannot change anything. The content policy
allows these files and requests to this server, nothing else.
"""

from importlib.resources import files

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
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def _page(path: str, name: str, media: str) -> Endpoint:
    data = (files(__package__) / name).read_bytes()
    headers = {"Content-Security-Policy": POLICY}

    def handle(service: Service, call: Call) -> Response:
        return Response(data, headers=headers, media_type=media)

    return Endpoint("GET", path, "The web page", handle, str, media=media, page=True)


PAGES = tuple(_page(path, name, media) for path, (name, media) in _FILES.items())
