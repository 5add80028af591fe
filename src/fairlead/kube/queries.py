"""Queries: requests of the HTTP API that are asked through the API server.

Its RBAC decides who asks: a user who may create Queries in a namespace acts for the namespace's
owner, and in the admin namespace for all. docs/decisions/0046 tells why there is no second way in.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions
from fairlead.kube.kinds import KINDS
from fairlead.kube.specs import QUERY_BYTES_MAX
from fairlead.kube.watch import Key, Mirrored
from fairlead.ports.faults import Fault, TemporaryFault

KEEP_S = 60.0
"""How long an answer stays where its client does not delete it."""
SHARE = 0.2
"""Of the controller's rate that Queries take at most: pods and states have the rest."""
TURN_MAX = 50
"""Queries that are under way at once, and that are removed at once."""
NAMESPACE_MAX = 10
"""Of one namespace: others must not wait for its readers."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, and for whom it is asked."""

    method: str
    path: str
    query: dict[str, str]
    body: str
    namespace: str
    owner: str | None
    """None: an admin's, who asks for all."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """As over HTTP: a status code, headers and a body."""

    code: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)


class Queries:
    """A part of the controller: answers what is asked, and removes it after a while."""

    def __init__(
        self,
        client: KubeClient,
        wake: Callable[[], None],
        *,
        answer: Callable[[Question], QueryAnswer],
        owner_of: Callable[[str], str | None],
        admin_namespace: str | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._answer, self._owner_of = client, answer, owner_of
        self._admin_namespace, self._clock_s = admin_namespace, clock_s
        self._source = Mirrored(client, KINDS["Query"].path(), wake, packed=True)
        self._seen_s: dict[Key, float] = {}
        self._waiting: set[Key] = set()
        self._under_way: dict[Key, Future[bool]] = {}
        self._removing: set[Key] = set()
        """Of those under way, those that are removed; the others are answered."""
        self._answers: dict[tuple[Key, str], QueryAnswer] = {}
        """Those that are not written yet, by uid: what was done is not done again."""
        self._earlier: set[Key] | None = None
        """Those that were there when this process began."""
        self.answered = 0

    def sources(self) -> Sequence[Mirrored]:
        return [self._source]

    def turn(self) -> None:
        """Takes no time of the controller's: what is asked is answered beside its turns. Raises a
        fault of what could not be written; it is tried again."""
        faults = self._take_done()
        now_s = self._clock_s()
        for key, document in self._source.take_changed().items():
            if document is None:
                self._forget(key)
            else:
                self._seen_s.setdefault(key, now_s)
                if "code" not in document.get("status", {}):
                    self._waiting.add(key)
        if self._earlier is None:
            self._earlier = set(self._waiting)
        for key in self._next():
            self._waiting.discard(key)
            self._under_way[key] = self._client.submit(partial(self._write, key))
        old = self._oldest(
            key
            for key, seen_s in self._seen_s.items()
            if now_s - seen_s > KEEP_S and key not in self._under_way
        )
        for key in old[: max(0, TURN_MAX - len(self._under_way))]:
            self._waiting.discard(key)
            self._removing.add(key)
            self._under_way[key] = self._client.submit(partial(self._remove, key))
        if faults:
            raise faults[0]

    def wait(self) -> None:
        """Until what is under way is written, or has failed."""
        futures.wait(list(self._under_way.values()))

    def _take_done(self) -> list[Fault]:
        faults: list[Fault] = []
        for key, future in [row for row in self._under_way.items() if row[1].done()]:
            del self._under_way[key]
            done = False
            try:
                done = not future.cancelled() and future.result()
            except Fault as fault:
                faults.append(fault)
            except MISREAD as error:  # one of them must not keep the others waiting
                faults.append(TemporaryFault(f"Query {key}: {error!r}"))
            removed = key in self._removing
            self._removing.discard(key)
            if removed and done:
                self._forget(key)  # the watch tells that it is gone, or never knew it
            elif not done and key in self._seen_s:
                self._waiting.add(key)
        return faults

    def _oldest(self, keys: Iterable[Key]) -> list[Key]:
        return sorted(keys, key=lambda key: (self._seen_s[key], key))

    def _next(self) -> list[Key]:
        """Those to answer: the oldest of each namespace, then the next of each, a few at once."""
        taken = Counter(key.namespace for key in self._under_way)
        ranked: list[tuple[int, Key]] = []
        for key in self._oldest(self._waiting - self._under_way.keys()):
            if taken[key.namespace] < NAMESPACE_MAX:
                ranked.append((taken[key.namespace], key))
                taken[key.namespace] += 1
        ranked.sort(key=lambda row: row[0])  # stable: the oldest first
        return [key for _, key in ranked[: max(0, TURN_MAX - len(self._under_way))]]

    def _forget(self, key: Key) -> None:
        self._seen_s.pop(key, None)
        self._waiting.discard(key)
        for made in [made for made in self._answers if made[0] == key]:
            del self._answers[made]

    def _write(self, key: Key) -> bool:
        document = self._source.get(key)
        if document is None or "code" in document.get("status", {}):
            return True
        made = (key, document["metadata"]["uid"])
        if made not in self._answers:
            answer = self._ask(key, document)
            if len(answer.body.encode()) > QUERY_BYTES_MAX:
                answer = problem(413, "TooLarge", f"the answer is over {QUERY_BYTES_MAX} bytes")
            self._answers[made] = answer
        answer = self._answers[made]
        reason = "Answered" if answer.code < 400 else "Refused"
        rows = [Conditions(document).row("Answered", reason, "", holds=True)]
        status = {"code": answer.code, "headers": answer.headers, "body": answer.body}
        path = KINDS["Query"].path(key.namespace, key.name, "status")
        try:
            self._client.patch(path, {"status": {**status, "conditions": rows}})
        except ApiError as error:
            if error.status != 404:
                return False
        self._answers.pop(made, None)
        self.answered += 1
        return True

    def _ask(self, key: Key, document: Document) -> QueryAnswer:
        admin = key.namespace == self._admin_namespace
        owner = None if admin else self._owner_of(key.namespace)
        if owner is None and not admin:
            message = f"no OwnerBinding says whose namespace {key.namespace!r} is"
            return problem(403, "NoOwner", message)
        spec = document["spec"]
        changes = spec["method"] != "GET" and spec["path"].partition("?")[0] != "/v1/plan"
        if changes and key in (self._earlier or ()):
            # It may have been done, and its answer lost.
            message = "it was asked before the controller began; see what became of it, ask again"
            return problem(503, "Restarted", message)
        try:
            asked = Question(
                spec["method"],
                spec["path"],
                dict(spec.get("query") or {}),
                spec.get("body") or "",
                key.namespace,
                owner,
            )
            return self._answer(asked)
        except Fault as fault:
            return problem(503, "Fault", str(fault))
        except MISREAD as error:
            return problem(500, "Unreadable", repr(error)[:1000])

    def _remove(self, key: Key) -> bool:
        self._client.delete(KINDS["Query"].path(key.namespace, key.name))
        return True


def problem(code: int, reason: str, message: str) -> QueryAnswer:
    error = {"error": {"code": reason, "path": None, "message": message}}
    return QueryAnswer(code, json.dumps(error))
