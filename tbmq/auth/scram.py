"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding and without I/O.

    client                                        server
    n,,n=user,r=<its nonce>            ──▶  first_message: who is it?
                                       ◀──  server_first:  r=<both nonces>,s=<salt>,i=<iterations>
    c=biws,r=<both nonces>,p=<proof>   ──▶  final_message: does the proof fit?
                                       ◀──                 v=<our own proof>

    FIRST ──first_message──▶ KEYS ──server_first──▶ FINAL ──final_message──▶ OVER      any failure ──▶ OVER

The password is never sent and never stored: a client proves that it could derive the keys, and we prove that we have
them. An exchange goes forward once, so nothing can be said twice; a recorded final message fits no other exchange, as
our half of the nonce is new. A name that does not exist gets a salt that is always the same for that name and keys that
fit no proof: it cannot be told from a wrong password. Costs four HMACs, so it may run on the loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stringprep
import unicodedata
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Self

from pydantic import Field

from tbmq.auth.settings import read_settings
from tbmq.config.model import Section
from tbmq.storage.entities import ScramKeys, ScramMechanism

MECHANISMS = tuple(str(mechanism) for mechanism in ScramMechanism)
DEFAULT_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000
MAX_MESSAGE_BYTES = 4_096
MAX_USERNAME_CHARACTERS = 1_024
MAX_NONCE_CHARACTERS = 256
MIN_NONCE_CHARACTERS = 8
SALT_BYTES = 16

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # printable ASCII without the comma
_EXTENSION = re.compile(r"[A-Za-z]=[^\0,]+")


class ScramSettings(Section):
    mechanisms: frozenset[ScramMechanism] = Field(
        default=frozenset(ScramMechanism), min_length=1, description="Mechanisms that clients may use."
    )
    iterations: int = Field(
        default=DEFAULT_ITERATIONS,
        ge=DEFAULT_ITERATIONS,
        le=MAX_ITERATIONS,
        description="Rounds that derive the keys of new credentials; clients pay for them at every login.",
    )

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Self:
        return read_settings(cls, "scram", values)


class ScramError(Exception):
    """The exchange has failed. The text is for the operator; the client learns only that it may not come in."""


# --- keys


