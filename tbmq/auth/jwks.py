"""Keys that verify tokens, each bound to the algorithms of its kind.

    FixedKey     a secret or a public key from the settings
    KeySet       JWKS from a URL or file ──▶ [Key(kid, algorithms), ...]
                   every `refresh_s`, after a failure sooner ──┐
                   a kid that is not there, seldom ────────────┼──▶ fetch ──▶ good: replaces the set
                                                               └───────────▶ bad:  the last good set stays

Which algorithms a key may be used with follows from the key, never from the token: a public key can not be taken for
an HMAC secret, and `none` belongs to no key. One fetch runs at a time and all who need it wait for the same one;
strangers with made-up kids cause at most one in `REFETCH_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from tbmq.auth.answers import UnclearAnswer, read_object

log = logging.getLogger(__name__)

MAX_KEYS = 100
MAX_SET_BYTES = 262_144
REFETCH_S = 10.0  # between two fetches that a token's kid or a failure has caused
MIN_RSA_BITS, MAX_RSA_BITS = 2_048, 4_096  # more would hold the loop for too long

HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518: a secret is as long as the hash, or longer
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_FIELDS = ("kid", "alg", "crv", "n", "e", "x", "y")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = frozenset({*HMAC_BYTES, *_RSA, *_CURVES.values(), "EdDSA"})


class KeysUnavailable(Exception):
    """There is no key because none could be fetched."""


@dataclass(frozen=True, slots=True)
class Key:
    value: Any  # bytes of a secret, or a public key of `cryptography`
    algorithms: frozenset[str]
    kid: str | None = None


def secret_key(secret: bytes) -> Key:
    """ValueError if it is too short, or is no secret at all."""
    if b"-----BEGIN " in secret or secret.startswith(b"ssh-"):
        raise ValueError("this is a key or certificate, which everybody may know; set it as public_key")
    algorithms = frozenset(name for name, length in HMAC_BYTES.items() if len(secret) >= length)
    if not algorithms:
        raise ValueError(f"must be at least {min(HMAC_BYTES.values())} bytes, got {len(secret)}")
    return Key(secret, algorithms)


def public_key(value: object, kid: str | None = None) -> Key:
    """ValueError for a private key, and one of a kind or size that we do not take."""
    match value:
        case rsa.RSAPublicKey() if MIN_RSA_BITS <= value.key_size <= MAX_RSA_BITS:
            return Key(value, _RSA, kid)
        case rsa.RSAPublicKey():
            raise ValueError(f"an RSA key must have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, got {value.key_size}")
        case ec.EllipticCurvePublicKey() if value.curve.name in _CURVES:
            return Key(value, frozenset({_CURVES[value.curve.name]}), kid)
        case ed25519.Ed25519PublicKey() | ed448.Ed448PublicKey():
            return Key(value, frozenset({"EdDSA"}), kid)
    raise ValueError("must be a public key: RSA, EC on P-256, P-384 or P-521, Ed25519 or Ed448")


def read_set(data: bytes) -> list[Key]:
    """The usable keys of a JWKS; others are left out. ValueError if it is none, or nothing of it can be used."""
    try:
        items = read_object(data).get("keys")
    except UnclearAnswer as error:
        raise ValueError(f"the key set {error}") from None
    if not isinstance(items, list) or len(items) > MAX_KEYS:
        raise ValueError(f"the key set has no list of at most {MAX_KEYS} keys")
    keys = [key for key in map(_read_key, items) if key is not None]
    if not keys:
        raise ValueError("the key set has no key that can be used")
    return keys


def _read_key(item: object) -> Key | None:
    """None for keys of other uses and kinds, secrets and private keys: a set that everybody may read has none."""
    if not isinstance(item, dict) or item.get("use", "sig") != "sig" or item.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    kid, algorithm = item.get("kid"), item.get("alg")
    if not all(isinstance(item.get(field), str | None) for field in _FIELDS):
        return None
    try:
        # The algorithm named here only picks the reader of this key type; what the key may do is found out below.
        key = public_key(jwt.PyJWK(item, {"RSA": "RS256", "EC": _ec_name(item), "OKP": "EdDSA"}[item["kty"]]).key, kid)
    except (ValueError, jwt.PyJWTError):
        return None
    if algorithm is None:
        return key
    return Key(key.value, frozenset({algorithm}), kid) if algorithm in key.algorithms else None


def _ec_name(item: dict[str, Any]) -> str:
    return {"P-384": "ES384", "P-521": "ES512"}.get(str(item.get("crv")), "ES256")


class FixedKey:
    """One key; a token's kid says nothing here."""

    def __init__(self, key: Key) -> None:
        self._key = key

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        return self._key if algorithm in self._key.algorithms else None

    async def close(self) -> None:
        """Nothing is held."""


class KeySet:
    """`fetch` returns the bytes of a JWKS and raises OSError or ValueError with a reason; it is bounded in time."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        refresh_s: float,
        refetch_s: float = REFETCH_S,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._refetch_s = refetch_s
        self._close = close
        self._keys: list[Key] = []
        self._fetching: asyncio.Task[None] | None = None
        self._next: asyncio.TimerHandle | None = None
        self._may_fetch_at = 0.0  # loop time
        self._problem = "not fetched yet"

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key of this kid; without a kid the only one that fits. KeysUnavailable if there is no set at all."""
        if not self._keys or (kid is not None and all(key.kid != kid for key in self._keys)):
            await self._ask_again()
        if not self._keys:
            raise KeysUnavailable(f"there are no keys: {self._problem}")
        fitting = [key for key in self._keys if algorithm in key.algorithms and (kid is None or key.kid == kid)]
        return fitting[0] if len(fitting) == 1 else None

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        if self._close is not None:
            await self._close()

    async def _ask_again(self) -> None:
        """Waits for the fetch that runs, or for one of its own if the last is some time ago."""
        if self._fetching is None and asyncio.get_running_loop().time() >= self._may_fetch_at:
            self._begin()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    def _begin(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._refresh_s
        try:
            self._keys = read_set(await self._fetch())
        except Exception as error:  # whatever it is: the next look must come
            self._problem = str(error)
            pause = min(self._refresh_s, self._refetch_s)
            log.warning("keys for tokens cannot be fetched, %s stay in use: %s", len(self._keys) or "none", error)
        finally:
            self._fetching = None
            self._may_fetch_at = loop.time() + self._refetch_s
        if self._next is not None:
            self._next.cancel()
        self._next = loop.call_later(pause, self._begin)
