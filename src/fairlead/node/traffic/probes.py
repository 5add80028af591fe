"""Knocks at backends: drip probes of isolated ones, and health checks of all where configured."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from fairlead.node.traffic.outreach import NoAnswer, Outreach, connect, get
from fairlead.ports.dataplane import Backend
from fairlead.ports.traffic import Probed

SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class KnockRules:
    """How to knock. `path` None: a connection is enough."""

    path: str | None
    port: int | None = None
    timeout_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class CheckRules:
    """How often, and how many failures in a row are believed."""

    knock: KnockRules
    every_ms: int = 1_000
    failures: int = 3


@dataclass(slots=True)
class _Check:
    backend: Backend
    rules: CheckRules
    failures: int = 0
    ok: bool | None = None
    task: Future[None] | None = None


async def knock(backend: Backend, rules: KnockRules) -> tuple[bool, float | None]:
    """Whether it answered well, and how many milliseconds that took."""
    port, began = rules.port or backend.port, time.monotonic()
    try:
        if rules.path is None:
            await connect(backend.host, port, timeout_ms=rules.timeout_ms)
            ok = True
        else:
            status, _ = await get(backend.host, port, rules.path, timeout_ms=rules.timeout_ms)
            ok = status < SERVER_ERROR
    except NoAnswer:
        return False, None
    return ok, (time.monotonic() - began) * 1000


class NetworkProber:
    """The `Prober` port on real connections."""

    def __init__(self, outreach: Outreach) -> None:
        self._outreach = outreach
        self._lock = threading.Lock()
        self._answers: list[Probed] = []
        self._under_way: set[tuple[str, str]] = set()
        self._rules: dict[str, KnockRules] = {}
        self._members: dict[tuple[str, str], Backend] = {}
        self._checks: dict[tuple[str, str], _Check] = {}

    def watch(
        self,
        rules: Mapping[str, KnockRules],
        checks: Mapping[str, CheckRules],
        members: Mapping[str, Sequence[Backend]],
    ) -> None:
        """Know these backends and no others; check those of groups that want it."""
        self._rules = dict(rules)
        self._members = {(group, b.id): b for group, each in members.items() for b in each}
        wanted = {(g, b.id): (b, checks[g]) for g in checks for b in members.get(g, ())}
        for key, check in list(self._checks.items()):
            if wanted.get(key) != (check.backend, check.rules):
                del self._checks[key]
                if check.task is not None:
                    check.task.cancel()
        for key in wanted.keys() - self._checks.keys():
            self._begin(key, *wanted[key])

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """Knock once at each, unless the last knock is still waiting for its answer."""
        for name in backends:
            key, backend = (group, name), self._members.get((group, name))
            with self._lock:
                if backend is None or key in self._under_way:
                    continue
                self._under_way.add(key)
            self._ask(group, backend, self._rules[group])

    def results(self) -> Sequence[Probed]:
        """Answers since this was last asked."""
        with self._lock:
            found, self._answers = self._answers, []
        return found

    def check_ok(self, group: str, backend: str) -> bool | None:
        """What the check of this backend says."""
        check = self._checks.get((group, backend))
        return None if check is None else check.ok

    def _ask(self, group: str, backend: Backend, rules: KnockRules) -> None:
        async def ask() -> None:
            ok, latency_ms = await knock(backend, rules)
            with self._lock:
                self._under_way.discard((group, backend.id))
                self._answers.append(Probed(group, backend.id, ok, latency_ms))

        self._outreach.once(ask)

    def _begin(self, key: tuple[str, str], backend: Backend, rules: CheckRules) -> None:
        check = self._checks[key] = _Check(backend, rules)

        async def ask() -> None:
            ok, _ = await knock(backend, rules.knock)
            check.failures = 0 if ok else check.failures + 1
            check.ok = check.failures < rules.failures

        check.task = self._outreach.repeat(rules.every_ms, ask, phase="check " + "/".join(key))
