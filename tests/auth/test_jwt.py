"""Tokens made with real keys: good ones, bad ones, and those that try to be clever."""

from __future__ import annotations

import base64
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tbmq.auth.jwt import MAX_TOKEN_BYTES, JwtProvider, JwtSettings
from tbmq.auth.model import (
    ALLOW_ALL,
    SKIPPED,
    Action,
    Answer,
    ClientType,
    Denied,
    Effect,
    Granted,
    Login,
    PatternKind,
    Rule,
)
from tbmq.auth.settings import SettingsError
from tbmq.protocol import ReasonCode
from tests.auth.support import on_loop
from tests.helpers.certificates import Authority

SECRET = "s" * 64
RSA = rsa.generate_private_key(65537, 2048)
KEYS = {
    "RS": RSA,
    "PS": RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
NOW = int(time.time())


def pem(private_key) -> str:
    return (
        private_key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def private_pem(private_key) -> str:
    return private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def claims(**others) -> dict:
    return {"sub": "s", "exp": NOW + 36_000} | others


def part(value) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def forge(header: dict, payload, key: bytes = SECRET.encode(), name: str = "sha256") -> str:
    """A token with a right HMAC, whatever it says."""
    signed = f"{part(header)}.{part(payload)}"
    return f"{signed}.{part(hmac.digest(key, signed.encode(), name))}"


def signed(payload: dict, algorithm: str = "HS256", key=SECRET, **headers) -> str:
    return jwt.encode(payload, key, algorithm, headers)


async def ask(token: str | bytes | None, login: Login | None = None, **settings) -> Answer:
    provider = JwtProvider.from_settings({"secret": SECRET} | settings)
    password = token.encode() if isinstance(token, str) else token
    try:
        return await provider.authenticate(login or Login("c", "u", password))
    finally:
        await provider.close()


async def judge(payload: dict, **settings) -> Answer:
    return await ask(signed(payload), **settings)


def is_refused(answer: Answer) -> bool:
    return (
        isinstance(answer, Denied) and answer.reason_code is ReasonCode.BAD_USERNAME_OR_PASSWORD and not answer.is_fault
    )


# --- signatures


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@on_loop
async def test_token_is_taken_when_it_is_signed_with_the_secret(algorithm):
    answer = await ask(signed(claims(), algorithm))
    assert isinstance(answer, Granted)
    assert answer.principal.name == "jwt:s"
    assert answer.principal.client_type is ClientType.DEVICE
    assert answer.principal.rules == ALLOW_ALL
    assert answer.expires_at == NOW + 36_000
    assert is_refused(await ask(signed(claims(), algorithm, "t" * 64)))


ASYMMETRIC = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
@on_loop
async def test_token_is_taken_when_it_is_signed_with_the_private_key(algorithm):
    key = KEYS.get(algorithm) or KEYS[algorithm[:2]]
    settings = {"secret": "", "public_key": pem(key)}
    token = signed(claims(), algorithm, key)
    assert isinstance(await ask(token, **settings), Granted)
    head, body, signature = token.split(".")
    changed = part(json.dumps(claims(sub="admin")).encode())
    assert is_refused(await ask(f"{head}.{changed}.{signature}", **settings))
    assert is_refused(await ask(f"{head}.{body}.", **settings))
    assert is_refused(await ask(f"{head}.{body}.{part(b'x' * 64)}", **settings))


@on_loop
async def test_key_is_taken_from_a_certificate_and_a_file(tmp_path):
    certificate = Authority(tmp_path).issue("issuer")
    key = serialization.load_pem_private_key(certificate.key_path.read_bytes(), None)
    for public_key in (certificate.path.read_text(), f"file://{certificate.path}"):
        answer = await ask(signed(claims(), "ES256", key), secret="", public_key=public_key)
        assert isinstance(answer, Granted)


@on_loop
async def test_secret_is_taken_from_a_file_and_from_base64(tmp_path):
    file = tmp_path / "secret"
    file.write_text(base64.b64encode(SECRET.encode()).decode() + "\n")
    answer = await ask(signed(claims()), secret=f"file://{file}", is_secret_base64=True)
    assert isinstance(answer, Granted)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 5, ["HS256"], "HS1", "ES256K"])
@pytest.mark.parametrize("signature", ["", "x"])
@on_loop
async def test_token_is_refused_when_its_algorithm_is_none_or_unknown(name, signature):
    token = f"{part({'alg': name, 'typ': 'JWT'})}.{part(claims())}.{signature}"
    assert is_refused(await ask(token))
    assert is_refused(await ask(token, secret="", public_key=pem(RSA)))


