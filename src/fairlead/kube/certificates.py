"""Keys and certificates: an authority, and servers and clients signed by it.

`dev.cluster` makes those of a development cluster; `serving` those of the controller's HTTP server.
Elliptic keys: an authority and six certificates take milliseconds, where RSA takes a second.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead.host import files

VALID = datetime.timedelta(days=365)
_BACKDATED = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, as PEM."""

    key: bytes
    certificate: bytes


class Signer:
    """An authority's key, and what it signs."""

    def __init__(self, pair: KeyPair) -> None:
        key = serialization.load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("an authority's key must be an elliptic one")
        self.pair, self._key = pair, key
        self._name = x509.load_pem_x509_certificate(pair.certificate).subject

    @classmethod
    def create(
        cls, name: str, valid: datetime.timedelta = VALID, now: datetime.datetime | None = None
    ) -> "Signer":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = (
            _builder(subject, subject, key.public_key(), valid, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(_key_id(key), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(KeyPair(_pem(key), built.public_bytes(serialization.Encoding.PEM)))

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Who presents it is `user` of `groups` for the API server."""
        return self._sign(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(
        self,
        name: str,
        names: Sequence[str],
        addresses: Sequence[str] = (),
        valid: datetime.timedelta = VALID,
        now: datetime.datetime | None = None,
    ) -> KeyPair:
        """For a server under these names and addresses."""
        alternatives = x509.SubjectAlternativeName(
            [
                *(x509.DNSName(each) for each in names),
                *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
            ]
        )
        purpose = ExtendedKeyUsageOID.SERVER_AUTH
        return self._sign(name, (), purpose, alternatives=alternatives, valid=valid, now=now)

    def _sign(
        self,
        user: str,
        groups: Sequence[str],
        purpose: x509.ObjectIdentifier,
        *,
        alternatives: x509.SubjectAlternativeName | None = None,
        valid: datetime.timedelta = VALID,
        now: datetime.datetime | None = None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(x509.Name(subject), self._name, key.public_key(), valid, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return KeyPair(_pem(key), signed.public_bytes(serialization.Encoding.PEM))


class Authority:
    """Signs for one development cluster; read from its folder if it was made before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / "ca.crt").exists():
            made = Signer.create("fairlead-kube-dev").pair
            files.replace(folder / "ca.key", made.key)
            # Last: where the certificate is, the key is too.
            files.replace(folder / "ca.crt", made.certificate)
        key, self.certificate = (folder / "ca.key").read_bytes(), (folder / "ca.crt").read_bytes()
        signer = Signer(KeyPair(key, self.certificate))
        self.client, self.server = signer.client, signer.server

    def write(self, name: str, pair: KeyPair) -> None:
        """As NAME.key and NAME.crt in the folder."""
        files.replace(self.folder / f"{name}.key", pair.key, durable=False)
        files.replace(self.folder / f"{name}.crt", pair.certificate, durable=False)

    def write_service_account_keys(self) -> None:
        """The pair that signs and checks tokens of service accounts; made once."""
        if (self.folder / "sa.pub").exists():
            return
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        files.replace(self.folder / "sa.key", _pem(key))
        files.replace(self.folder / "sa.pub", public)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid: datetime.timedelta,
    now: datetime.datetime | None,
) -> x509.CertificateBuilder:
    now = now or datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + valid)
    )


def _key_id(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    """Tells an authority from its successor, which has the same name."""
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
