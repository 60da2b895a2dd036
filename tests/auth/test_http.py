"""Logins judged by a real server on loopback: what it is asked, what its answers mean, and all the ways to fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
import zlib
from urllib.parse import parse_qsl

import pytest
from aiohttp import web

from tbmq.auth.http import HttpProvider, HttpSettings
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
from tests.helpers.http_server import http_server

LOGIN = Login("c", "u", b"hunter2", "192.0.2.1:5000", ("device", "CA"))
NASTY = 'x", "admin": true}&a=b%00\r\nX: y\\${password}/../é'


@contextlib.asynccontextmanager
async def asking(**settings):
    """A server that allows, and a provider that asks it."""
    async with http_server() as server:
        server.answer({"result": "allow"})
        provider = HttpProvider.from_settings({"url": f"{server.url}/login"} | settings)
        try:
            yield server, provider
        finally:
            await provider.close()


def is_fault(answer: Answer, code: ReasonCode = ReasonCode.SERVER_UNAVAILABLE) -> bool:
    return (
        isinstance(answer, Denied) and answer.is_fault and answer.reason_code is code and "hunter2" not in answer.reason
    )


# --- what is asked


@on_loop
async def test_server_gets_what_the_client_showed_as_json():
    async with asking(headers={"Authorization": "Bearer t"}) as (server, provider):
        assert isinstance(await provider.authenticate(LOGIN), Granted)
        [asked] = server.asked
        assert (asked.method, asked.path) == ("POST", "/login")
        assert asked.headers["Authorization"] == "Bearer t"
        assert asked.headers["Content-Type"] == "application/json"
        assert asked.json() == {
            "client_id": "c",
            "username": "u",
            "password": "hunter2",
            "common_name": "device",
            "peer": "192.0.2.1:5000",
        }


@on_loop
async def test_what_the_client_did_not_show_is_null():
    async with asking() as (server, provider):
        await provider.authenticate(Login("c"))
        assert server.asked[0].json() == {
            "client_id": "c",
            "username": None,
            "password": None,
            "common_name": None,
            "peer": "",
        }


@on_loop
async def test_template_is_filled_in_wherever_it_has_text():
    body = {"who": {"id": "mqtt:${clientid}", "names": ["${username}", "${cn}"]}, "version": 2, "fixed": "a$b{c}"}
    async with asking(body=body, method="PUT") as (server, provider):
        await provider.authenticate(LOGIN)
        assert server.asked[0].method == "PUT"
        assert server.asked[0].json() == {
            "who": {"id": "mqtt:c", "names": ["u", "device"]},
            "version": 2,
            "fixed": "a$b{c}",
        }


@pytest.mark.parametrize("send_as", ["json", "form", "query"])
@on_loop
async def test_client_cannot_leave_its_field_when_its_name_is_nasty(send_as):
    body = {"client_id": "${clientid}", "username": "${username}"}
    async with asking(send_as=send_as, body=body) as (server, provider):
        assert isinstance(await provider.authenticate(Login(NASTY, NASTY, b"p")), Granted)
        [asked] = server.asked
        values = {
            "json": lambda: asked.json(),
            "form": lambda: dict(parse_qsl(asked.body.decode(), strict_parsing=True)),
            "query": lambda: asked.query,
        }[send_as]()
        assert values == {"client_id": NASTY, "username": NASTY}
        assert asked.path == "/login" and "X" not in asked.headers


@on_loop
async def test_fields_without_value_are_left_out_when_sent_as_a_form_or_query():
    body = {"client_id": "${clientid}", "username": "${username}"}
    async with asking(send_as="form", body=body) as (server, provider):
        await provider.authenticate(Login("c"))
        assert server.asked[0].body == b"client_id=c"
        assert server.asked[0].headers["Content-Type"] == "application/x-www-form-urlencoded"
    async with http_server() as server:
        server.answer({"result": "deny"})
        settings = {"url": f"{server.url}/login?key=1", "method": "GET", "send_as": "query", "body": body}
        provider = HttpProvider.from_settings(settings)
        await provider.authenticate(Login("c"))
        assert (server.asked[0].method, server.asked[0].query) == ("GET", {"key": "1", "client_id": "c"})
        await provider.close()


@on_loop
async def test_client_is_refused_unasked_when_its_password_is_no_text():
    async with asking() as (server, provider):
        answer = await provider.authenticate(Login("c", "u", b"\xff\xfe"))
        assert isinstance(answer, Denied) and answer.reason_code is ReasonCode.BAD_USERNAME_OR_PASSWORD
        assert server.asked == []


# --- what is answered


@on_loop
async def test_client_is_let_in_with_type_and_rules_when_the_server_says_so():
    async with asking() as (server, provider):
        answer = await provider.authenticate(LOGIN)
        assert isinstance(answer, Granted)
        principal = answer.principal
        assert (principal.name, principal.client_type, principal.rules) == ("http:u", ClientType.DEVICE, ALLOW_ALL)
        rule = {"effect": "allow", "action": "publish", "filter": "a/${clientid}"}
        server.answer({"result": "allow", "client_type": "APPLICATION", "rules": [rule], "more": 1}, 201)
        answer = await provider.authenticate(Login("c"))
        assert isinstance(answer, Granted)
        assert answer.principal.name == "http-client:c"
        assert answer.principal.client_type is ClientType.APPLICATION
        assert answer.principal.rules == (Rule(Effect.ALLOW, Action.PUBLISH, PatternKind.FILTER, "a/${clientid}"),)


@on_loop
async def test_nothing_is_allowed_without_rules_when_it_is_set_so():
    async with asking(without_rules="deny") as (_, provider):
        answer = await provider.authenticate(LOGIN)
        assert isinstance(answer, Granted) and answer.principal.rules == ()


@on_loop
async def test_client_is_refused_or_left_to_others_when_the_server_says_so():
    async with asking() as (server, provider):
        server.answer({"result": "ignore"})
        assert await provider.authenticate(LOGIN) is SKIPPED
        server.answer({"result": "deny"})
        answer = await provider.authenticate(LOGIN)
        assert isinstance(answer, Denied) and not answer.is_fault
        for status, code in ((401, ReasonCode.BAD_USERNAME_OR_PASSWORD), (403, ReasonCode.NOT_AUTHORIZED)):
            server.answer({"result": "allow"}, status)
            answer = await provider.authenticate(LOGIN)
            assert isinstance(answer, Denied) and not answer.is_fault and answer.reason_code is code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"allow",
        b"<html>",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"result": "ALLOW"}',
        b'{"result": true}',
        b'{"result": ["allow"]}',
        b'{"result": "allow", "rules": "all"}',
        b'{"result": "allow", "rules": [{"effect": "allow", "action": "all", "filter": "#/a"}]}',
        b'{"result": "allow", "client_type": "ROOT"}',
        b'{"result": "allow"',
        b"[" * 60_000,
        zlib.compress(b'{"result": "allow"}'),
    ],
)
@on_loop
async def test_client_is_refused_as_a_fault_when_the_answer_cannot_be_read(body):
    async with asking() as (server, provider):
        server.body = body
        assert is_fault(await provider.authenticate(LOGIN))


@pytest.mark.parametrize("status", [300, 304, 400, 404, 407, 429, 500, 502, 503])
@on_loop
async def test_client_is_refused_as_a_fault_when_the_status_is_another(status):
    async with asking() as (server, provider):
        server.answer({"result": "allow"}, status)
        assert is_fault(await provider.authenticate(LOGIN))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@on_loop
async def test_redirect_is_not_followed(status):
    async with asking() as (server, provider):
        server.status, server.headers = status, {"Location": f"{server.url}/elsewhere"}
        assert is_fault(await provider.authenticate(LOGIN))
        assert [asked.path for asked in server.asked] == ["/login"]


@on_loop
async def test_nothing_is_unpacked_when_the_answer_is_compressed():
    async with asking() as (server, provider):

        async def pack(request: web.Request) -> web.Response:
            bomb = zlib.compress(b'{"result": "allow"}' + b" " * 50_000_000)
            return web.Response(body=bomb, headers={"Content-Encoding": "deflate"})

        server.handler = pack
        assert is_fault(await provider.authenticate(LOGIN))
        assert server.asked[0].headers["Accept-Encoding"] == "identity"


@on_loop
async def test_cookies_are_not_kept():
    async with asking() as (server, provider):
        server.headers = {"Set-Cookie": "session=1"}
        for _ in range(2):
            await provider.authenticate(LOGIN)
        assert "Cookie" not in server.asked[1].headers


# --- a server that fails


@on_loop
async def test_client_is_refused_in_time_when_the_server_hangs_or_drips():
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3_600)
        raise AssertionError

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    for handler in (hang, drip):
        async with asking(timeout_s=0.2) as (server, provider):
            server.handler = handler
            began = time.monotonic()
            answer = await provider.authenticate(LOGIN)
            assert is_fault(answer) and "0.2 s" in answer.reason
            assert time.monotonic() - began < 5


@on_loop
async def test_client_is_refused_as_a_fault_when_the_answer_is_huge():
    async def pour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                await response.write(b" " * 65_536)
        return response

    async with asking(max_answer_bytes=1_000, timeout_s=10) as (server, provider):
        server.handler = pour
        answer = await provider.authenticate(LOGIN)
        assert is_fault(answer) and "more than 1,000 bytes" in answer.reason
        server.handler = None
        server.body = b'{"result": "allow"}'.ljust(1_000)
        assert isinstance(await provider.authenticate(LOGIN), Granted)
        server.body += b" "
        assert is_fault(await provider.authenticate(LOGIN))


@on_loop
async def test_client_is_refused_as_a_fault_when_the_server_is_down_and_let_in_when_it_is_back():
    async with http_server() as server:
        port = int(server.url.rpartition(":")[2])
    provider = HttpProvider.from_settings({"url": f"http://127.0.0.1:{port}/login"})
    assert is_fault(await provider.authenticate(LOGIN))
    async with http_server(port) as server:
        server.answer({"result": "allow"})
        assert isinstance(await provider.authenticate(LOGIN), Granted)
    assert is_fault(await provider.authenticate(LOGIN))
    await provider.close()


@on_loop
async def test_client_is_refused_as_a_fault_when_the_peer_does_not_speak_http():
    async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\xff garbage\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    provider = HttpProvider.from_settings({"url": f"http://127.0.0.1:{port}/"})
    assert is_fault(await provider.authenticate(LOGIN))
    await provider.close()
    server.close()


@on_loop
async def test_requests_are_bounded_when_many_clients_come_at_once():
    at_once = most = 0

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        return web.json_response({"result": "allow"})

    async with asking(max_at_once=3, max_waiting=5, timeout_s=20) as (server, provider):
        server.handler = count
        answers = await asyncio.gather(*(provider.authenticate(LOGIN) for _ in range(20)))
        assert most == 3
        assert sum(isinstance(answer, Granted) for answer in answers) == 8
        assert sum(is_fault(answer, ReasonCode.SERVER_BUSY) for answer in answers) == 12
        assert isinstance(await provider.authenticate(LOGIN), Granted)


@on_loop
async def test_certificate_of_the_server_must_be_known_and_ours_is_shown(tmp_path):
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    certificate, ours = authority.issue("server"), authority.issue("broker")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.path, certificate.key_path)
    tls.load_verify_locations(authority.path)
    tls.verify_mode = ssl.CERT_REQUIRED
    shown = {"certificate": str(ours.path), "private_key": str(ours.key_path)}
    async with http_server(tls=tls) as server:
        server.answer({"result": "allow"})
        for settings, is_good in (
            (shown | {"ca": str(authority.path)}, True),
            (shown | {"ca": str(stranger.path)}, False),
            (shown, False),
            ({"ca": str(authority.path)}, False),
        ):
            provider = HttpProvider.from_settings({"url": server.url} | settings)
            answer = await provider.authenticate(LOGIN)
            assert isinstance(answer, Granted) if is_good else is_fault(answer), settings
            await provider.close()


# --- settings


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "http.url: Field required"),
        ({"url": "example.org"}, "http.url: must be a URL"),
        ({"url": "file:///etc/passwd"}, "http.url: must be a URL"),
        ({"url": "http://u:hunter2@h/"}, "must not hold a user name"),
        ({"url": "http://h:99999/"}, "must be a URL"),
        ({"url": "http://h/a b"}, "must be a URL"),
        ({"url": "http://h/", "method": "GET"}, "GET has no body"),
        ({"url": "http://h/", "send_as": "query"}, "ends up in logs"),
        ({"url": "http://h/", "body": {"a": "${passwort}"}}, r"\$\{passwort\} is not known"),
        ({"url": "http://h/", "send_as": "form", "body": {"a": {"b": "c"}}}, "takes texts only"),
        ({"url": "http://h/", "headers": {"A": "hunter2\r\nB: c"}}, "the value of A must be printable"),
        ({"url": "http://h/", "headers": {"A B": "c"}}, "cannot be the name of a header"),
        ({"url": "http://h/", "headers": {"Host": "x"}}, "cannot be the name of a header"),
        ({"url": "http://h/", "headers": {"A": "file:///no/such"}}, "cannot be read"),
        ({"url": "http://h/", "timeout_s": 0}, "http.timeout_s: must be greater"),
        ({"url": "http://h/", "certificate": __file__}, "must be set together"),
        ({"url": "http://h/", "certificate": __file__, "private_key": __file__}, "http: the certificates cannot"),
        ({"url": "http://h/", "verify": False}, "http.verify: unknown key"),
    ],
)
def test_settings_are_refused_with_a_reason_when_they_are_wrong(settings, reason):
    with pytest.raises(SettingsError, match=reason) as refused:
        HttpProvider.from_settings(settings)
    assert "hunter2" not in str(refused.value)


def test_headers_are_not_shown_and_come_from_files(tmp_path):
    file = tmp_path / "token"
    file.write_text("Bearer hunter2\n")
    settings = HttpSettings(url="http://h/", headers={"Authorization": f"file://{file}"})
    assert settings.headers["Authorization"].get_secret_value() == "Bearer hunter2"
    assert "hunter2" not in repr(settings) + json.dumps(settings.model_dump(mode="json"))