@pytest.mark.parametrize("key", [RSA, KEYS["ES256"], KEYS["EdDSA"]])
@on_loop
async def test_token_is_refused_when_the_public_key_was_used_as_a_secret(key):
    text = pem(key).encode()
    for secret in (text, text.strip(), text.replace(b"\n", b"")):
        token = forge({"alg": "HS256"}, claims(), secret)
        assert is_refused(await ask(token, secret="", public_key=pem(key)))


@on_loop
async def test_token_is_refused_when_its_algorithm_does_not_fit_the_key():
    assert is_refused(await ask(signed(claims(), "RS256", RSA)))
    assert is_refused(await ask(signed(claims(), "ES384", KEYS["ES384"]), secret="", public_key=pem(KEYS["ES256"])))
    assert is_refused(await ask(signed(claims(), "PS256", RSA), secret="", public_key=pem(RSA), algorithms=["RS256"]))
    assert is_refused(await ask(signed(claims(), "HS512"), algorithms=["HS256", "HS384"]))
    assert is_refused(await ask(signed(claims(), "HS512"), secret="s" * 32))  # too short for it


@on_loop
async def test_keys_in_the_token_are_not_believed():
    other = rsa.generate_private_key(65537, 2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(other.public_key()))
    for headers in ({"jwk": jwk}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}, {"kid": "../x"}):
        assert is_refused(await ask(signed(claims(), "RS256", other, **headers), secret="", public_key=pem(RSA)))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["exp"], "exp": 1},
        {"alg": "HS256", "crit": []},
        {"alg": "HS256", "b64": False, "crit": ["b64"]},
        {"alg": "HS256", "b64": True},
        {"alg": "HS256", "kid": 5},
    ],
)
@on_loop
async def test_token_is_refused_when_its_header_cannot_be_understood(header):
    assert is_refused(await ask(forge(header, claims())))


# --- form


@pytest.mark.parametrize(
    "token",
    [
        None,
        b"",
        b"password",
        b"..",
        b"a.b.c",
        b"\xff.\xff.\xff",
        b"a.b",
        signed(claims()) + ".x",
        f"{part([1])}.{part(claims())}.x",
        f"{part(b'[' * 5_000)}.{part(claims())}.x",
        f"{part(b'{' * 5_000)}.{part(claims())}.x",
        b"." * 60_000,
        b"A" * 60_000 + b".x.y",
    ],
)
@on_loop
async def test_nothing_is_said_when_it_is_no_token(token):
    assert await ask(token) is SKIPPED


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no json",
        b"[]",
        b"5",
        b'{"exp": NaN}',
        b'{"exp": Infinity}',
        b"[" * 3_000,
        b'{"a":' * 900,
        b'{"exp": ' + b"9" * 5_000 + b"}",
        b'{"exp": 1e999}',
        b"\xff",
    ],
)
@on_loop
async def test_token_is_refused_when_its_content_is_odd(payload):
    assert is_refused(await ask(forge({"alg": "HS256"}, payload)))


@on_loop
async def test_token_is_refused_when_it_is_too_long():
    assert isinstance(await judge(claims(pad="x" * 4_000)), Granted)
    token = signed(claims(pad="x" * MAX_TOKEN_BYTES))
    answer = await ask(token)
    assert is_refused(answer) and "longer" in answer.reason


@on_loop
async def test_token_is_refused_when_somebody_changed_a_bit():
    token = signed(claims())
    for place in range(0, len(token), 7):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        answer = await ask(changed)
        assert is_refused(answer) or answer is SKIPPED  # a header that is broken is no token


@on_loop
async def test_token_is_taken_from_the_user_name_when_it_is_there():
    login = Login("c", signed(claims()), b"ignored")
    assert isinstance(await ask(None, login, token_in="username"), Granted)
    assert await ask(None, Login("c", None, signed(claims()).encode()), token_in="username") is SKIPPED
    assert await ask(None, login) is SKIPPED


# --- claims


@pytest.mark.parametrize(
    "payload",
    [
        claims(exp=NOW - 1),
        claims(exp=0),
        claims(exp=-5),
        claims(exp=None),
        claims(exp="tomorrow"),
        claims(exp=str(NOW + 36_000)),
        claims(exp=True),
        claims(exp=[NOW + 36_000]),
        claims(exp=1e300),
        claims(nbf=NOW + 36_000),
        claims(nbf="now"),
        claims(sub=5),
        claims(sub={"a": 1}),
        claims(sub="s" * 2_000),
        {"sub": "s"},
    ],
)
@on_loop
async def test_token_is_refused_when_its_time_or_subject_is_wrong(payload):
    assert is_refused(await ask(forge({"alg": "HS256"}, payload)))


