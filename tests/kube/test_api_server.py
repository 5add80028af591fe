"""The controller's HTTP server: who asks is asked of the API server; only the leader answers."""

import http.client
import json
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import cluster_server, connections
from fairlead.api.cluster_server import ClusterListen, ClusterServer, ControllerState
from fairlead.kube.certificates import Authority
from fairlead.schema.metrics import Process
from tests.kube.world import World, node, run, team, until
from tests.schema.scrapes import names_of, scraped

GROUP = "rbac.authorization.k8s.io"


def get(port: int, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    made.request(method, path, headers=headers)
    reply = made.getresponse()
    return reply.status, reply.read().decode()


def port_of(world: World) -> int:
    def listening() -> str | None:
        said = [line for line in world.spoken if line.startswith("listens on ")]
        return said[-1] if said else None

    return int(until(listening, "it listens").rpartition(":")[2])


def _role(name: str, *rules: dict[str, Any]) -> list[dict[str, Any]]:
    meta = {"name": f"test-{name}"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "team-a"}
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": meta["name"]}
    version = f"{GROUP}/v1"
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": "team-a"},
        },
        {"apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": list(rules)},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def test_the_server_asks_kubernetes_who_it_is(world: World) -> None:
    """No token, an unknown one, one without rights, a reader, an admin, a scraper."""
    world.apply(node("n1"), *team("team-a"), run("train", 8))
    runs = {"apiGroups": ["fairlead.dev"], "resources": ["runs"], "verbs": ["list"]}
    budgets = {"apiGroups": ["fairlead.dev"], "resources": ["budgets"], "verbs": ["update"]}
    scrape = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    world.apply(*_role("reader", runs), *_role("admin", runs, budgets))
    world.apply(*_role("scraper", scrape), *_role("nobody"))
    names = ("reader", "admin", "scraper", "nobody")
    tokens = {
        name: world.kubectl("-n", "team-a", "create", "token", name).strip() for name in names
    }
    with world.controlled(listen=ClusterListen("127.0.0.1", 0)):
        world.reach("train", "Running")
        port = port_of(world)
        assert get(port, "/healthz")[0] == 200
        status, text = get(port, "/readyz")
        assert (status, json.loads(text)["leads"]) == (200, True)

        assert get(port, "/v1/budgets")[0] == 401
        assert get(port, "/v1/budgets", "not.a.token")[0] == 401
        assert get(port, "/v1/budgets", tokens["nobody"])[0] == 403
        assert get(port, "/v1/budgets", tokens["scraper"])[0] == 403
        status, text = get(port, "/v1/budgets", tokens["reader"])
        assert (status, json.loads(text)[0]["used_gpus"]) == (200, 8)
        status, text = get(port, "/v1/whoami", tokens["admin"])
        assert json.loads(text) == {
            "user": "kubernetes:system:serviceaccount:team-a:admin",
            "owners": [],
            "admin": True,
            "anonymous": False,
            "in_run": False,
            "run": None,
            "session": None,
        }
        cancel = "/v1/objects/Run/team-a.train/actions/cancel"
        assert get(port, cancel, tokens["reader"], "POST")[0] == 403
        assert get(port, f"{cancel}?dry_run=true", tokens["admin"], "POST")[0] == 200
        status, text = get(port, "/v1/objects/Run/team-a.train", tokens["admin"], "DELETE")
        assert (status, "Kubernetes' own objects" in text) == (403, True)

        assert get(port, "/metrics")[0] == 401
        assert get(port, "/metrics", tokens["reader"])[0] == 403
        status, text = get(port, "/metrics", tokens["scraper"])
        assert status == 200
        assert "fairlead_kube_leader 1.0" in text
        assert scraped(text) == names_of(Process.CONTROLLER)
        assert 'budget_concurrency_used{budget="team-a",envelope="main"} 8.0' in text
        sent = [line for line in text.splitlines() if line.startswith("fairlead_kube_requests")]
        assert float(sent[0].split()[1]) > 10
    world.kubectl("delete", "clusterrole,clusterrolebinding", *(f"test-{name}" for name in names))


class _Anybody:
    user, reads, administers, scrapes = "ana", True, True, True


def _standby(listen: ClusterListen) -> ClusterServer:
    """A server of a controller that does not lead."""
    state = ControllerState(None, "other-1", synced=True, counters={})
    made = ClusterServer(listen, lambda: state, lambda _: _Anybody(), lambda _: None)
    made.start()
    return made


def test_who_does_not_lead_says_who_does() -> None:
    server = _standby(ClusterListen("127.0.0.1", 0))
    try:
        status, text = get(server.port, "/readyz")
        assert (status, json.loads(text)) == (
            200,
            {"ok": True, "leads": False, "leader": "other-1"},
        )
        status, text = get(server.port, "/v1/budgets", "t")
        assert status == 503
        assert json.loads(text)["error"]["message"].endswith("other-1 does")
        assert "fairlead_kube_leader 0.0" in get(server.port, "/metrics", "t")[1]
    finally:
        server.stop()


def test_a_token_is_not_taken_in_the_clear() -> None:
    """On another address than loopback, without TLS: health is all that there is."""
    server = _standby(ClusterListen("0.0.0.0", 0))
    try:
        assert get(server.port, "/healthz")[0] == 200
        status, text = get(server.port, "/v1/budgets", "t")
        assert (status, "over TLS" in text) == (403, True)
    finally:
        server.stop()


def test_a_renewed_certificate_is_used(tmp_path: Path) -> None:
    """While the server runs, and the old one until the new pair is whole."""
    authority = Authority(tmp_path / "pki")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def issue() -> bytes:
        made = authority.server("localhost", ["localhost"], ["127.0.0.1"])
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        return made.certificate

    first = issue()
    server = _standby(ClusterListen("127.0.0.1", 0, certificate, key))
    try:
        context = ssl.create_default_context(cadata=authority.certificate.decode())

        def serial() -> bytes:
            made = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
            made.connect()
            made.request("GET", "/healthz")
            assert made.getresponse().status == 200
            found = made.sock.getpeercert(binary_form=True)
            made.close()
            return ssl.DER_cert_to_PEM_cert(found).encode()

        assert serial().strip() == first.strip()
        time.sleep(0.01)  # another time of the file
        second = issue()
        until(lambda: serial().strip() == second.strip(), "the new certificate is used")
    finally:
        server.stop()


def test_half_a_handshake_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes have places like connections: a peer's newest takes its oldest's, and one that
    does not go on is ended."""
    monkeypatch.setattr(cluster_server, "descriptors", lambda: 64)
    monkeypatch.setattr(connections, "HEADERS_S", 1.0)
    authority = Authority(tmp_path / "pki")
    made = authority.server("localhost", ["localhost"], ["127.0.0.1"])
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    server = _standby(ClusterListen("127.0.0.1", 0, certificate, key))
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    halves = []
    try:
        for number in range(100):
            halves.append(socket.create_connection(("127.0.0.1", server.port)))
            halves[-1].sendall(b"\x16\x03\x01" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        asked = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=10)
        asked.request("GET", "/healthz")
        assert asked.getresponse().status == 200
        asked.close()
        for half in halves:
            half.settimeout(10)
            with suppress(ConnectionResetError):
                while half.recv(1024):
                    pass  # an alert, and then the end
    finally:
        for half in halves:
            half.close()
        server.stop()
