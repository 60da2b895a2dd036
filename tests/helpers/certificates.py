"""Certificates for tests: an authority that makes them, good and bad."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    path: Path
    key_path: Path
    serial_number: int


class Authority:
    """Its own certificate is at `path`; what it makes is written into `folder`."""

    def __init__(self, folder: Path, name: str = "Test Authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, file: str = "", is_expired: bool = False) -> Certificate:
        """A certificate for `name`; as a server's it is for localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        certificate = (
            self._builder(subject, key.public_key(), is_expired)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path, key_path = self._folder / f"{file or name}.pem", self._folder / f"{file or name}.key"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Certificate(path, key_path, certificate.serial_number)

    def revoke(self, certificates: Iterable[Certificate]) -> Path:
        """Writes the list of revoked certificates."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for certificate in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(certificate.serial_number)
                .revocation_date(now - DAY)
                .build()
            )
        path = self._folder / "crl.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority, and shows this certificate."""
        context = ssl.create_default_context(cafile=str(self.path))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # ours are plain, without key identifiers
        if certificate is not None:
            context.load_cert_chain(certificate.path, certificate.key_path)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, is_expired: bool = False
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now - DAY if is_expired else now + DAY)
        )