@on_loop
async def test_times_are_exact_and_widened_by_the_leeway():
    class Clock:
        now = 1_000.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    token = signed({"sub": "s", "nbf": 1_000, "exp": 2_000}).encode()
    for leeway_s, moments in (
        (0, [(999.9, False), (1_000, True), (1_999.9, True), (2_000, False)]),
        (30, [(969.9, False), (970, True), (2_029.9, True), (2_030, False)]),
    ):
        provider = JwtProvider(JwtSettings(secret=SECRET, leeway_s=leeway_s), clock)
        for clock.now, is_good in moments:
            answer = await provider.authenticate(Login("c", "u", token))
            assert isinstance(answer, Granted) == is_good, (leeway_s, clock.now)
            if is_good:
                assert answer.expires_at == 2_000 + leeway_s
        await provider.close()


@on_loop
async def test_token_without_end_is_taken_when_the_operator_allows_it():
    answer = await judge({"sub": "s"}, requires_expiry=False)
    assert isinstance(answer, Granted) and answer.expires_at is None
    assert is_refused(await judge(claims(exp=NOW - 1), requires_expiry=False))


@on_loop
async def test_issuer_and_audience_must_be_those_set():
    settings = {"issuer": "https://i", "audience": "mqtt"}
    assert isinstance(await judge(claims(iss="https://i", aud="mqtt"), **settings), Granted)
    assert isinstance(await judge(claims(iss="https://i", aud=["web", "mqtt"]), **settings), Granted)
    for wrong in (
        {"aud": "mqtt"},
        {"iss": "https://i"},
        {"iss": "https://i/", "aud": "mqtt"},
        {"iss": ["https://i"], "aud": "mqtt"},
        {"iss": "https://i", "aud": "mqtt2"},
        {"iss": "https://i", "aud": ["web"]},
        {"iss": "https://i", "aud": {"mqtt": 1}},
    ):
        assert is_refused(await ask(forge({"alg": "HS256"}, claims(**wrong)), **settings)), wrong


@on_loop
async def test_required_claims_must_fit_who_connects():
    settings = {"required_claims": {"sub": "${clientid}", "user": "${username}", "groups": "team-${clientid}"}}
    good = claims(sub="c", user="u", groups=["team-c", "x"])
    assert isinstance(await judge(good, **settings), Granted)
    for wrong in ({"sub": "d"}, {"user": "v"}, {"user": None}, {"groups": ["team-d"]}, {"groups": {"team-c": 1}}):
        assert is_refused(await judge(good | wrong, **settings)), wrong
    nobody = Login("c", None, signed(good).encode())
    assert is_refused(await ask(None, nobody, **settings))
    literal = Login("c", "u", signed(claims(sub="${clientid}", user="u", groups="team-c")).encode())
    assert is_refused(await ask(None, literal, **settings))


@on_loop
async def test_name_is_the_client_id_when_there_is_no_subject():
    answer = await judge({"exp": NOW + 36_000})
    assert isinstance(answer, Granted) and answer.principal.name == "jwt-client:c"


@on_loop
async def test_type_and_rules_are_taken_from_claims():
    rules = [
        {"effect": "deny", "action": "all", "filter": "secret/#"},
        {"effect": "allow", "action": "subscribe", "regex": "a/.*"},
    ]
    answer = await judge(claims(kind="application", acl=rules), client_type_claim="kind", rules_claim="acl")
    assert isinstance(answer, Granted)
    assert answer.principal.client_type is ClientType.APPLICATION
    assert answer.principal.rules == (
        Rule(Effect.DENY, Action.ALL, PatternKind.FILTER, "secret/#"),
        Rule(Effect.ALLOW, Action.SUBSCRIBE, PatternKind.REGEX, "a/.*"),
    )
    lists = {"allow": {"publish": ["a/${clientid}/#"]}, "deny": {"publish": ["a/+/x"], "subscribe": []}}
    answer = await judge(claims(rules=lists))
    assert isinstance(answer, Granted)
    assert answer.principal.rules == (  # refusals first, whatever the order in the claim
        Rule(Effect.DENY, Action.PUBLISH, PatternKind.FILTER, "a/+/x"),
        Rule(Effect.ALLOW, Action.PUBLISH, PatternKind.FILTER, "a/${clientid}/#"),
    )