def make_keys(
    password: str, mechanism: str, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> ScramKeys:
    """What is stored instead of the password. Takes milliseconds: not for the loop. ValueError for bad arguments."""
    if mechanism not in _HASHES:
        raise ValueError(f"the mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}")
    if not DEFAULT_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"iterations must be {DEFAULT_ITERATIONS:,} to {MAX_ITERATIONS:,}, got {iterations:,}")
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    if not 8 <= len(salt) <= 64:
        raise ValueError(f"the salt must be 8 to 64 bytes, got {len(salt)}")
    prepared = saslprep(password, allow_unassigned=False).encode("utf-8")
    if not prepared:
        raise ValueError("the password is empty")
    if len(prepared) > 1_024:
        raise ValueError("the password is longer than 1024 bytes")
    name = _HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, prepared, salt, iterations)
    return ScramKeys(
        mechanism=ScramMechanism(mechanism),
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def saslprep(text: str, allow_unassigned: bool) -> str:
    """RFC 4013: one spelling for texts that look the same. Queries may hold code points that are not assigned yet."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(is_in_table(character) for is_in_table in _PROHIBITED):
            raise ValueError("holds a character that names and passwords must not have, such as a control character")
        if not allow_unassigned and stringprep.in_table_a1(character):
            raise ValueError("holds a character that Unicode 3.2 does not know")
    if any(map(stringprep.in_table_d1, prepared)):  # right to left: all of it, at both ends
        both_ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not both_ends or any(map(stringprep.in_table_d2, prepared)):
            raise ValueError("mixes characters written left to right and right to left")
    return prepared


_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


# --- the exchange


class State(Enum):
    FIRST = auto()
    KEYS = auto()
    FINAL = auto()
    OVER = auto()


class ScramExchange:
    """One attempt of one client. `disguise` makes the salts of names that do not exist: it must be the same in all
    workers and after a restart, or such names would show by their changing salt."""

    def __init__(
        self, mechanism: str, disguise: bytes, iterations: int = DEFAULT_ITERATIONS, nonce: str | None = None
    ) -> None:
        """`iterations` are those of new credentials; `nonce` is our half, random but in tests."""
        if mechanism not in _HASHES:
            raise ValueError(f"the mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}")
        self.mechanism = mechanism
        self.username = ""
        self.is_authenticated = False
        self._state = State.FIRST
        self._hash = _HASHES[mechanism]
        self._disguise = disguise
        self._iterations = iterations
        self._own_nonce = nonce or base64.b64encode(os.urandom(18)).decode("ascii")
        self._nonce = ""  # both halves
        self._header = ""  # GS2: what the client said about channel binding
        self._first_bare = ""
        self._server_first = ""
        self._keys: ScramKeys | None = None  # None for a name that does not exist
        self._stored_key = b""
        self._server_key = b""

    def first_message(self, data: bytes) -> str:
        """The name that the client claims, prepared for the look-up; ScramError if it is no first message."""
        self._leave(State.FIRST)
        text = _text(data)
        flag, _, rest = text.partition(",")
        identity, comma, bare = rest.partition(",")
        if flag.startswith("p="):
            raise ScramError("the client asks for channel binding, which is not offered")
        if flag not in ("n", "y") or not comma:
            raise ScramError("the first message does not begin with n,, or y,,")
        if identity:
            raise ScramError("the client wants to act for somebody else (authzid), which is not offered")
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise ScramError("the client demands an extension (m=)")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            raise ScramError("the first message is not n=<name>,r=<nonce>")
        client_nonce = attributes[1][2:]
        if not MIN_NONCE_CHARACTERS <= len(client_nonce) <= MAX_NONCE_CHARACTERS or not _NONCE.fullmatch(client_nonce):
            raise ScramError(f"the client's nonce is not {MIN_NONCE_CHARACTERS} to {MAX_NONCE_CHARACTERS} characters")
        _check_extensions(attributes[2:])
        self.username = _read_name(attributes[0][2:])
        self._header = f"{flag},,"
        self._first_bare = bare
        self._nonce = client_nonce + self._own_nonce
        self._state = State.KEYS
        return self.username

    def server_first(self, keys: ScramKeys | None) -> bytes:
        """The challenge. `keys` are those of `first_message`'s name and this mechanism, None if there are none."""
        self._leave(State.KEYS)
        if keys is not None and keys.mechanism != self.mechanism:
            raise ValueError(f"these are keys for {keys.mechanism}, not for {self.mechanism}")
        self._keys = keys
        if keys is not None:
            salt, iterations = keys.salt, keys.iterations
            self._stored_key, self._server_key = keys.stored_key, keys.server_key
        else:
            subject = f"{self.mechanism},{self.username}".encode()
            salt, iterations = hmac.digest(self._disguise, subject, "sha256")[:SALT_BYTES], self._iterations
            self._stored_key = self._server_key = os.urandom(hashlib.new(self._hash).digest_size)
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode('ascii')},i={iterations}"
        self._state = State.FINAL
        return self._server_first.encode("ascii")

    def final_message(self, data: bytes) -> bytes:
        """Our proof for the client, which is in; ScramError if it is not."""
        self._leave(State.FINAL)
        text = _text(data)
        without_proof, separator, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not separator or len(attributes) < 2 or attributes[0][:2] != "c=" or attributes[1][:2] != "r=":
            raise ScramError("the final message is not c=<header>,r=<nonce>,p=<proof>")
        if _base64(attributes[0][2:]) != self._header.encode("ascii"):
            raise ScramError("the final message does not repeat the header of the first")
        if not hmac.compare_digest(attributes[1][2:].encode("utf-8"), self._nonce.encode("ascii")):
            raise ScramError("the nonce is not the one of this exchange")
        _check_extensions(attributes[2:])
        proof = _base64(proof_text)
        message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(self._stored_key, message, self._hash)
        if len(proof) != len(signature):
            raise ScramError("the proof has the wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._stored_key)
        answer = hmac.digest(self._server_key, message, self._hash)
        if not is_right or self._keys is None:
            raise ScramError("wrong password" if self._keys is not None else "there are no such credentials")
        self.is_authenticated = True
        return b"v=" + base64.b64encode(answer)

    def _leave(self, state: State) -> None:
        """Until the step succeeds the exchange counts as over, so a failure needs no clean-up."""
        if self._state is not state:
            raise ScramError(f"this message is not due: the exchange is at {self._state.name}, not {state.name}")
        self._state = State.OVER


def _text(data: bytes) -> str:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ScramError(f"the message is longer than {MAX_MESSAGE_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError("the message is not UTF-8 text") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ScramError("what must be base64 is not") from None


def _read_name(text: str) -> str:
    """`=2C` is a comma and `=3D` an equals sign; no other `=` may stand in a name."""
    if re.search(r"=(?!2C|3D)", text):
        raise ScramError("the name holds an = that is neither =2C nor =3D")
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not 1 <= len(name) <= MAX_USERNAME_CHARACTERS:
        raise ScramError(f"the name is not 1 to {MAX_USERNAME_CHARACTERS} characters")
    try:
        prepared = saslprep(name, allow_unassigned=True)
    except ValueError as error:
        raise ScramError(f"the name {error}") from None
    if not 1 <= len(prepared) <= MAX_USERNAME_CHARACTERS:
        raise ScramError(f"the name is not 1 to {MAX_USERNAME_CHARACTERS} characters")
    return prepared


def _check_extensions(attributes: list[str]) -> None:
    """Optional ones are ignored, as the RFC asks; one that must be understood is refused, and so is what is none."""
    for attribute in attributes:
        if not _EXTENSION.fullmatch(attribute) or attribute.startswith("m="):
            raise ScramError("the message holds an extension that is demanded (m=), or something else than extensions")
