"""What a reply promises: what it acknowledges is recorded, what it refuses is not, what it shows is
what all entries say."""

from typing import Any

from fairlead.api.service import HEAD
from fairlead.sim.vopr.api import ApiReply, ApiRequest
from fairlead.sim.vopr.checks import Checker
from fairlead.sim.vopr.violation import Violation

UNAVAILABLE = 503
"""What was asked is done, or not."""
_CHANGES = ("created", "configured", "deleted")


class Replies:
    """Looks at every reply of one world, as its clients and as one who sees the ledger."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.held = ""
        """The newest checkpoint that a client was shown."""
        self._size, self._root = 0, ""

    def look(self, request: ApiRequest, reply: ApiReply, before: int, *, arrives: bool) -> None:
        """`before`: how many entries there were; `arrives`: whether the client sees it."""
        if reply.status == 500:
            raise Violation("reply", f"{request}: 500 {reply.data.decode()}")
        self._checker.follow()
        made = [e for e in self._checker.entries[before:] if e.author == request.author]
        if 400 <= reply.status < 500 and made:
            raise Violation("refused", f"{request}: {reply.status}, and entry {made[0].seq}")
        changed = request.method != "GET" and reply.done and _says_change(reply.json)
        if changed and not made:
            raise Violation("acknowledged", f"{request}: {reply.status}, and nothing is recorded")
        if request.method == "GET":
            self._compare(request, reply)
        if reply.status == 409 and reply.json["error"]["code"] == "LedgerChanged":
            raise Violation("checkpoint", f"{request}: {reply.json['error']['message']}")
        if arrives and reply.held:
            self._take(request, reply, made[-1].seq if changed else 0)

    def _take(self, request: ApiRequest, reply: ApiReply, covers: int) -> None:
        """A checkpoint is never of less than one before, nor of other entries; it covers what its
        reply acknowledges."""
        text, _, root = reply.headers[HEAD.lower()].partition(":")
        size = int(text)
        if size < max(self._size, covers):
            raise Violation(
                "checkpoint", f"{request}: of {size} entries, after {max(self._size, covers)}"
            )
        if size == self._size and root != self._root:
            raise Violation("checkpoint", f"{request}: another root of {size} entries")
        self._size, self._root, self.held = size, root, reply.held

    def _compare(self, request: ApiRequest, reply: ApiReply) -> None:
        """An object is shown as it is recorded; its command to those of its owner only."""
        parts = request.path.split("/")
        if parts[1:3] != ["v1", "objects"] or len(parts) != 5 or reply.status not in (200, 404):
            return
        stored = self._checker.stored(*parts[3:])
        shown: dict[str, Any] | None = reply.json if reply.done else None
        recorded = None if stored is None else (stored.uid, stored.version)
        told = shown and (shown["metadata"]["uid"], shown["metadata"]["resourceVersion"])
        if told != recorded:
            raise Violation("stale", f"{request} shows {told}, and {recorded} is recorded")
        spec = {} if shown is None else shown["spec"]
        if request.peer is None and (spec.get("command") or spec.get("env")):
            raise Violation("rights", f"{request} shows a command")


def _says_change(document: Any) -> bool:
    """Whether a reply says that something was changed."""
    items = document.get("items", [document])
    return any(item.get("change") in _CHANGES for item in items)
