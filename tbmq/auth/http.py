"""Logins judged by a server of the operator's.

    Login ──▶ template filled in, encoded as JSON, form or query ──▶ server
                                                                       │
    401, 403, {"result": "deny"} ──▶ Denied       {"result": "ignore"} ──▶ SKIPPED
    2xx with {"result": "allow", "client_type": ..., "rules": [...]} ──▶ Granted
    all else ──▶ Denied as a fault: no answer in time, another status, a redirect, an answer that cannot be read

What a client sends is always a value, encoded as such: it cannot add fields, headers or paths. The URL and the headers
are as they are set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlencode, urlsplit

from pydantic import AfterValidator, Field, model_validator

from tbmq.auth.answers import UnclearAnswer, read_client_type, read_object, read_rules
from tbmq.auth.model import ALLOW_ALL, SKIPPED, Answer, ClientType, Denied, Granted, Login, Principal
from tbmq.auth.settings import SettingsError, check_placeholders, fill_in, has_placeholder, read_settings
from tbmq.auth.web import WebBusy, WebClient, WebError, check_url
from tbmq.config.model import Section
from tbmq.config.values import OptionalFile, Secret
from tbmq.protocol import ReasonCode

_PLACEHOLDERS = {"clientid", "username", "password", "cn", "peer"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_RESERVED_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "accept-encoding", "connection"}

DEFAULT_BODY = {
    "client_id": "${clientid}",
    "username": "${username}",
    "password": "${password}",
    "common_name": "${cn}",
    "peer": "${peer}",
}


def _headers(headers: dict[str, Secret]) -> dict[str, Secret]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"{name!r} cannot be the name of a header here")
        if not value.get_secret_value().isprintable():
            raise ValueError(f"the value of {name} must be printable text")
    return headers


def _texts(value: object) -> list[str]:
    """Every text of a template that will be filled in; ValueError for what JSON cannot have."""
    match value:
        case str():
            return [check_placeholders(value, _PLACEHOLDERS)]
        case dict():
            return [text for item in value.values() for text in _texts(item)]
        case list():
            return [text for item in value for text in _texts(item)]
        case None | bool() | int() | float():
            return []
    raise ValueError("must be made of objects, lists, texts and numbers")


class HttpSettings(Section):
    url: Annotated[str, AfterValidator(check_url)] = Field(description="Where logins are asked about.")
    method: Literal["POST", "PUT", "GET"] = Field(default="POST", description="Method of the request.")
    send_as: Literal["json", "form", "query"] = Field(
        default="json", description="How values travel: JSON body, form body, or query string; GET needs query."
    )
    headers: Annotated[dict[str, Secret], AfterValidator(_headers)] = Field(
        default={}, description="Headers to add, such as Authorization; file:///path reads a value from a file."
    )
    body: dict[str, Any] = Field(
        default=DEFAULT_BODY, description="What is sent; texts may use ${clientid}, ${username}, ${password}, ..."
    )
    timeout_s: float = Field(default=3.0, gt=0, le=60, description="Time for an answer, waiting for a place included.")
    max_at_once: int = Field(default=64, ge=1, le=1_000, description="Most requests of a worker at once.")
    max_waiting: int = Field(default=1_000, ge=0, le=100_000, description="Most logins that wait for a place.")
    max_answer_bytes: int = Field(default=65_536, ge=1, le=1_048_576, description="Largest answer that is read.")
    ca: OptionalFile = Field(
        default=None, description="PEM file of the authorities of the server; those of the system unless set."
    )
    certificate: OptionalFile = Field(default=None, description="PEM file of the certificate that we show to it.")
    private_key: OptionalFile = Field(default=None, description="PEM file of that certificate's key.")
    default_client_type: ClientType = Field(default=ClientType.DEVICE, description="For answers without client_type.")
    without_rules: Literal["allow", "deny"] = Field(
        default="allow", description="What clients may do whose answer has no rules: everything, or nothing."
    )

    @model_validator(mode="after")
    def _request_makes_sense(self) -> Self:
        texts = _texts(self.body)
        if self.method == "GET" and self.send_as != "query":
            raise ValueError("GET has no body: set send_as to query, or method to POST")
        if self.send_as == "query" and any(has_placeholder(text, "password") for text in texts):
            raise ValueError("a password in a URL ends up in logs: send it as json or form, or take it out of body")
        if self.send_as != "json" and not all(isinstance(value, str) for value in self.body.values()):
            raise ValueError(f"body: {self.send_as} takes texts only, nothing nested")
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key must be set together")
        return self


class HttpProvider:
    name = "http"

    def __init__(self, settings: HttpSettings) -> None:
        """ValueError if the files of certificates cannot be used."""
        self._settings = settings
        self._headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        self._needs_password = any(has_placeholder(text, "password") for text in _texts(settings.body))
        self._default_rules = ALLOW_ALL if settings.without_rules == "allow" else ()
        self._client = WebClient(
            settings.timeout_s,
            settings.max_answer_bytes,
            settings.max_at_once,
            settings.max_waiting,
            settings.ca,
            settings.certificate,
            settings.private_key,
        )

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Self:
        """SettingsError names what is wrong."""
        settings = read_settings(HttpSettings, cls.name, values)
        try:
            return cls(settings)
        except ValueError as error:
            raise SettingsError(f"http: {error}") from None

    async def authenticate(self, login: Login) -> Answer:
        try:
            url, headers, body = self._request(login)
        except UnicodeDecodeError:
            return Denied("http: the password is not UTF-8 text", ReasonCode.BAD_USERNAME_OR_PASSWORD)
        try:
            answer = await self._client.request(self._settings.method, url, headers, body)
        except WebBusy as error:
            return Denied(f"http: {error}", ReasonCode.SERVER_BUSY, is_fault=True)
        except WebError as error:
            return _fault(str(error))
        if answer.status == 401:
            return Denied("http: the server answered 401", ReasonCode.BAD_USERNAME_OR_PASSWORD)
        if answer.status == 403:
            return Denied("http: the server answered 403")
        if not 200 <= answer.status < 300:
            return _fault(f"the server answered with status {answer.status}")
        try:
            return self._judge(read_object(answer.body), login)
        except UnclearAnswer as error:
            return _fault(f"the server's answer cannot be used: {error}")

    async def close(self) -> None:
        await self._client.close()

    def _request(self, login: Login) -> tuple[str, dict[str, str], bytes | None]:
        """URL, headers and body; UnicodeDecodeError for a password that is to be sent and is no text."""
        settings = self._settings
        password = login.password.decode("utf-8") if self._needs_password and login.password is not None else None
        values = {
            "clientid": login.client_id,
            "username": login.username,
            "password": password,
            "cn": login.common_names[0] if login.common_names else None,
            "peer": login.peer,
        }
        filled = {name: _fill(item, values) for name, item in settings.body.items()}
        if settings.send_as == "json":
            return (
                settings.url,
                self._headers | {"Content-Type": "application/json"},
                json.dumps(filled).encode("ascii"),
            )
        text = urlencode({name: value for name, value in filled.items() if value is not None})
        if settings.send_as == "query":
            separator = "&" if urlsplit(settings.url).query else "?"
            return f"{settings.url}{separator}{text}", self._headers, None
        headers = self._headers | {"Content-Type": "application/x-www-form-urlencoded"}
        return settings.url, headers, text.encode("ascii")

    def _judge(self, answer: dict[str, Any], login: Login) -> Answer:
        match answer.get("result"):
            case "ignore":
                return SKIPPED
            case "deny":
                return Denied("http: the server said deny")
            case "allow":
                principal = Principal(
                    f"http:{login.username}" if login.username else f"http-client:{login.client_id}",
                    read_client_type(answer.get("client_type"), self._settings.default_client_type),
                    read_rules(answer.get("rules"), self._default_rules),
                )
                return Granted(principal)
        raise UnclearAnswer("result must be allow, deny or ignore")


def _fault(reason: str) -> Denied:
    return Denied(f"http: {reason}", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)


def _fill(template: Any, values: Mapping[str, str | None]) -> Any:
    """A text with a placeholder that has no value, such as the user name of who shows none, becomes null."""
    match template:
        case str():
            return fill_in(template, values)
        case dict():
            return {name: _fill(item, values) for name, item in template.items()}
        case list():
            return [_fill(item, values) for item in template]
    return template
