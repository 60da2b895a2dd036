"""TLS of a listener: from files to an SSLContext, with errors that say what to do.

A context is built whole, never changed: connections that are open keep the one that they began with, so certificates
can be exchanged under a running broker, and a set of files that does not fit together changes nothing.
"""

from __future__ import annotations

import _ssl
import ssl
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tbmq.config.model import TlsListener

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(Exception):
    """The files do not make a usable context; the text says which one, and why."""


def build_context(settings: TlsListener, alpn: str) -> ssl.SSLContext:
    """`alpn`: the protocol told to clients that ask for one; those that ask for others are served, too."""
    if settings.certificate is None or settings.private_key is None:
        raise TlsError("certificate and private_key are not set")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([alpn])
    for path in (settings.certificate, settings.private_key, settings.ca, settings.crl):
        if path is not None:
            _check_readable(path)
    try:
        # A password is always given: without one OpenSSL would ask for it at the terminal.
        context.load_cert_chain(
            settings.certificate, settings.private_key, settings.private_key_password.get_secret_value()
        )
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key in {settings.private_key} does not belong to {settings.certificate}") from None
        raise TlsError(
            f"{settings.certificate} must hold a certificate and {settings.private_key} its key, both PEM, with "
            f"private_key_password if the key has one: {_reason(error)}"
        ) from None
    if settings.ca is not None:
        _load_verify_locations(context, settings.ca, "certificates of authorities")
        # Without a certificate a client can still prove itself in CONNECT; one that it shows must be right.
        context.verify_mode = ssl.CERT_REQUIRED if settings.requires_client_certificate else ssl.CERT_OPTIONAL
        # A resumed session would skip the check of the certificate: what was revoked or has expired since, and the
        # names of its chain, which OpenSSL keeps only for the handshake that verified it.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    if settings.crl is not None:
        _load_verify_locations(context, settings.crl, "a list of revoked certificates")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def verified_chain(tls: ssl.SSLObject | None) -> list[bytes]:
    """The certificates of the other side, DER, its own first; empty without TLS or without a certificate. From Python
    3.13 on the standard library tells them; before, only the module beneath it does. Of a session that was resumed by
    its id, which TLS 1.2 can do, only the client's own certificate is known."""
    own = None if tls is None else tls.getpeercert(binary_form=True)
    if tls is None or own is None:
        return []
    if sys.version_info >= (3, 13):
        return tls.get_verified_chain() or [own]
    certificates = tls._sslobj.get_verified_chain() or []  # type: ignore[attr-defined]
    return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in certificates] or [own]


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from None


def _load_verify_locations(context: ssl.SSLContext, path: Path, what: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(f"{path} must hold {what} as PEM: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """`PEM lib` is all that OpenSSL says about most files."""
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
