"""Client certificates against credentials of the entity store.

TLS has verified the chain, its dates and revocations before anything comes here; what is left is the common names:
the client's own first, then up the chain. Credentials have a name or a pattern for the client's own certificate, or for
any of the chain; the store finds them, exact names before patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, Self

from cryptography import x509
from cryptography.x509.oid import NameOID
from pydantic import Field

from tbmq.auth.lookup import principal_of
from tbmq.auth.model import SKIPPED, Answer, Denied, Granted, Login
from tbmq.auth.settings import read_settings
from tbmq.config.model import Section
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import Credentials
from tbmq.storage.interfaces import StoreError

MAX_CHAIN = 10  # certificates that are looked at


def read_common_names(chain: Iterable[bytes]) -> tuple[str, ...]:
    """One name for each certificate (DER), the client's own first, as `Login.common_names` has them.

    Empty for a certificate without a common name, or with several, of which nobody could say which one is meant. It
    keeps its place: otherwise an authority's name would be taken for the client's. ValueError if one cannot be read.
    """
    names = []
    for _, der in zip(range(MAX_CHAIN), chain, strict=False):
        found = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        value = found[0].value if len(found) == 1 else ""
        names.append(value if isinstance(value, str) else "")
    return tuple(names)


class X509Settings(Section):
    unknown_certificate: Literal["deny", "skip"] = Field(
        default="deny",
        description="A certificate without credentials here: deny refuses the client, skip asks the next provider, "
        "for clients that show a certificate and a password.",
    )


class X509Lookup(Protocol):
    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]: ...


class X509Provider:
    name = "x509"

    def __init__(self, store: X509Lookup, settings: X509Settings | None = None) -> None:
        self._store = store
        self._settings = settings or X509Settings()

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], store: X509Lookup) -> Self:
        return cls(store, read_settings(X509Settings, cls.name, values))

    async def authenticate(self, login: Login) -> Answer:
        if not login.common_names:
            return SKIPPED
        own, *above = login.common_names
        if not own:  # a pattern such as .* would match the empty name
            return self._unknown("x509: the client's certificate has no common name, or several")
        try:
            found = await self._store.find_x509([own, *filter(None, above)])
        except StoreError as error:
            return Denied(f"x509: {error}", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)
        if not found:
            return self._unknown("x509: there are no credentials for this certificate")
        credentials = found[0]
        # One pattern may stand for a fleet: its members are not each other.
        return Granted(replace(principal_of(credentials), name=f"x509:{login.common_names[0]}"))

    async def close(self) -> None:
        """Nothing is held."""

    def _unknown(self, reason: str) -> Answer:
        return SKIPPED if self._settings.unknown_certificate == "skip" else Denied(reason)
