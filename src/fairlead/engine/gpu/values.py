"""Authors of commands, what became of them, and the refusals that a command can raise."""

from dataclasses import dataclass, field
from typing import Literal

from fairlead.engine.gpu.entries import Document


@dataclass(frozen=True, slots=True)
class Author:
    """A user, and the owners that the user may act for. An admin may act for all."""

    user: str
    owners: frozenset[str] = field(default_factory=frozenset)
    admin: bool = False

    def may_act_for(self, owner: str) -> bool:
        """Whether this author may change runs of this owner."""
        return self.admin or owner in self.owners


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a manifest. `preview` says what a dry run would have led to."""

    object: Document
    change: Literal["created", "configured", "unchanged"]
    preview: Document | None = None


class Denied(Exception):
    """A command is refused: a machine-readable reason and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.path: str | None = None
        """Which manifest of a batch it is about."""


class Forbidden(Denied):
    """The author may not do this (HTTP 403)."""

    def __init__(self, message: str) -> None:
        super().__init__("Forbidden", message)


class NotFound(Denied):
    """There is no such object (HTTP 404)."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__("NotFound", f"there is no {kind} {name!r}")


class Conflict(Denied):
    """The object is not in the version that was expected (HTTP 409)."""

    def __init__(self, message: str) -> None:
        super().__init__("Conflict", message)


class Refused(Denied):
    """It cannot be done in the present state: in use, ended, not running (HTTP 409)."""
