"""Requests per second: a token bucket for each user, told with 429 and when to ask again."""

import asyncio
import os
import threading
import time
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from fairlead.api import rates, streams
from fairlead.api.endpoint import account_of
from fairlead.api.rates import (
    BURST_S,
    BYTES_A_TOKEN,
    WORK_EACH,
    RequestRates,
    TooManyRequests,
    WorkShares,
)
from fairlead.core.gpu import QuotaPolicy
from fairlead.engine.gpu import Author
from tests.api.servers import budget, node, run, serving, short_folder


class Clock:
    """Time that the test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_fills_with_time_and_is_a_users_own() -> None:
    """A burst, then as many per second as the operator allows; the others have theirs."""
    clock = Clock()
    limited = RequestRates(2, clock)
    for _ in range(2 * BURST_S):
        limited.take("ada")
    with pytest.raises(TooManyRequests, match="more than 2 requests per second") as refused:
        limited.take("ada")
    assert refused.value.retry_after_s == 1
    limited.take("bob")
    clock.now_s += 0.5
    limited.take("ada")
    with pytest.raises(TooManyRequests):
        limited.take("ada")
    clock.now_s += 3600
    for _ in range(2 * BURST_S):
        limited.take("ada")
    with pytest.raises(TooManyRequests):
        limited.take("ada")


def test_a_large_body_costs_more() -> None:
    """What is written is kept for good: 4 MiB are 64 requests more, paid by waiting."""
    clock = Clock()
    limited = RequestRates(10, clock)
    limited.take("ada")
    limited.charge("ada", 64 * BYTES_A_TOKEN)
    with pytest.raises(TooManyRequests) as refused:
        limited.take("ada")
    clock.now_s += refused.value.retry_after_s
    limited.take("ada")
    limited.charge("nobody-yet", 10)


def test_buckets_that_are_full_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users that came once take no memory for ever; who waits is still known."""
    monkeypatch.setattr(rates, "_USERS_KEPT", 3)
    clock = Clock()
    limited = RequestRates(1, clock)
    for _ in range(BURST_S):
        limited.take("ada")
    for name in ("b", "c"):
        limited.take(name)
    clock.now_s += 2
    for name in ("d", "e"):
        limited.take(name)
    limited.take("ada")
    limited.take("ada")
    with pytest.raises(TooManyRequests):
        limited.take("ada")


def test_without_a_limit_nothing_is_counted() -> None:
    limited = RequestRates(None, Clock())
    for _ in range(1000):
        limited.take("ada")
        limited.charge("ada", 2**30)


def test_a_tenant_is_told_and_others_are_served() -> None:
    """Over TCP with a token, and without one; the admin on the socket and with a token is exempt,
    and health is always answered."""
    with short_folder() as folder, serving(folder, requests_per_s=1) as server:
        server.apply(node(), budget("team-a"))
        ada, bob = server.token("ada", "team-a"), server.token("bob", "team-a")
        chief = server.token("chief", admin=True)

        def ask(token: str | None, path: str = "/v1/head") -> int:
            return server.send("GET", path, tcp=True, token=token).status

        statuses = [ask(ada) for _ in range(40)]
        assert statuses[:BURST_S] == [200] * BURST_S
        assert 429 in statuses
        while (reply := server.send("GET", "/v1/head", tcp=True, token=ada)).status == 200:
            pass
        assert (reply.code, reply.headers["retry-after"]) == ("TooManyRequests", "1")
        assert ask(bob) == 200
        assert [ask(chief) for _ in range(20)] == [200] * 20
        assert 429 in [ask(None) for _ in range(40)]
        assert {ask("flt_wrong") for _ in range(40)} <= {401, 429}
        assert [ask(None, "/healthz") for _ in range(20)] == [200] * 20
        if os.geteuid() == 0:
            for _ in range(20):
                server.ok("GET", "/v1/head")


