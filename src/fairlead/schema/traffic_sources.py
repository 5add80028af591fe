"""Border types of what the traffic agent reads: metrics, probes, health checks, machines."""

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from fairlead.schema.border import BadInput
from fairlead.schema.selector import Selector

PORT_MAX = 65_535

Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
Milliseconds = Annotated[int, Meta(ge=10, le=3_600_000)]
Text = Annotated[str, Meta(min_length=1)]
Times = Annotated[int, Meta(ge=1, le=1_000)]


class Unit(StrEnum):
    """Of the times in scraped metrics."""

    SECONDS = "s"
    MILLISECONDS = "ms"


class ProbeKind(StrEnum):
    """How a backend is probed."""

    TCP = "tcp"
    """It accepts a connection."""
    HTTP = "http"
    """It answers a GET with a status below 500."""


class ScrapeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What each backend's own metrics tell, by selector; times in them are in `unit`."""

    port: Port | None = None
    path: str = "/metrics"
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 800
    requests: Text | None = None
    errors: Text | None = None
    retries: Text | None = None
    queue: Text | None = None
    latency: Annotated[Text | None, Meta(description="a histogram of successes")] = None
    p95: Annotated[Text | None, Meta(description="a gauge or a quantile")] = None
    unit: Unit = Unit.SECONDS


class ProbeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How isolated backends are probed."""

    kind: ProbeKind | None = None
    path: str = "/"
    port: Port | None = None
    timeout_ms: Milliseconds = 1_000


class CheckDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A health check of every backend; so many failures in a row isolate it."""

    kind: ProbeKind = ProbeKind.HTTP
    path: str = "/"
    port: Port | None = None
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 1_000
    failures: Times = 3


class RemoteNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Another machine, seen through its node exporter."""

    name: Text
    url: str
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 800


class LocalNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """This machine: watched for stalls and for what runs out, unless switched off."""

    name: Text | None = None
    watch: bool = True
    disks: list[Text] = []


def selectors(document: ScrapeDocument, path: str) -> dict[str, Selector]:
    """What is scraped, by name; `latency` and `p95` are both a p95."""
    names = ("requests", "errors", "retries", "queue", "latency", "p95")
    given = {name: getattr(document, name) for name in names}
    found = {
        name: Selector.parse(text, f"{path}.{name}")
        for name, text in given.items()
        if text is not None
    }
    check_path(document.path, f"{path}.path")
    if not found:
        raise BadInput(path, f"must name at least one of {', '.join(names)}")
    if "errors" in found and "requests" not in found:
        raise BadInput(f"{path}.requests", "is required where errors are scraped")
    if "latency" in found and "p95" in found:
        raise BadInput(f"{path}.p95", "must be left out where latency is scraped")
    return found


def check_path(text: str, path: str) -> None:
    """The path of a URL: from its slash on, without what would end the request's first line."""
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(path, f"must begin with a slash and hold no spaces, got {text!r}")


def check_url(text: str, path: str) -> None:
    """Plain HTTP to somewhere; nothing else is spoken here, and no password."""
    try:
        parts = urlsplit(text)
        known = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or " " in parts.netloc or "@" in parts.netloc:
        raise BadInput(path, f"must be http://host[:port]/path, got {text!r}")
    check_path(parts._replace(scheme="", netloc="", path=parts.path or "/").geturl(), path)
