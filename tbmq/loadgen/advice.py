"""Failures of connections in words: what happened, and what to do."""

from __future__ import annotations

import errno
import os

from tbmq.loadgen.options import Options
from tbmq.protocol import ReasonCode

RETURN_CODES = {
    1: "it does not take MQTT 3.1.1: try --protocol 5",
    2: "it does not like the client id",
    3: "it is not available",
    4: "user name or password are wrong: see --username and --password-file",
    5: "we are not authorised: give --username and --password-file, or allow anonymous clients",
}
STATES = {1: "for the TCP connection", 2: "for TLS or WebSocket", 3: "for CONNACK", 4: "for SUBACK"}


def explain(options: Options, kind: str, code: int | str) -> str:
    where = f"{options.host}:{options.port}"
    match kind:
        case "connect_failed":
            return f"cannot connect to {where}: {_system(int(code), options)}"
        case "transport_failed":
            hint = (
                " Give --ca FILE, or --insecure to check nothing." if "CERTIFICATE_VERIFY_FAILED" in str(code) else ""
            )
            return f"TLS or WebSocket with {where} failed: {code}.{hint}"
        case "refused":
            return f"the broker refused the connection: {_refusal(options, int(code))}"
        case "not_subscribed":
            if int(code) < 0x80:
                return f"the broker grants only QoS {code}: use --qos {code}"
            return f"the broker refused the subscription: {_reason(int(code))}; is the topic allowed for this user?"
        case "not_taken":
            return f"the broker refused messages: {_reason(int(code))}"
        case "disconnected":
            return f"the broker sent DISCONNECT: {_reason(int(code))}"
        case "closed":
            return "the broker closed the connection without a word; its log may say why"
        case "broken":
            return f"a connection broke: {os.strerror(int(code))}"
        case "bad_packet":
            return f"the broker sent bytes that MQTT does not allow: {_reason(int(code))}"
        case "timed_out":
            waited = STATES.get(int(code), "for an answer")
            return f"waited {options.connect_timeout_s:g} s {waited}; see --connect-timeout, or connect more slowly"
    return f"{kind} {code}"


def _system(code: int, options: Options) -> str:
    text = os.strerror(code)
    match code:
        case errno.ECONNREFUSED:
            return f"{text}. Nothing listens there: start the broker, or correct --host and --port."
        case errno.EADDRNOTAVAIL:
            return f"{text}. Local ports are used up: give more local addresses (--source 127.0.0.2 --source ...)."
        case errno.EMFILE | errno.ENFILE:
            return f"{text}. Raise the limit (ulimit -n), or use more --processes."
        case errno.ETIMEDOUT | errno.EHOSTUNREACH | errno.ENETUNREACH:
            return f"{text}. Is the host right, and does a firewall stand between?"
    return text


def _refusal(options: Options, code: int) -> str:
    return RETURN_CODES.get(code, f"code {code}") if options.protocol_level < 5 else _reason(code)


def _reason(code: int) -> str:
    try:
        return f"0x{code:02X} {ReasonCode(code).name.lower().replace('_', ' ')}"
    except ValueError:
        return f"0x{code:02X}"