@on_loop
async def test_rules_are_as_set_when_the_token_has_none():
    answer = await judge(claims(), without_rules="deny", default_client_type="APPLICATION")
    assert isinstance(answer, Granted)
    assert (answer.principal.rules, answer.principal.client_type) == ((), ClientType.APPLICATION)
    answer = await judge(claims(rules=[]))
    assert isinstance(answer, Granted) and answer.principal.rules == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"client_type": "ROOT"},
        {"client_type": 1},
        {"rules": "all"},
        {"rules": [1]},
        {"rules": [{"effect": "allow", "action": "publish"}]},
        {"rules": [{"effect": "allow", "action": "publish", "filter": "a", "regex": "a"}]},
        {"rules": [{"effect": "allow", "action": "publish", "filter": "a", "qos": 1}]},
        {"rules": [{"effect": ["allow"], "action": "publish", "filter": "a"}]},
        {"rules": [{"effect": "allow", "action": "drop", "filter": "a"}]},
        {"rules": [{"effect": "allow", "action": "all", "filter": "a/#/b"}]},
        {"rules": [{"effect": "allow", "action": "all", "regex": "("}]},
        {"rules": [{"effect": "allow", "action": "all", "regex": 5}]},
        {"rules": [1] * 300},
        {"rules": {"allow": {"all": ["a"] * 300}}},
        {"rules": {"permit": {}}},
        {"rules": {"allow": ["a"]}},
        {"rules": {"deny": {"publish": "a"}}},
        {"rules": {"deny": {"read": ["a"]}}},
        {"rules": {"deny": {"publish": [5]}}},
    ],
)
@on_loop
async def test_token_is_refused_when_its_type_or_rules_cannot_be_read(wrong):
    answer = await judge(claims(**wrong))
    assert is_refused(answer) and "longer than" not in answer.reason


@on_loop
async def test_reason_holds_nothing_of_the_token():
    token = forge({"alg": "HS256", "kid": 7}, claims(sub="hunter2"))
    answer = await ask(token)
    assert isinstance(answer, Denied) and token not in answer.reason and "hunter2" not in answer.reason


# --- settings


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "set one of secret, public_key, jwks_url and jwks_file, got none"),
        ({"secret": SECRET, "public_key": pem(RSA)}, "got secret and public_key"),
        ({"secret": "hunter2"}, "secret: must be at least 32 bytes, got 7"),
        ({"secret": pem(RSA)}, "set it as public_key"),
        ({"secret": "!" * 64, "is_secret_base64": True}, "not base64"),
        ({"secret": "file:///no/such/file"}, "jwt.secret: the file /no/such/file cannot be read"),
        ({"public_key": "no key"}, "public_key: not the PEM"),
        ({"public_key": private_pem(RSA)}, "public_key: not the PEM"),
        ({"public_key": pem(rsa.generate_private_key(65537, 1024))}, "2048 to 4096 bits, got 1024"),
        ({"public_key": pem(ec.generate_private_key(ec.SECP256K1()))}, "P-256"),
        ({"public_key": pem(RSA), "algorithms": ["HS256"]}, "HS256 cannot be used with this key"),
        ({"secret": "s" * 32, "algorithms": ["HS512"]}, "HS512 cannot be used with this key; HS256 can"),
        ({"secret": SECRET, "algorithms": ["none"]}, "jwt.algorithms: none not known"),
        ({"secret": SECRET, "required_claims": {"sub": "${client}"}}, r"\$\{client\} is not known"),
        ({"jwks_url": "ftp://x/y"}, "jwt.jwks_url: must be a URL"),
        ({"jwks_url": "https://u:p@x/y"}, "must not hold a user name"),
        ({"jwks_file": "/no/such/file"}, "there is no file"),
        ({"secret": SECRET, "leeway_s": -1}, "jwt.leeway_s: must be greater"),
        ({"secret": SECRET, "sekret": 1}, "jwt.sekret: unknown key; known are token_in"),
    ],
)
def test_settings_are_refused_with_a_reason_when_they_are_wrong(settings, reason):
    with pytest.raises(SettingsError, match=reason) as refused:
        JwtProvider.from_settings(settings)
    assert "hunter2" not in str(refused.value)


def test_secret_is_not_shown():
    settings = JwtSettings(secret=SECRET)
    assert SECRET not in repr(settings) + settings.model_dump_json()


def test_forged_tokens_are_signed_as_a_foreign_library_signs():
    assert jwt.decode(forge({"alg": "HS256"}, claims()), SECRET, ["HS256"])["sub"] == "s"