def test_an_owner_has_a_quota_of_runs_and_of_manifests() -> None:
    """The refusal names the rule, its value and what would do; `describe policy` shows them; the
    admin is exempt; what has ended frees runs, what is deleted frees bytes."""
    quota = QuotaPolicy(max_open_runs=2, max_manifest_bytes=20_000)
    with short_folder() as folder, serving(folder, quota=quota) as server:
        server.apply(node(), budget("team-a"), budget("team-b"))
        ada = server.token("ada", "team-a", "team-b")
        rules = server.ok("GET", "/v1/policy", tcp=True)
        shown = (rules["maxOpenRuns"], rules["maxManifestBytes"], rules["maxRequestsPerSecond"])
        assert shown == (2, 20_000, 50)

        def put(name: str, **more: object):
            body = run(name, gpus=99, **more)
            return server.send("PUT", f"/v1/objects/Run/{name}", body, tcp=True, token=ada)

        assert [put(name).status for name in ("one", "two")] == [200, 200]
        refused = put("three")
        assert (refused.status, refused.code) == (409, "OpenRunsQuota")
        assert "would have 3 open runs of 2" in refused.json["error"]["message"]
        assert put("one").status == 200, "what is there already is no new run"
        assert put("theirs", owner="team-b").status == 200
        both = {"manifests": [run(f"b-{place}", "team-b") for place in range(2)]}
        reply = server.send("POST", "/v1/apply", both, tcp=True, token=ada)
        assert (reply.status, reply.code) == (409, "OpenRunsQuota")
        assert reply.json["error"]["path"] == "manifests[1]"
        assert server.send("GET", "/v1/objects/Run/b-0").status == 404, "all or none"
        server.apply(run("by-admin", gpus=99))
        for name in ("by-admin", "one"):
            server.ok("POST", f"/v1/objects/Run/{name}/actions/cancel")
        large = put("large", env={"V": "v" * 20_000})
        assert (large.status, large.code) == (409, "ManifestBytesQuota")
        assert "delete runs that have ended" in large.json["error"]["message"]
        assert put("three", env={"V": "v" * 15_000}).status == 200
        server.ok("POST", "/v1/objects/Run/three/actions/cancel")
        assert put("four", env={"V": "v" * 15_000}).code == "ManifestBytesQuota"
        server.ok("DELETE", "/v1/objects/Run/three")
        assert put("four", env={"V": "v" * 15_000}).status == 200
    with short_folder() as folder, serving(folder, quota=quota) as again:
        assert again.ok("GET", "/v1/policy")["maxOpenRuns"] == 2


def test_who_asks_for_much_at_once_waits_for_itself() -> None:
    """A user has its share of the worker threads; others, and admins, do not wait for it."""

    async def ask() -> list[str]:
        shares, log, done = WorkShares(each=2), list[str](), asyncio.Event()

        async def work(account: str | None, name: str) -> None:
            async with shares.of(account):
                log.append(name)
                await done.wait()

        names = (("ada", "a1"), ("ada", "a2"), ("ada", "a3"), ("bob", "b1"), (None, "root"))
        async with asyncio.TaskGroup() as tasks:
            for account, name in names:
                tasks.create_task(work(account, name))
            while len(log) < 4:
                await asyncio.sleep(0)
            assert "a3" not in log
            done.set()
        assert shares._shares == {}
        return log

    assert asyncio.run(ask()) == ["a1", "a2", "b1", "root", "a3"]


def test_all_runs_of_a_user_have_one_share() -> None:
    """Each run had one of its own, so a tenant had as many as it had runs. The user's is apart, and
    so is that of another user's runs."""

    def account(author: Author | None, place: Hashable) -> Hashable:
        return account_of(Request({"type": "http", "state": {"place": place}}), author)

    first, second = (Author(f"run/{name}", in_run=True, run=name) for name in ("r1", "r2"))
    unknown, user = Author("ada", in_run=True), Author("ada", frozenset({"a"}))
    runs = {account(each, (1001, True)) for each in (first, second, unknown)}
    assert len(runs) == 1
    assert account(user, (1001, False)) not in runs
    assert account(first, (1002, True)) not in runs
    assert account(Author("root", admin=True), (0, False)) is None
    assert account(None, "user 1001") == "user 1001"


def test_events_and_output_are_worked_on_within_a_users_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait in the event loop, and were counted nowhere: one user had all worker threads."""
    at_work, go = list[str](), threading.Event()

    def read(*_: Any) -> list[dict[str, Any]]:
        at_work.append("one")
        assert go.wait(60)
        return []

    monkeypatch.setattr(streams, "read_events", read)
    asked = WORK_EACH + 4
    with short_folder() as folder, serving(folder) as server, ThreadPoolExecutor(asked) as clients:
        token = server.token("ada", "a")
        replies = [
            clients.submit(server.ok, "GET", "/v1/events", tcp=True, token=token)
            for _ in range(asked)
        ]
        server.until("its share is at work", lambda: len(at_work) >= WORK_EACH)
        time.sleep(0.3)  # nothing tells of requests that wait for the share
        assert len(at_work) == WORK_EACH
        assert server.ok("GET", "/v1/budgets") == []
        go.set()
        assert [reply.result()["items"] for reply in replies] == [[]] * asked
