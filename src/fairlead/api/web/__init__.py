"""The web page: three files of our own, served as they are; nothing comes from elsewhere.

It shows what anybody on this machine may read, and it has no way to change anything. The policy
lets the browser load these files, ask this server, and nothing more.
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
