"""Key sets: from a real server and from a file, rotated, damaged, and out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from urllib.parse import urlsplit

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tbmq.auth.jwks import MAX_SET_BYTES, KeySet, KeysUnavailable, read_set
from tbmq.auth.jwt import JwtProvider
from tbmq.auth.model import Answer, Denied, Granted, Login
from tbmq.auth.settings import SettingsError
from tbmq.protocol import ReasonCode
from tests.auth.support import on_loop
from tests.helpers.certificates import Authority
from tests.helpers.http_server import http_server

READERS = {"RS": jwt.algorithms.RSAAlgorithm, "ES": jwt.algorithms.ECAlgorithm, "Ed": jwt.algorithms.OKPAlgorithm}


class Issuer:
    """One key, and tokens that are signed with it."""

    def __init__(self, kid: str | None, algorithm: str = "ES256") -> None:
        self.kid, self.algorithm = kid, algorithm
        match algorithm:
            case "RS256":
                self.key = rsa.generate_private_key(65537, 2048)
            case "EdDSA":
                self.key = ed25519.Ed25519PrivateKey.generate()
            case _:
                curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
                self.key = ec.generate_private_key(curves[algorithm])

    def jwk(self, **others) -> dict:
        fields = json.loads(READERS[self.algorithm[:2]].to_jwk(self.key.public_key()))
        fields.pop("key_ops", None)
        return fields | ({"kid": self.kid} if self.kid else {}) | others

    def token(self, **headers) -> bytes:
        named = {"kid": self.kid} if self.kid else {}
        return jwt.encode(
            {"sub": "s", "exp": int(time.time()) + 60}, self.key, self.algorithm, named | headers
        ).encode()


def key_set(*keys: dict) -> bytes:
    return json.dumps({"keys": keys}).encode()


A, B = Issuer("a"), Issuer("b", "RS256")


@contextlib.asynccontextmanager
async def provider_of(**settings):
    provider = JwtProvider.from_settings(settings)
    try:
        yield provider
    finally:
        await provider.close()


async def ask(provider: JwtProvider, token: bytes) -> Answer:
    return await provider.authenticate(Login("c", "u", token))


def is_refused(answer: Answer) -> bool:
    return isinstance(answer, Denied) and not answer.is_fault


def is_fault(answer: Answer) -> bool:
    return isinstance(answer, Denied) and answer.is_fault and answer.reason_code is ReasonCode.SERVER_UNAVAILABLE


# --- what a set may hold


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_key_is_bound_to_its_algorithms_when_it_is_read(algorithm):
    issuer = Issuer("k", algorithm)
    [key] = read_set(key_set(issuer.jwk()))
    assert key.kid == "k" and algorithm in key.algorithms and not any(name.startswith("HS") for name in key.algorithms)
    [key] = read_set(key_set(issuer.jwk(alg=algorithm, use="sig")))
    assert key.algorithms == {algorithm}


@pytest.mark.parametrize(
    "unusable",
    [
        None,
        5,
        {},
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U", "kid": "a"},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "RSA", "n": "", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
        A.jwk(use="enc"),
        A.jwk(alg="HS256"),
        A.jwk(alg="RS256"),
        A.jwk(kid=5),
        json.loads(jwt.algorithms.ECAlgorithm.to_jwk(A.key)),  # private
    ],
)
def test_key_is_left_out_when_it_cannot_be_used(unusable):
    assert [key.kid for key in read_set(key_set(unusable, B.jwk()))] == ["b"]
    with pytest.raises(ValueError, match="no key that can be used"):
        read_set(key_set(unusable))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, key_set(*[A.jwk()] * 101)]
)
def test_set_is_refused_when_it_is_none(data):
    with pytest.raises(ValueError, match="the key set"):
        read_set(data)


# --- from a server


@on_loop
async def test_key_is_chosen_by_kid_when_there_are_several():
    async with http_server() as server, provider_of(jwks_url=f"{server.url}/keys") as provider:
        server.body = key_set(A.jwk(), B.jwk())
        assert isinstance(await ask(provider, A.token()), Granted)
        assert isinstance(await ask(provider, B.token()), Granted)
        assert is_refused(await ask(provider, A.token(kid="b")))  # another key, and another algorithm
        assert is_refused(await ask(provider, Issuer("a").token()))
        assert len(server.asked) == 1 and server.asked[0].path == "/keys"


@on_loop
async def test_token_without_kid_is_taken_when_one_key_fits():
    one, other = Issuer(None), Issuer(None)
    async with http_server() as server:
        server.body = key_set(one.jwk(), B.jwk())
        async with provider_of(jwks_url=server.url) as provider:
            assert isinstance(await ask(provider, one.token()), Granted)
        server.body = key_set(one.jwk(), other.jwk())
        async with provider_of(jwks_url=server.url) as provider:
            assert is_refused(await ask(provider, one.token()))


@on_loop
async def test_new_key_is_fetched_when_a_token_names_it_but_not_for_every_stranger():
    asked = 0
    body = key_set(A.jwk())

    async def fetch() -> bytes:
        nonlocal asked
        asked += 1
        return body

    keys = KeySet(fetch, refresh_s=3_600, refetch_s=0.2)
    assert (await keys.find("a", "ES256")) is not None
    body = key_set(B.jwk())
    assert await keys.find("b", "RS256") is None  # too soon after the last
    loop = asyncio.get_running_loop()
    due = loop.time() + 0.2
    while loop.time() < due:
        assert await keys.find("made up", "RS256") is None
        await asyncio.sleep(0.01)
    found = await asyncio.gather(*(keys.find("b", "RS256") for _ in range(50)))
    assert all(key is not None for key in found)
    assert asked == 2
    assert await keys.find("a", "ES256") is None  # withdrawn
    assert asked == 2
    await keys.close()


@on_loop
async def test_withdrawn_key_is_refused_when_the_set_was_looked_at_again():
    async with http_server() as server, provider_of(jwks_url=server.url, jwks_refresh_s=1) as provider:
        server.body = key_set(A.jwk(), B.jwk())
        assert isinstance(await ask(provider, A.token()), Granted)
        server.body = key_set(B.jwk())
        while len(server.asked) < 2:
            await asyncio.sleep(0.01)
        while not is_refused(await ask(provider, A.token())):
            await asyncio.sleep(0.01)
        assert isinstance(await ask(provider, B.token()), Granted)


@on_loop
async def test_last_good_set_stays_when_the_server_is_down_or_talks_nonsense():
    async with http_server() as server:
        server.body = key_set(A.jwk())
        provider = JwtProvider.from_settings({"jwks_url": server.url, "jwks_refresh_s": 1})
        assert isinstance(await ask(provider, A.token()), Granted)
        server.status, server.body = 500, b"oops"
        while len(server.asked) < 2:
            await asyncio.sleep(0.01)
        assert isinstance(await ask(provider, A.token()), Granted)
    assert isinstance(await ask(provider, A.token()), Granted)
    assert is_refused(await ask(provider, Issuer("z").token()))
    await provider.close()


@on_loop
async def test_client_is_refused_as_a_fault_until_the_server_of_keys_is_up(caplog):
    async with http_server() as server:
        port = urlsplit(server.url).port
    url = f"http://127.0.0.1:{port}/"
    async with provider_of(jwks_url=url, jwks_refresh_s=1) as provider:
        assert is_fault(await ask(provider, A.token()))
        assert "cannot be fetched, none stay in use" in caplog.text
        async with http_server(port) as server:
            server.body = key_set(A.jwk())
            while is_fault(await ask(provider, A.token())):
                await asyncio.sleep(0.02)
            assert isinstance(await ask(provider, A.token()), Granted)


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (404, key_set(A.jwk()), {}),
        (302, b"", {"Location": "/elsewhere"}),
        (200, b"", {}),
        (200, b"<html>", {}),
        (200, b" " * (MAX_SET_BYTES + 1), {}),
    ],
)
@on_loop
async def test_client_is_refused_as_a_fault_when_the_answer_is_no_key_set(status, body, headers):
    async with http_server() as server, provider_of(jwks_url=server.url) as provider:
        server.status, server.body, server.headers = status, body, headers
        assert is_fault(await ask(provider, A.token()))
        assert len(server.asked) == 1


@on_loop
async def test_client_is_refused_as_a_fault_when_the_server_of_keys_hangs():
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3_600)
        raise AssertionError

    async with http_server() as server, provider_of(jwks_url=server.url, jwks_timeout_s=1) as provider:
        server.handler = hang
        began = time.monotonic()
        answers = await asyncio.gather(*(ask(provider, A.token()) for _ in range(20)))
        assert all(is_fault(answer) for answer in answers)
        assert time.monotonic() - began < 10
        assert len(server.asked) == 1


@on_loop
async def test_certificate_of_the_server_of_keys_must_be_known(tmp_path):
    authority = Authority(tmp_path)
    certificate = authority.issue("server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.path, certificate.key_path)
    async with http_server(tls=tls) as server:
        server.body = key_set(A.jwk())
        async with provider_of(jwks_url=server.url, jwks_ca=str(authority.path)) as provider:
            assert isinstance(await ask(provider, A.token()), Granted)
        async with provider_of(jwks_url=server.url) as provider:
            answer = await ask(provider, A.token())
            assert is_fault(answer) and "certificate" in answer.reason


@on_loop
async def test_next_look_comes_when_a_fetch_fails_in_an_unexpected_way():
    asked = 0

    async def fetch() -> bytes:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ZeroDivisionError
        return key_set(A.jwk())

    keys = KeySet(fetch, refresh_s=0.05, refetch_s=0.05)
    with pytest.raises(KeysUnavailable):
        await keys.find("a", "ES256")
    while asked < 2:
        await asyncio.sleep(0.01)
    assert await keys.find("a", "ES256") is not None
    await keys.close()


# --- from a file


@on_loop
async def test_file_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(A.jwk()))
    async with provider_of(jwks_file=str(path), jwks_refresh_s=1) as provider:
        assert isinstance(await ask(provider, A.token()), Granted)
        path.write_bytes(b"damaged")
        assert isinstance(await ask(provider, A.token()), Granted)
        path.write_bytes(key_set(B.jwk()))
        while not isinstance(await ask(provider, B.token()), Granted):
            await asyncio.sleep(0.02)
        assert is_refused(await ask(provider, A.token()))


def test_authorities_are_refused_when_their_file_is_damaged(tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    with pytest.raises(SettingsError, match="^jwt: the certificates cannot be used"):
        JwtProvider.from_settings({"jwks_url": "https://127.0.0.1/", "jwks_ca": str(path)})
