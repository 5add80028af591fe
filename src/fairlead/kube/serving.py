"""The certificate of the controller's HTTP server, which the controllers issue and rotate.

It is in a Secret, so that every replica serves the same one; the authorities that clients trust are
in a ConfigMap. A new authority is published before it signs: a client that read the bundle within
`overlap` never meets a certificate that it cannot check. docs/decisions/0051 tells why.
"""

import base64
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fairlead.host import files
from fairlead.kube.certificates import KeyPair, Signer
from fairlead.kube.client import ApiError, Document, KubeClient
from fairlead.ports.faults import Fault, TemporaryFault

CHECK_S = 60.0
ATTEMPTS = 5
AUTHORITY = "fairlead-controller-ca"
FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class CertificateTerms:
    """How long authorities and certificates are valid; both are replaced after two thirds."""

    authority: timedelta = timedelta(days=730)
    certificate: timedelta = timedelta(days=90)
    overlap: timedelta = timedelta(days=1)
    """How long an authority is published before it signs."""


@dataclass(frozen=True, slots=True)
class Material:
    """What the Secret holds: authorities, newest first, and what the newest one may sign."""

    bundle: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def renewed(
    before: Material | None, names: Sequence[str], now: datetime, terms: CertificateTerms
) -> Material:
    """What to serve now: the same value where nothing is due."""
    if before is None:
        signer = Signer.create(AUTHORITY, terms.authority, now)
        pair = signer.server(names[0], names, valid=terms.certificate, now=now)
        return Material(signer.pair.certificate, signer.pair.key, pair.certificate, pair.key)
    authorities = x509.load_pem_x509_certificates(before.bundle)
    bundle, authority_key = before.bundle, before.authority_key
    if _due(authorities[0], now):
        made = Signer.create(AUTHORITY, terms.authority, now)
        kept = [made.pair.certificate, *(_pem(row) for row in authorities if _lives(row, now))]
        bundle, authority_key = b"".join(kept), made.pair.key
    newest = x509.load_pem_x509_certificates(bundle)[0]
    served = x509.load_pem_x509_certificate(before.certificate)
    known = now - newest.not_valid_before_utc >= terms.overlap
    other = _names(served) != set(names)
    if (_due(served, now) and known) or not _lives(served, now) or other:
        signer = Signer(KeyPair(authority_key, _pem(newest)))
        pair = signer.server(names[0], names, valid=terms.certificate, now=now)
        return Material(bundle, authority_key, pair.certificate, pair.key)
    return Material(bundle, authority_key, before.certificate, before.key)


class ServingCertificate:
    """Keeps the Secret, the ConfigMap and the two files that the server reads."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        service: str,
        folder: Path,
        *,
        terms: CertificateTerms | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._namespace, self._service = client, namespace, service
        self._terms, self._now = terms or CertificateTerms(), now
        self._say, self._stop = say, threading.Event()
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def names(self) -> list[str]:
        name, space = self._service, self._namespace
        return [f"{name}.{space}.svc", name, f"{name}.{space}", f"{name}.{space}.svc.cluster.local"]

    def turn(self) -> None:
        """Renew what is due. Raises a fault where the API server refuses or does not answer."""
        for _ in range(ATTEMPTS):
            try:
                material = self._kept()
                self._publish(material.bundle)
            except ApiError as error:
                if error.status != 409:
                    raise
                continue  # another replica was quicker: what it wrote counts
            self._write(material)
            return
        raise TemporaryFault("the certificate's Secret changes each time that it is written")

    def start(self) -> None:
        threading.Thread(target=self._run, name="certificate", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        # Not all replicas at the same moment.
        while not self._stop.wait(CHECK_S * random.uniform(0.8, 1.2)):
            try:
                self.turn()
            except Fault as fault:
                self._say(f"the certificate is checked again later: {fault}")

    def _kept(self) -> Material:
        path = f"/api/v1/namespaces/{self._namespace}/secrets"
        name = f"{self._service}-tls"
        found = self._client.get(f"{path}/{name}")
        before = None if found is None else _read(found)
        material = renewed(before, self.names, self._now(), self._terms)
        if material == before:
            return material
        rows = (material.bundle, material.authority_key, material.certificate, material.key)
        data = {key: base64.b64encode(row).decode() for key, row in zip(FIELDS, rows, strict=True)}
        document: Document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": data,
        }
        if found is None:
            self._client.create(path, document)
        else:
            version = found["metadata"]["resourceVersion"]
            document["metadata"]["resourceVersion"] = version
            self._client.replace(f"{path}/{name}", document)
        self._say("the certificate was issued" if before is None else "the certificate was renewed")
        return material

    def _publish(self, bundle: bytes) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/configmaps"
        name, data = f"{self._service}-ca", {"ca.crt": bundle.decode()}
        found = self._client.get(f"{path}/{name}")
        if found is None:
            metadata = {"name": name, "namespace": self._namespace}
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            self._client.create(path, document)
        elif found.get("data") != data:
            self._client.patch(f"{path}/{name}", {"data": data})

    def _write(self, material: Material) -> None:
        """The key first: a server that reads in between finds no pair, and waits."""
        for path, content in ((self.key, material.key), (self.certificate, material.certificate)):
            if not path.exists() or path.read_bytes() != content:
                files.replace(path, content)


def _read(secret: Document) -> Material | None:
    """None where it holds no certificate that could be served, such as an empty one."""
    data = secret.get("data") or {}
    try:
        rows = [base64.b64decode(data[name]) for name in FIELDS]
        x509.load_pem_x509_certificates(rows[0])
        x509.load_pem_x509_certificate(rows[2])
        Signer(KeyPair(rows[1], rows[0]))
    except (KeyError, ValueError, TypeError):
        return None
    return Material(*rows)


def _due(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * 2 / 3


def _lives(certificate: x509.Certificate, now: datetime) -> bool:
    return now < certificate.not_valid_after_utc


def _names(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(found.value.get_values_for_type(x509.DNSName))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
