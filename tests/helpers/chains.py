"""An authority between the root and the clients."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.helpers.certificates import Authority, Certificate


class Intermediate(Authority):
    """Its certificate is signed by `parent`; clients send it behind their own."""

    def __init__(self, folder: Path, parent: Authority, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            parent._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(parent._key, hashes.SHA256())
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, file: str = "", is_expired: bool = False) -> Certificate:
        certificate = super().issue(name, file, is_expired)
        with certificate.path.open("ab") as chain:
            chain.write(self.path.read_bytes())
        return certificate
