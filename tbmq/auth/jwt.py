"""Tokens: JSON Web Tokens, signed by somebody whom the operator trusts.

    password (or user name) ──▶ looks like a JWT? ──no──▶ SKIPPED
        ──▶ key by kid and algorithm ──▶ signature ──▶ exp, nbf, iss, aud ──▶ required claims ──▶ Granted until exp

The library verifies signatures; which key with which algorithm is decided here (see `jwks`), and so are the claims,
which need our clock and our placeholders. Tokens say nothing about where keys are: jku, jwk, x5u and x5c are not read.
Most signatures take less than 0.1 ms and are verified on the loop; those on the two large curves take five times that
and are verified by a thread, so that bad ones cannot hold the loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import jwt
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from pydantic import AfterValidator, Field, SecretStr, model_validator

from tbmq.auth.answers import UnclearAnswer, read_client_type, read_object, read_rules
from tbmq.auth.jwks import ALGORITHMS, MAX_SET_BYTES, FixedKey, Key, KeySet, KeysUnavailable, public_key, secret_key
from tbmq.auth.model import ALLOW_ALL, SKIPPED, Answer, ClientType, Denied, Granted, Login, Principal
from tbmq.auth.passwords import Hasher, HasherBusy
from tbmq.auth.settings import SettingsError, check_placeholders, fill_in, read_settings
from tbmq.auth.web import WebClient, WebError, check_url
from tbmq.config.model import Section
from tbmq.config.values import OptionalFile, Secret
from tbmq.protocol import ReasonCode

MAX_TOKEN_BYTES = 8_192
MAX_NAME_CHARACTERS = 1_024
_PLACEHOLDERS = {"clientid", "username"}
_SLOW = frozenset({"ES384", "ES512"})
_VERIFIER = jwt.PyJWS()


class BadToken(Exception):
    """The token is refused; the text says why, without anything of it."""


def _algorithms(names: frozenset[str]) -> frozenset[str]:
    if unknown := names - ALGORITHMS:
        raise ValueError(f"{', '.join(sorted(unknown))} not known; known are {', '.join(sorted(ALGORITHMS))}")
    return names


def _url(text: str) -> str:
    return check_url(text) if text else ""


def _claims(claims: dict[str, str]) -> dict[str, str]:
    for value in claims.values():
        check_placeholders(value, _PLACEHOLDERS)
    return claims


class JwtSettings(Section):
    token_in: Literal["password", "username"] = Field(default="password", description="Where clients put the token.")
    secret: Secret = Field(
        default=SecretStr(""), description="Shared secret for HS256 to HS512; file:///path reads it from a file."
    )
    is_secret_base64: bool = Field(default=False, description="The secret is written in base64.")
    public_key: Secret = Field(
        default=SecretStr(""), description="PEM of the issuer's public key or certificate, or file:///path of it."
    )
    jwks_url: Annotated[str, AfterValidator(_url)] = Field(default="", description="Where the issuer's key set is.")
    jwks_file: OptionalFile = Field(default=None, description="File with the issuer's key set, looked at again.")
    jwks_ca: OptionalFile = Field(
        default=None, description="PEM file of the authorities of jwks_url's server; those of the system unless set."
    )
    jwks_refresh_s: int = Field(default=300, ge=1, le=86_400, description="Time between two looks at the key set.")
    jwks_timeout_s: int = Field(default=5, ge=1, le=60, description="Time for one look, as a whole.")
    algorithms: Annotated[frozenset[str], AfterValidator(_algorithms)] = Field(
        default=frozenset(), description="Algorithms taken; empty: all that fit the key."
    )
    requires_expiry: bool = Field(default=True, description="Refuse tokens without exp, which would be good for ever.")
    leeway_s: int = Field(default=0, ge=0, le=300, description="By how much clocks may differ, for exp and nbf.")
    issuer: str = Field(default="", description="What iss must be; empty: not looked at.")
    audience: str = Field(default="", description="What aud must be or hold; empty: not looked at.")
    required_claims: Annotated[dict[str, str], AfterValidator(_claims)] = Field(
        default={}, description="Claims and what they must be or hold; may use ${clientid} and ${username}."
    )
    client_type_claim: str = Field(default="client_type", description="Claim with DEVICE or APPLICATION.")
    default_client_type: ClientType = Field(default=ClientType.DEVICE, description="For tokens without that claim.")
    rules_claim: str = Field(default="rules", description="Claim with what the client may do.")
    without_rules: Literal["allow", "deny"] = Field(
        default="allow", description="What clients may do whose token has no rules: everything, or nothing."
    )

    @model_validator(mode="after")
    def _there_is_one_key(self) -> Self:
        given = [name for name in ("secret", "public_key", "jwks_url", "jwks_file") if _is_set(getattr(self, name))]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise ValueError(f"set one of secret, public_key, jwks_url and jwks_file, got {named}")
        key = fixed_key(self)
        if key is not None and self.algorithms and (wrong := self.algorithms - key.algorithms):
            fit = ", ".join(sorted(key.algorithms))
            raise ValueError(f"algorithms: {', '.join(sorted(wrong))} cannot be used with this key; {fit} can")
        return self


def _is_set(value: object) -> bool:
    return bool(value.get_secret_value() if isinstance(value, SecretStr) else value)


def fixed_key(settings: JwtSettings) -> Key | None:
    """None if the keys are in a set. ValueError if the key cannot be used."""
    if secret := settings.secret.get_secret_value():
        try:
            data = base64.b64decode(secret, validate=True) if settings.is_secret_base64 else secret.encode("utf-8")
            return secret_key(data)
        except binascii.Error:
            raise ValueError("secret: is not base64") from None
        except ValueError as error:
            raise ValueError(f"secret: {error}") from None
    if text := settings.public_key.get_secret_value():
        pem = text.encode("utf-8")
        try:
            is_certificate = b"-----BEGIN CERTIFICATE-----" in pem
            return public_key(
                load_pem_x509_certificate(pem).public_key() if is_certificate else load_pem_public_key(pem)
            )
        except ValueError as error:
            raise ValueError(f"public_key: not the PEM of a public key that can be used: {error}") from None
    return None


class Keys(Protocol):
    async def find(self, kid: str | None, algorithm: str) -> Key | None: ...

    async def close(self) -> None: ...


def open_keys(settings: JwtSettings) -> Keys:
    key = fixed_key(settings)
    if key is not None:
        return FixedKey(key)
    if settings.jwks_file is not None:
        path = settings.jwks_file
        return KeySet(lambda: asyncio.to_thread(_read_bounded, path), settings.jwks_refresh_s)
    client = WebClient(settings.jwks_timeout_s, MAX_SET_BYTES, ca=settings.jwks_ca)

    async def fetch() -> bytes:
        try:
            answer = await client.request("GET", settings.jwks_url)
        except WebError as error:
            raise OSError(str(error)) from None
        if answer.status != 200:
            raise OSError(f"{settings.jwks_url} answered with status {answer.status}")
        return answer.body

    return KeySet(fetch, settings.jwks_refresh_s, close=client.close)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_SET_BYTES + 1)
    if len(data) > MAX_SET_BYTES:
        raise ValueError(f"{path} is larger than {MAX_SET_BYTES:,} bytes")
    return data


class JwtProvider:
    name = "jwt"

    def __init__(self, settings: JwtSettings, clock: Callable[[], float] = time.time, keys: Keys | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._keys = keys or open_keys(settings)
        self._verifiers = Hasher()
        self._default_rules = ALLOW_ALL if settings.without_rules == "allow" else ()

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Self:
        """SettingsError names what is wrong."""
        settings = read_settings(JwtSettings, cls.name, values)
        try:
            return cls(settings)
        except ValueError as error:
            raise SettingsError(f"jwt: {error}") from None

    async def authenticate(self, login: Login) -> Answer:
        token = self._token(login)
        header = read_header(token) if token is not None else None
        if token is None or header is None:
            return SKIPPED
        try:
            if len(token) > MAX_TOKEN_BYTES:
                raise BadToken(f"the token is longer than {MAX_TOKEN_BYTES:,} bytes")
            claims = await self._verified_claims(token, header)
            return self._judge(claims, login)
        except BadToken as error:
            return Denied(f"jwt: {error}", ReasonCode.BAD_USERNAME_OR_PASSWORD)
        except KeysUnavailable as error:
            return Denied(f"jwt: {error}", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)
        except HasherBusy as error:
            return Denied(f"jwt: {error}", ReasonCode.SERVER_BUSY, is_fault=True)

    async def close(self) -> None:
        await self._verifiers.close()
        await self._keys.close()

    def _token(self, login: Login) -> bytes | None:
        if self._settings.token_in == "password":
            return login.password
        return login.username.encode("utf-8") if login.username is not None else None

    async def _verified_claims(self, token: bytes, header: dict[str, Any]) -> dict[str, Any]:
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise BadToken("its algorithm is not taken")  # `none` and whatever else we do not know
        if self._settings.algorithms and algorithm not in self._settings.algorithms:
            raise BadToken(f"its algorithm {algorithm} is not among those set")
        if not isinstance(kid, str | None) or "crit" in header or "b64" in header:
            raise BadToken("its header has something that cannot be understood")
        key = await self._keys.find(kid, algorithm)
        if key is None:
            raise BadToken(f"there is no key for it with the algorithm {algorithm}")
        if algorithm in _SLOW:
            payload = await self._verifiers.run(lambda: _verify(token, key, algorithm))
        else:
            payload = _verify(token, key, algorithm)
        try:
            return read_object(payload)
        except UnclearAnswer as error:
            raise BadToken(f"its content {error}") from None

    def _judge(self, claims: dict[str, Any], login: Login) -> Granted:
        settings, now = self._settings, self._clock()
        expires_at, not_before = _time(claims, "exp"), _time(claims, "nbf")
        if expires_at is None and settings.requires_expiry:
            raise BadToken("it has no exp")
        if expires_at is not None and now >= expires_at + settings.leeway_s:
            raise BadToken("it has expired")
        if not_before is not None and now < not_before - settings.leeway_s:
            raise BadToken("it is not valid yet")
        if settings.issuer and claims.get("iss") != settings.issuer:
            raise BadToken("iss is another")
        if settings.audience and not _holds(claims.get("aud"), settings.audience):
            raise BadToken("aud is another")
        shown = {"clientid": login.client_id, "username": login.username}
        for claim, template in settings.required_claims.items():
            expected = fill_in(template, shown)
            if expected is None or not _holds(claims.get(claim), expected):
                raise BadToken(f"the claim {claim} is missing or another")
        subject = claims.get("sub")
        if not isinstance(subject, str | None) or len(subject or "") > MAX_NAME_CHARACTERS:
            raise BadToken("sub is not a text of bearable length")
        try:
            principal = Principal(
                f"jwt:{subject}" if subject else f"jwt-client:{login.client_id}",
                read_client_type(claims.get(settings.client_type_claim), settings.default_client_type),
                read_rules(claims.get(settings.rules_claim), self._default_rules),
            )
        except UnclearAnswer as error:
            raise BadToken(str(error)) from None
        return Granted(principal, None if expires_at is None else expires_at + settings.leeway_s)


def read_header(token: bytes) -> dict[str, Any] | None:
    """None for what is no JWT: it is not three parts, or the first is not JSON in base64."""
    first, *others = token.split(b".", 3)
    if len(others) != 2 or not first or len(first) > MAX_TOKEN_BYTES:
        return None
    try:
        return read_object(base64.urlsafe_b64decode(first + b"=" * (-len(first) % 4)))
    except (binascii.Error, UnclearAnswer):
        return None


def _verify(token: bytes, key: Key, algorithm: str) -> bytes:
    """The content of a token whose signature is right."""
    try:
        content: bytes = _VERIFIER.decode_complete(token, key.value, algorithms=[algorithm])["payload"]
    except jwt.PyJWTError as error:
        raise BadToken(f"its signature or form is wrong ({type(error).__name__})") from None
    return content


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise BadToken(f"{name} is not a time")
    return float(value)


def _holds(claim: object, expected: str) -> bool:
    """It is this text, or a list with it."""
    return claim == expected if isinstance(claim, str) else isinstance(claim, list) and expected in claim
