"""SCRAM against a client that we did not write, the examples of the RFCs, and what must be refused."""

from __future__ import annotations

import base64

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from tbmq.auth.scram import (
    MAX_MESSAGE_BYTES,
    MECHANISMS,
    ScramError,
    ScramExchange,
    ScramSettings,
    make_keys,
    saslprep,
)
from tbmq.auth.settings import SettingsError

DISGUISE = b"the same in all workers"
SHA_256 = "SCRAM-SHA-256"
KEYS = {mechanism: make_keys("pencil", mechanism) for mechanism in MECHANISMS}
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"


def exchange(mechanism: str = SHA_256, **named) -> ScramExchange:
    return ScramExchange(mechanism, DISGUISE, **named)


def login(name: str, password: str, keys, mechanism: str = SHA_256) -> ScramExchange:
    """A whole exchange with scramp as the client; raises what either side raises."""
    client = scramp.ScramClient([mechanism], name, password)
    server = exchange(mechanism)
    assert server.first_message(client.get_client_first().encode()) == name
    client.set_server_first(server.server_first(keys).decode())
    client.set_server_final(server.final_message(client.get_client_final().encode()).decode())
    return server


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["user", "a,b=c", "Жук", "=2C"])
@pytest.mark.parametrize("password", ["pencil", "p=a,ss", "пароль"])
def test_foreign_client_comes_in_when_the_password_is_right(mechanism, name, password):
    assert login(name, password, make_keys(password, mechanism), mechanism).is_authenticated


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_foreign_client_is_refused_when_the_password_is_wrong(mechanism):
    with pytest.raises(ScramError, match="wrong password"):
        login("user", "pen", KEYS[mechanism], mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_foreign_client_is_refused_when_nobody_has_the_name(mechanism):
    with pytest.raises(ScramError, match="no such credentials"):
        login("user", "pencil", None, mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_keys_are_those_of_a_foreign_implementation(mechanism):
    salt, stored, server, iterations = scramp.ScramMechanism(mechanism).make_auth_info(
        "pencil", iteration_count=5_000, salt=b"0123456789abcdef"
    )
    keys = make_keys("pencil", mechanism, 5_000, b"0123456789abcdef")
    assert (keys.salt, keys.stored_key, keys.server_key, keys.iterations) == (salt, stored, server, iterations)


def rfc_exchange() -> ScramExchange:
    """Up to the challenge, as in section 3 of RFC 7677."""
    server = exchange(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.first_message(FIRST) == "user"
    keys = make_keys("pencil", SHA_256, 4_096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    challenge = server.server_first(keys)
    assert challenge == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    return server


RFC_NONCE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_PROOF = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
RFC_FINAL = b"c=biws," + RFC_NONCE + b"," + RFC_PROOF


def test_messages_are_those_of_the_rfc():
    server = rfc_exchange()
    assert server.final_message(RFC_FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.is_authenticated


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b",",
        b"n",
        b"n,",
        b"n,,",
        b"n,,,",
        b"n,,n=user",
        b"n,,r=rOprNGfwEbeRWgbNEkqO,n=user",
        b"n,,n=,r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=user,r=",
        b"n,,n=user,r=short",
        b"n,,n=user,r=" + b"x" * 257,
        b"n,,n=user,r=with a space",
        b"n,,n=user,r=rOprNGfwEbeR\x00gbNEkqO",
        b"n,,n=us=er,r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=us=2cer,r=rOprNGfwEbeRWgbNEkqO",  # in capitals only
        b"n,,n=user\x00,r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=us\xffer,r=rOprNGfwEbeRWgbNEkqO",
        "n,,n=\u00ad,r=rOprNGfwEbeRWgbNEkqO".encode(),  # nothing is left when prepared
        "n,,n=\u0627a,r=rOprNGfwEbeRWgbNEkqO".encode(),  # both directions
        b"n,,m=ext,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,m=ext",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,xx",
        b"n,a=admin,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"p=tls-unique,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"x,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"N,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=" + b"u" * MAX_MESSAGE_BYTES + b",r=rOprNGfwEbeRWgbNEkqO",
        b"n,,n=" + b"u" * 1_025 + b",r=rOprNGfwEbeRWgbNEkqO",
    ],
)
def test_first_message_is_refused_when_it_is_wrong(message):
    server = exchange()
    with pytest.raises(ScramError):
        server.first_message(message)
    with pytest.raises(ScramError, match="OVER"):
        server.first_message(FIRST)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        RFC_PROOF,
        b"c=biws," + RFC_NONCE,
        b"c=biws," + RFC_PROOF,
        RFC_NONCE + b"," + RFC_PROOF,
        RFC_NONCE + b",c=biws," + RFC_PROOF,
        b"c=eSws," + RFC_NONCE + b"," + RFC_PROOF,  # y,, where it was n,,
        b"c=," + RFC_NONCE + b"," + RFC_PROOF,
        b"c=biw," + RFC_NONCE + b"," + RFC_PROOF,
        b"c=biws," + RFC_NONCE + b"x," + RFC_PROOF,
        b"c=biws," + RFC_NONCE[:-1] + b"," + RFC_PROOF,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO," + RFC_PROOF,
        b"c=biws,r=," + RFC_PROOF,
        b"c=biws," + RFC_NONCE + b",p=",
        b"c=biws," + RFC_NONCE + b",p=AAAA",
        b"c=biws," + RFC_NONCE + b",p=!!!!",
        b"c=biws," + RFC_NONCE + b",p=" + base64.b64encode(bytes(32)),
        b"c=biws," + RFC_NONCE + b",p=" + base64.b64encode(bytes(64)),
        b"c=biws," + RFC_NONCE + b",m=ext," + RFC_PROOF,
        b"c=biws," + RFC_NONCE + b",x=1," + RFC_PROOF,  # allowed as such, but not what was proved
        RFC_FINAL + b",x=1",
        RFC_FINAL + b"," + b"x" * MAX_MESSAGE_BYTES,
        b"\xff" + RFC_FINAL,
    ],
)
def test_final_message_is_refused_when_it_is_wrong(message):
    server = rfc_exchange()
    with pytest.raises(ScramError):
        server.final_message(message)
    assert not server.is_authenticated
    with pytest.raises(ScramError, match="OVER"):  # no second guess
        server.final_message(RFC_FINAL)


def test_recorded_final_message_is_refused_when_it_is_replayed():
    client = scramp.ScramClient([SHA_256], "user", "pencil", c_nonce="rOprNGfwEbeRWgbNEkqO")
    opening = client.get_client_first().encode()
    first = exchange()
    first.first_message(opening)
    client.set_server_first(first.server_first(KEYS[SHA_256]).decode())
    recorded = client.get_client_final().encode()
    first.final_message(recorded)
    with pytest.raises(ScramError, match="OVER"):
        first.final_message(recorded)
    second = exchange()
    second.first_message(opening)
    second.server_first(KEYS[SHA_256])
    with pytest.raises(ScramError, match="nonce"):
        second.final_message(recorded)


def test_step_is_refused_when_it_is_not_due():
    with pytest.raises(ScramError, match="FIRST"):
        exchange().server_first(None)
    with pytest.raises(ScramError, match="FIRST"):
        exchange().final_message(RFC_FINAL)
    server = exchange()
    server.first_message(FIRST)
    with pytest.raises(ScramError, match="KEYS"):
        server.final_message(RFC_FINAL)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_challenge_looks_real_and_stays_the_same_when_nobody_has_the_name(mechanism):
    def challenge(name: str, disguise: bytes = DISGUISE) -> dict[str, str]:
        server = ScramExchange(mechanism, disguise)
        server.first_message(f"n,,n={name},r=rOprNGfwEbeRWgbNEkqO".encode())
        return dict(part.split("=", 1) for part in server.server_first(None).decode().split(","))

    real = exchange(mechanism)
    real.first_message(FIRST)
    real_parts = dict(part.split("=", 1) for part in real.server_first(KEYS[mechanism]).decode().split(","))
    fake = challenge("nobody")
    assert fake["s"] == challenge("nobody")["s"]
    assert fake["s"] != challenge("somebody")["s"]
    assert fake["s"] != challenge("nobody", b"another installation")["s"]
    assert fake["r"] != challenge("nobody")["r"]
    assert {key: len(value) for key, value in fake.items()} == {key: len(value) for key, value in real_parts.items()}
    assert fake["i"] == real_parts["i"]


def test_unknown_extensions_are_ignored_when_they_are_optional():
    assert exchange().first_message(FIRST + b",x=1,y=2") == "user"
    assert exchange().first_message(b"y,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"


def test_keys_of_the_other_mechanism_are_refused():
    server = exchange()
    server.first_message(FIRST)
    with pytest.raises(ValueError, match="SCRAM-SHA-512"):
        server.server_first(KEYS["SCRAM-SHA-512"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("pencil", "SCRAM-SHA-1"), "mechanism"),
        (("pencil", SHA_256, 4_095), "iterations"),
        (("pencil", SHA_256, 10_000_000), "iterations"),
        (("pencil", SHA_256, 4_096, b"salt"), "salt"),
        (("", SHA_256), "empty"),
        (("\u00ad", SHA_256), "empty"),
        (("x" * 1_025, SHA_256), "longer"),
        (("a\x07", SHA_256), "control"),
        (("\u0221", SHA_256), "does not know"),
    ],
)
def test_keys_are_not_made_when_an_argument_is_wrong(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        make_keys(*arguments)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_text_is_prepared_as_the_rfc_shows(text, prepared):
    assert saslprep(text, allow_unassigned=False) == prepared


def test_secrets_are_not_in_the_text_of_keys():
    assert KEYS[SHA_256].stored_key.hex() not in repr(KEYS[SHA_256])
    assert "stored_key" not in repr(KEYS[SHA_256])


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_nothing_but_scram_errors_comes_out_when_the_input_is_random(first, final):
    server = exchange()
    try:
        server.first_message(first)
        server.server_first(None)
        server.final_message(final)
    except ScramError:
        pass
    assert not server.is_authenticated


@given(st.text(max_size=50), st.text(max_size=50))
def test_nothing_but_scram_errors_comes_out_when_names_are_random(name, rest):
    server = exchange()
    try:
        server.first_message(f"n,,n={name},r=rOprNGfwEbeRWgbNEkqO".encode())
        server.server_first(KEYS[SHA_256])
        server.final_message(f"c=biws,r={rest},p={rest}".encode())
    except ScramError:
        pass
    assert not server.is_authenticated


def test_settings_are_refused_by_name_when_they_are_wrong():
    assert ScramSettings.from_settings({"mechanisms": [SHA_256]}).mechanisms == {SHA_256}
    for settings, name in (({"iterations": 1}, "iterations"), ({"mechanisms": ["PLAIN"]}, "mechanisms")):
        with pytest.raises(SettingsError, match=rf"^scram\.{name}"):
            ScramSettings.from_settings(settings)
