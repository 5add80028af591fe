"""The certificate of the controller's server: issued, shared, and rotated under load."""

import http.client
import itertools
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fairlead.api import cluster_server
from fairlead.api.cluster_server import ClusterListen, ClusterServer, ControllerState
from fairlead.host import files
from fairlead.kube.certificates import KeyPair, Signer
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.serving import CertificateTerms, Material, ServingCertificate, renewed
from tests.kube.world import until

SERVICE = "fairlead-controller"
NAMES = ["a.svc", "a"]
DAY = timedelta(days=1)
# An authority is due after 1600 days, a certificate after 1267: what is made 1800 days ago is still
# valid today, so that real clients check each step of a history that ends today.
TERMS = CertificateTerms(2400 * DAY, 1900 * DAY, 100 * DAY)
TODAY = datetime.now(UTC)


def serial(material: Material) -> int:
    return x509.load_pem_x509_certificate(material.certificate).serial_number


def test_each_is_renewed_after_two_thirds_and_an_authority_signs_after_it_was_published() -> None:
    terms = CertificateTerms()
    first = renewed(None, NAMES, TODAY, terms)
    assert renewed(first, NAMES, TODAY + 59 * DAY, terms) == first
    second = renewed(first, NAMES, TODAY + 60 * DAY, terms)
    assert serial(second) != serial(first)
    assert second.bundle == first.bundle

    due = TODAY + 487 * DAY  # two thirds of two years
    old = renewed(second, NAMES, due - 2 * DAY, terms)
    late = renewed(old, NAMES, due + 58 * DAY - timedelta(minutes=10), terms)
    assert late.bundle.endswith(old.bundle)
    assert late.bundle != old.bundle
    assert serial(late) == serial(old)
    signed = renewed(late, NAMES, due + 60 * DAY, terms)
    assert signed.bundle == late.bundle
    certificate = x509.load_pem_x509_certificate(signed.certificate)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificates(signed.bundle)[0])
    gone = renewed(signed, NAMES, TODAY + 1040 * DAY, terms)
    assert old.bundle not in gone.bundle, "an authority that has expired is trusted no more"


def test_other_names_are_served_at_once() -> None:
    first = renewed(None, NAMES, TODAY, TERMS)
    assert serial(renewed(first, ["b.svc"], TODAY, TERMS)) != serial(first)


class Load:
    """Clients that connect anew for each request, and check the certificate."""

    def __init__(self, port: int, name: str, bundle: str) -> None:
        self._port, self._name, self.bundle = port, name, bundle
        self.done, self.failed = 0, []  # type: ignore[var-annotated]
        self.seen: set[int] = set()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(3)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def ask(self, bundle: str) -> int:
        """The serial number of the certificate that was served."""
        tls = ssl.create_default_context(cadata=bundle)
        made = Named(self._port, self._name, tls)
        made.request("GET", "/healthz")
        assert made.getresponse().read()
        assert isinstance(made.sock, ssl.SSLSocket)
        shown = made.sock.getpeercert(binary_form=True)
        made.close()
        return x509.load_der_x509_certificate(shown or b"").serial_number

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.seen.add(self.ask(self.bundle))
                self.done += 1
            except Exception as error:  # noqa: BLE001 - whatever a client would see
                self.failed.append(repr(error))


class Named(http.client.HTTPSConnection):
    """By the address of the pod, for the name of the Service."""

    def __init__(self, port: int, name: str, tls: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, context=tls, timeout=30)
        self._name, self._tls = name, tls

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def test_no_handshake_fails_while_the_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often, and though certificate and key are two files."""
    monkeypatch.setattr(cluster_server, "RELOAD_S", 0.0005)
    authority = Signer.create("test")
    pairs = [authority.server("a.svc", NAMES) for _ in range(2)]
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: KeyPair) -> None:
        files.replace(key, pair.key, durable=False)
        files.replace(certificate, pair.certificate, durable=False)

    write(pairs[0])
    server = ClusterServer(
        ClusterListen("127.0.0.1", 0, certificate, key),
        lambda: ControllerState(None, None, True, {}),
        lambda _: None,
        lambda _: None,
    )
    server.start()
    try:
        with Load(server.port, NAMES[0], authority.pair.certificate.decode()) as load:
            for number, pair in enumerate(itertools.cycle(pairs)):
                write(pair)
                if load.failed or (number > 1_000 and load.done > 50 and len(load.seen) == 2):
                    break
        assert load.failed == []
    finally:
        server.stop()


def test_no_request_fails_while_certificate_and_authority_are_rotated(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, one Secret: both serve what either has renewed. A client trusts the bundle as
    it was published; one that never reads it again is refused in the end, as it should be."""
    monkeypatch.setattr(cluster_server, "RELOAD_S", 0.05)
    clock = [TODAY - 1800 * DAY]
    client = KubeClient(connection(cluster.kubeconfig))
    made = [
        ServingCertificate(
            client, namespace, SERVICE, tmp_path / name, terms=TERMS, now=lambda: clock[0]
        )
        for name in ("a", "b")
    ]
    for replica in made:
        replica.turn()
    assert made[0].certificate.read_bytes() == made[1].certificate.read_bytes()

    def published() -> str:
        found = client.get(f"/api/v1/namespaces/{namespace}/configmaps/{SERVICE}-ca")
        assert found is not None
        return str(found["data"]["ca.crt"])

    listen = ClusterListen("127.0.0.1", 0, made[0].certificate, made[0].key)
    server = ClusterServer(
        listen, lambda: ControllerState(None, None, True, {}), lambda _: None, lambda _: None
    )
    server.start()
    old = published()
    try:
        with Load(server.port, made[0].names[0], old) as load:
            until(lambda: load.done > 5, "clients are served")
            first = load.ask(old)
            clock[0] = TODAY - 200 * DAY  # both are due
            for replica in reversed(made):
                replica.turn()
            assert published().count("BEGIN CERTIFICATE") == 2
            assert load.ask(old) == first, "a new authority does not sign yet"
            load.bundle = published()
            clock[0] = TODAY - 90 * DAY
            for replica in reversed(made):
                replica.turn()
            until(lambda: load.seen - {first}, "the new certificate is served")
            many = load.done + 20
            until(lambda: load.done > many, "clients are served")
        assert load.failed == []
        assert len(load.seen) == 2
        with pytest.raises(ssl.SSLCertVerificationError):
            load.ask(old)
    finally:
        server.stop()


def test_a_secret_that_was_spoiled_is_replaced(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    client = KubeClient(connection(cluster.kubeconfig))
    made = ServingCertificate(client, namespace, SERVICE, tmp_path)
    made.turn()
    before = made.certificate.read_bytes()
    patch = '{"data":{"ca.key":"eA=="}}'
    cluster.kubectl("-n", namespace, "patch", "secret", f"{SERVICE}-tls", "-p", patch)
    made.turn()
    assert made.certificate.read_bytes() != before
