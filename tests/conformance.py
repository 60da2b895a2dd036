"""The table of normative statements with the tests that show them: `python -m tests.conformance` writes it.

Below are the numbered statements of MQTT 5.0 and 3.1.1 that bind a server, in a few words of our own (the specification
is the authority). A test names those it shows by `@covers("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")`. A unit test checks that
docs/conformance.md is up to date and that every statement has a test or a reason in `WITHOUT_TEST`.

Statements about clients alone are left out, except where a broker must react to a client that breaks them.
"""

import importlib
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"

V5 = """
1.5.4-1 strings are well-formed UTF-8 without surrogates
1.5.4-2 strings hold no U+0000
1.5.4-3 U+FEFF is kept wherever it stands
1.5.5-1 variable byte integers are written in their shortest form
1.5.7-1 both parts of a string pair are valid strings
2.1.3-1 reserved flags of the fixed header have their fixed values
2.2.1-2 a QoS 0 PUBLISH has no packet id
2.2.1-3 packet ids of clients are not 0
2.2.1-4 packet ids of the server are not 0 and not in use
2.2.1-5 acknowledgements carry the id of their PUBLISH
2.2.1-6 SUBACK and UNSUBACK carry the id of their request
2.2.2-1 no properties: a property length of 0
3.1.0-1 the first packet is CONNECT
3.1.0-2 a second CONNECT is a protocol error
3.1.2-1 another protocol name: CONNACK 0x84 or nothing, then close
3.1.2-2 another protocol version: CONNACK 0x84 or nothing, then close
3.1.2-3 the reserved flag of CONNECT is 0
3.1.2-4 clean start discards the session
3.1.2-5 without clean start an existing session is resumed
3.1.2-6 without clean start and session a new one begins
3.1.2-7 a will is stored with the session
3.1.2-8 the will is published after the connection: at its delay or the end of the session, unless removed
3.1.2-9 the will flag needs properties, topic and payload of the will
3.1.2-10 a will is removed when published, or by DISCONNECT 0x00
3.1.2-11 no will: will QoS 0
3.1.2-12 will QoS is not 3
3.1.2-13 no will: will retain 0
3.1.2-14 will retain 0: published as not retained
3.1.2-15 will retain 1: published as retained
3.1.2-16 no user name flag, no user name
3.1.2-17 user name flag, user name
3.1.2-18 no password flag, no password
3.1.2-19 password flag, password
3.1.2-21 the Server Keep Alive that was sent is the one that counts
3.1.2-22 silence of 1.5 times the keep-alive closes the connection as if it had failed
3.1.2-23 a session with an expiry above 0 is kept after the connection
3.1.2-24 no packet over the client's Maximum Packet Size is sent
3.1.2-25 a message too large for a client is dropped as if it had been sent
3.1.2-26 no alias over the client's Topic Alias Maximum
3.1.2-27 no alias at all without a Topic Alias Maximum
3.1.2-28 no Response Information unasked
3.1.2-29 no reasons and user properties on answers when they are not wanted
3.1.3-1 order of the fields of CONNECT
3.1.3-2 the client id identifies the session
3.1.3-3 the client id is there, and first
3.1.3-4 the client id is a valid string
3.1.3-5 ids of 1 to 23 letters and digits are allowed
3.1.3-6 an empty id gets a unique one
3.1.3-7 the assigned id is used and told
3.1.3-8 a refused id: CONNACK 0x85 or nothing, then close
3.1.3-9 a new connection within the delay cancels the will
3.1.3-10 user properties of the will keep their order
3.1.3-11 the will topic is a valid string
3.1.3-12 the user name is a valid string
3.1.4-1 CONNECT is checked, and closed when malformed
3.1.4-2 a CONNECT that fails other checks is closed
3.1.4-3 an existing connection of the id gets DISCONNECT 0x8E and is closed
3.1.4-4 clean start is performed
3.1.4-5 an accepted CONNECT gets CONNACK 0x00
3.1.4-6 after a refused CONNECT nothing but AUTH is processed
3.2.0-1 CONNACK comes before anything but AUTH
3.2.0-2 one CONNACK per connection
3.2.2-1 reserved flags of CONNACK are 0
3.2.2-2 clean start: session present 0
3.2.2-3 session present tells whether there is a session
3.2.2-6 a refusal has session present 0
3.2.2-7 a CONNACK of 0x80 or above is followed by a close
3.2.2-8 CONNACK has a defined reason code
3.2.2-9 Maximum QoS is sent when QoS 1 or 2 is not supported
3.2.2-10 without QoS 1 or 2, SUBSCRIBE still takes them
3.2.2-12 a will QoS that is not supported is refused
3.2.2-13 a will with retain is refused when that is not supported
3.2.2-15 packets over the server's Maximum Packet Size are not sent to it
3.2.2-16 assigned ids are unique
3.2.2-17 aliases over the server's Topic Alias Maximum are not sent to it
3.2.2-19 CONNACK leaves out a reason that would make it too large
3.2.2-20 CONNACK leaves out user properties that would make it too large
3.2.2-21 the Server Keep Alive that was sent is the one that counts
3.2.2-22 without Server Keep Alive the client's value counts
3.3.1-1 DUP on every redelivery
3.3.1-2 no DUP on QoS 0
3.3.1-3 DUP is not taken from the publisher
3.3.1-4 QoS 3 is malformed
3.3.1-5 a retained message replaces the one before
3.3.1-6 an empty retained message deletes
3.3.1-7 an empty retained message is not stored
3.3.1-8 without RETAIN nothing is stored or replaced
3.3.1-9 Retain Handling 0 sends retained messages
3.3.1-10 Retain Handling 1 sends them to new subscriptions only
3.3.1-11 Retain Handling 2 sends none
3.3.1-12 RETAIN 0 on delivery without Retain As Published
3.3.1-13 RETAIN as received with Retain As Published
3.3.2-1 the topic comes first and is a valid string
3.3.2-2 the topic holds no wildcard
3.3.2-3 the topic of a delivery matches the filter
3.3.2-4 Payload Format Indicator is passed on
3.3.2-5 an expired message is not delivered
3.3.2-6 the time left is passed on
3.3.2-7 aliases end with their connection
3.3.2-8 alias 0 does not exist
3.3.2-9 aliases over the server's maximum are not sent to it
3.3.2-11 no alias over the client's maximum
3.3.2-12 all aliases up to the announced maximum are taken
3.3.2-13 the response topic is a valid string
3.3.2-14 the response topic holds no wildcard
3.3.2-15 the response topic is passed on
3.3.2-16 correlation data are passed on
3.3.2-17 user properties are passed on
3.3.2-18 user properties keep their order
3.3.2-19 the content type is a valid string
3.3.2-20 the content type is passed on
3.3.4-1 PUBLISH is answered as its QoS asks
3.3.4-2 overlapping subscriptions: the highest QoS
3.3.4-3 subscription identifiers come with the message
3.3.4-4 one copy has the identifiers of all matching subscriptions
3.3.4-5 several copies have each their identifier
3.3.4-6 no subscription identifier from a client
3.3.4-7 not more than the server's Receive Maximum in flight
3.3.4-9 not more than the client's Receive Maximum in flight
3.3.4-10 other packets do not wait for the window
3.4.2-1 PUBACK has a defined reason code
3.4.2-2 PUBACK leaves out a reason that would make it too large
3.4.2-3 PUBACK leaves out user properties that would make it too large
3.5.2-1 PUBREC has a defined reason code
3.5.2-2 PUBREC leaves out a reason that would make it too large
3.5.2-3 PUBREC leaves out user properties that would make it too large
3.6.1-1 flags of PUBREL are 0010
3.6.2-1 PUBREL has a defined reason code
3.6.2-2 PUBREL leaves out a reason that would make it too large
3.6.2-3 PUBREL leaves out user properties that would make it too large
3.7.2-1 PUBCOMP has a defined reason code
3.7.2-2 PUBCOMP leaves out a reason that would make it too large
3.7.2-3 PUBCOMP leaves out user properties that would make it too large
3.8.1-1 flags of SUBSCRIBE are 0010
3.8.3-1 filters are valid strings
3.8.3-2 SUBSCRIBE has at least one filter
3.8.3-3 No Local keeps own messages away
3.8.3-4 No Local on a shared subscription is a protocol error
3.8.3-5 reserved bits of the options are 0
3.8.4-1 SUBSCRIBE is answered
3.8.4-2 SUBACK has the id of its SUBSCRIBE
3.8.4-3 an identical filter replaces the subscription
3.8.4-4 replacing sends retained messages again and loses nothing
3.8.4-5 several filters are handled one after the other, with one answer
3.8.4-6 a code for each filter
3.8.4-7 the code is the granted QoS or a failure
3.8.4-8 delivery at the lower of published and granted QoS
3.9.2-1 SUBACK leaves out a reason that would make it too large
3.9.2-2 SUBACK leaves out user properties that would make it too large
3.9.3-1 codes in the order of the filters
3.9.3-2 SUBACK has defined reason codes
3.10.1-1 flags of UNSUBSCRIBE are 0010
3.10.3-1 filters to unsubscribe are valid strings
3.10.3-2 UNSUBSCRIBE has at least one filter
3.10.4-1 filters are compared by their characters
3.10.4-2 no new messages after UNSUBSCRIBE
3.10.4-3 deliveries that began are completed
3.10.4-4 UNSUBSCRIBE is answered
3.10.4-5 even when nothing was deleted
3.10.4-6 several filters are handled one after the other, with one answer
3.11.2-1 UNSUBACK leaves out a reason that would make it too large
3.11.2-2 UNSUBACK leaves out user properties that would make it too large
3.11.3-1 codes in the order of the filters
3.11.3-2 UNSUBACK has defined reason codes
3.12.4-1 PINGREQ is answered
3.14.0-1 no DISCONNECT before an accepting CONNACK
3.14.1-1 reserved flags of DISCONNECT are 0
3.14.2-1 DISCONNECT has a defined reason code
3.14.2-2 no session expiry on a DISCONNECT of the server
3.14.2-3 DISCONNECT leaves out a reason that would make it too large
3.14.2-4 DISCONNECT leaves out user properties that would make it too large
3.14.4-1 nothing follows DISCONNECT
3.14.4-2 the connection is closed after DISCONNECT
3.14.4-3 DISCONNECT 0x00 discards the will
3.15.1-1 reserved flags of AUTH are 0
3.15.2-1 AUTH has a defined reason code
3.15.2-2 AUTH leaves out a reason that would make it too large
3.15.2-3 AUTH leaves out user properties that would make it too large
4.1.0-1 a session lives as long as its connection
4.1.0-2 a session ends at its expiry
4.2.0-1 an ordered, lossless transport
4.3.1-1 QoS 0: DUP 0
4.3.2-1 QoS 1: an unused packet id
4.3.2-2 QoS 1: DUP 0 at first
4.3.2-3 QoS 1: unacknowledged until PUBACK
4.3.2-4 QoS 1: PUBACK once the message is taken
4.3.2-5 QoS 1: after PUBACK the id is free
4.3.3-1 QoS 2: an unused packet id
4.3.3-2 QoS 2: DUP 0 at first
4.3.3-3 QoS 2: unacknowledged until PUBREC
4.3.3-4 QoS 2: PUBREL after a PUBREC below 0x80
4.3.3-5 QoS 2: PUBREL unacknowledged until PUBCOMP
4.3.3-6 QoS 2: no PUBLISH again after PUBREL
4.3.3-7 QoS 2: no expiry after sending
4.3.3-8 QoS 2: PUBREC once the message is taken
4.3.3-9 QoS 2: after a PUBREC of 0x80 or above the id is free
4.3.3-10 QoS 2: repeated before PUBREL, delivered once
4.3.3-11 QoS 2: PUBCOMP for PUBREL
4.3.3-12 QoS 2: after PUBCOMP the id is free
4.3.3-13 QoS 2: the flow is completed although the message expired
4.4.0-1 unacknowledged packets are sent again on resume, and only then
4.4.0-2 a PUBACK or PUBREC of 0x80 or above acknowledges
4.5.0-1 a message goes to every session with a matching subscription
4.6.0-2 PUBACKs in the order of the messages
4.6.0-3 PUBRECs in the order of the messages
4.6.0-5 messages of a client keep their order per topic and QoS
4.6.0-6 every topic is ordered
4.7.0-1 no wildcard in a topic
4.7.1-1 `#` is alone in its level, and last
4.7.1-2 `+` is alone in its level
4.7.2-1 leading wildcards do not match `$` topics
4.7.3-1 at least one character
4.7.3-2 no U+0000
4.7.3-3 up to 65,535 bytes
4.7.3-4 no normalisation
4.8.2-1 a share begins with `$share/` and a name
4.8.2-2 then a slash and a filter; no wildcard in the name
4.8.2-3 each member gets its own QoS
4.8.2-4 a QoS 2 delivery is completed when the member comes back
4.8.2-5 and goes to nobody else when it does not
4.8.2-6 a message that its member refused is discarded
4.9.0-1 the send quota begins at or below Receive Maximum
4.9.0-2 no PUBLISH at quota 0
4.9.0-3 everything else is processed at quota 0
4.12.0-1 an unknown authentication method is refused and closed
4.12.0-2 AUTH of the server asks with 0x18
4.12.0-4 a failed authentication is closed
4.12.0-5 AUTH and CONNACK repeat the method
4.12.0-6 without a method no AUTH and no method in CONNACK
4.12.0-7 no AUTH from a client without a method
4.12.1-1 re-authentication uses the method of CONNECT
4.12.1-2 a failed re-authentication is closed
4.13.1-1 malformed packets and protocol errors are closed
4.13.2-1 a code of 0x80 or above is followed by a close
6.0.0-1 WebSocket: other than binary frames are closed
6.0.0-2 WebSocket: packets may span frames
6.0.0-3 WebSocket: clients without the subprotocol `mqtt` are refused
6.0.0-4 WebSocket: the subprotocol is `mqtt`
"""

V3 = """
1.5.3-1 strings that are not UTF-8 are closed
1.5.3-2 strings with U+0000 are closed
1.5.3-3 U+FEFF is kept wherever it stands
2.2.2-1 reserved flags have their fixed values
2.2.2-2 wrong flags are closed
2.3.1-1 packet ids are not 0
2.3.1-4 packet ids of the server are not 0 and not in use
2.3.1-5 a QoS 0 PUBLISH has no packet id
2.3.1-6 acknowledgements carry the id of their PUBLISH
2.3.1-7 SUBACK and UNSUBACK carry the id of their request
3.1.0-1 the first packet is CONNECT
3.1.0-2 a second CONNECT is closed
3.1.2-1 another protocol name is not processed as this protocol
3.1.2-2 another level: CONNACK 0x01, then close
3.1.2-3 the reserved flag of CONNECT is 0
3.1.2-4 without clean session it is resumed, or begun and kept
3.1.2-5 QoS 1 and 2 messages wait for an absent client
3.1.2-6 clean session discards what was
3.1.2-7 retained messages outlive sessions
3.1.2-8 the will is published when the connection closes without DISCONNECT
3.1.2-9 the will flag needs topic and payload
3.1.2-10 a will is removed when published, or by DISCONNECT
3.1.2-11 no will: QoS, retain and fields absent
3.1.2-12 no will: none is published
3.1.2-13 no will: will QoS 0
3.1.2-14 will QoS is not 3
3.1.2-15 no will: will retain 0
3.1.2-16 will retain 0: published as not retained
3.1.2-17 will retain 1: published as retained
3.1.2-18 no user name flag, no user name
3.1.2-19 user name flag, user name
3.1.2-20 no password flag, no password
3.1.2-21 password flag, password
3.1.2-22 no password without user name
3.1.2-24 silence of 1.5 times the keep-alive closes the connection as if it had failed
3.1.3-1 order of the fields of CONNECT
3.1.3-2 the client id identifies the session
3.1.3-3 the client id is there, and first
3.1.3-4 the client id is a valid string
3.1.3-5 ids of 1 to 23 letters and digits are allowed
3.1.3-6 an empty id gets a unique one
3.1.3-7 an empty id needs clean session
3.1.3-8 an empty id without clean session: CONNACK 0x02, then close
3.1.3-9 a refused id: CONNACK 0x02, then close
3.1.3-10 the will topic is a valid string
3.1.3-11 the user name is a valid string
3.1.4-1 CONNECT is checked, and closed without CONNACK when malformed
3.1.4-2 an existing connection of the id is closed
3.1.4-3 clean session is performed
3.1.4-4 an accepted CONNECT gets CONNACK 0x00
3.1.4-5 after a refused CONNECT nothing is processed
3.2.0-1 CONNACK comes first
3.2.2-1 clean session: session present 0
3.2.2-2 session present 1 when there is a session
3.2.2-3 session present 0 when there is none
3.2.2-4 a refusal has session present 0
3.2.2-5 a refusal is followed by a close
3.2.2-6 no fitting code: close without CONNACK
3.3.1-1 DUP on every redelivery
3.3.1-2 no DUP on QoS 0
3.3.1-3 DUP is not taken from the publisher
3.3.1-4 QoS 3 is closed
3.3.1-5 a retained message is stored with its QoS
3.3.1-6 a new subscription gets it
3.3.1-7 a QoS 0 retained message replaces the one before
3.3.1-8 RETAIN 1 on what a new subscription gets
3.3.1-9 RETAIN 0 for an established subscription
3.3.1-10 an empty retained message is passed on and deletes
3.3.1-11 an empty retained message is not stored
3.3.1-12 without RETAIN nothing is stored or replaced
3.3.2-1 the topic comes first and is a valid string
3.3.2-2 the topic holds no wildcard
3.3.2-3 the topic of a delivery matches the filter
3.3.4-1 PUBLISH is answered as its QoS asks
3.3.5-1 overlapping subscriptions: the highest QoS
3.3.5-2 a PUBLISH that is not allowed is acknowledged or closed
3.6.1-1 flags of PUBREL are 0010
3.8.1-1 flags of SUBSCRIBE are 0010
3.8.3-1 filters are valid strings
3.8.3-2 filters with wildcards are refused when not supported
3.8.3-3 SUBSCRIBE has at least one filter
3.8.3-4 reserved bits and QoS 3 are closed
3.8.4-1 SUBSCRIBE is answered
3.8.4-2 SUBACK has the id of its SUBSCRIBE
3.8.4-3 an identical filter replaces the subscription, sends retained messages again and loses nothing
3.8.4-4 several filters are handled one after the other, with one answer
3.8.4-5 a code for each filter
3.8.4-6 delivery at the lower of published and granted QoS
3.9.3-1 codes in the order of the filters
3.9.3-2 no other codes than 0x00, 0x01, 0x02 and 0x80
3.10.1-1 flags of UNSUBSCRIBE are 0010
3.10.3-1 filters to unsubscribe are valid strings
3.10.3-2 UNSUBSCRIBE has at least one filter
3.10.4-1 filters are compared by their characters
3.10.4-2 no new messages after UNSUBSCRIBE
3.10.4-3 deliveries that began are completed
3.10.4-4 UNSUBSCRIBE is answered with its id
3.10.4-5 even when nothing was deleted
3.10.4-6 several filters are handled one after the other, with one answer
3.12.4-1 PINGREQ is answered
3.14.1-1 reserved flags of DISCONNECT are 0
3.14.4-3 DISCONNECT discards the will
4.1.0-1 the session is kept as long as it lasts
4.1.0-2 a session lives as long as its connection
4.2.0-1 an ordered, lossless transport
4.3.1-1 QoS 0: DUP 0
4.3.2-1 QoS 1: unused id, DUP 0, unacknowledged until PUBACK
4.3.2-2 QoS 1: PUBACK with the id, which is then free
4.3.3-1 QoS 2: unused id, DUP 0, PUBREL after PUBREC, unacknowledged until PUBCOMP, no PUBLISH again
4.3.3-2 QoS 2: PUBREC, delivered once, PUBCOMP, then the id is free
4.4.0-1 unacknowledged packets are sent again on resume with their ids
4.5.0-1 a message goes to every session with a matching subscription
4.6.0-5 every topic is ordered
4.6.0-6 messages of a client keep their order
4.7.1-1 no wildcard in a topic
4.7.1-2 `#` is alone in its level, and last
4.7.1-3 `+` is alone in its level
4.7.2-1 leading wildcards do not match `$` topics
4.7.3-1 at least one character
4.7.3-2 no U+0000
4.7.3-3 up to 65,535 bytes
4.7.3-4 no normalisation
4.8.0-1 protocol errors are closed
4.8.0-2 a transient error closes the connection it concerns
6.0.0-1 WebSocket: other than binary frames are closed
6.0.0-2 WebSocket: packets may span frames
6.0.0-3 WebSocket: clients without the subprotocol `mqtt` are refused
6.0.0-4 WebSocket: the subprotocol is `mqtt`
"""

STATEMENTS = {
    f"{prefix}MQTT-{line.split()[0]}": line.split(maxsplit=1)[1]
    for prefix, text in (("", V5), ("v3:", V3))
    for line in text.strip().splitlines()
}

EVERYTHING_IS_SUPPORTED = "binds only a server without that feature; ours has it"
LATER = "authentication methods come later; until then every method is refused and the broker sends no AUTH"

WITHOUT_TEST = {
    "MQTT-3.1.3-8": "no client id is refused: all that are valid strings are taken",
    "MQTT-3.2.2-10": EVERYTHING_IS_SUPPORTED,
    "MQTT-3.2.2-12": EVERYTHING_IS_SUPPORTED,
    "MQTT-3.2.2-13": EVERYTHING_IS_SUPPORTED,
    "MQTT-3.3.4-5": "overlapping subscriptions give one copy, never several",
    "MQTT-3.15.2-2": LATER,
    "MQTT-3.15.2-3": LATER,
    "MQTT-4.12.0-2": LATER,
    "MQTT-4.12.0-5": LATER,
    "MQTT-4.12.1-2": LATER,
    "v3:MQTT-3.8.3-2": EVERYTHING_IS_SUPPORTED,
    "v3:MQTT-4.8.0-2": "a transient error inside the broker cannot be provoked from outside",
}
"""Server statements that no black-box test can show, and why."""

OF_CLIENTS = {
    "v3:MQTT-2.3.1-2",
    "v3:MQTT-2.3.1-3",
    "v3:MQTT-3.14.4-1",
    "v3:MQTT-3.14.4-2",
    "v3:MQTT-4.6.0-2",
    "v3:MQTT-4.6.0-3",
}
"""Statements about clients that tests name because the broker does the same, or ignores a client that does not."""


def collect() -> dict[str, list[str]]:
    """Which tests name each statement, as `file::test`."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("tests/mqtt/test_*.py")) + sorted(ROOT.glob("tests/adversity/test_*.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, test in vars(module).items():
            for statement in dict.fromkeys(getattr(test, "covers", ())):
                tests[statement].append(f"{path.stem}::{name}")
    return tests


def render() -> str:
    tests = collect()
    lines = [
        "# Conformance",
        "",
        "Every numbered statement of the specifications that binds a server, in short, and the tests that show it.",
        "Written by `python -m tests.conformance`; do not edit. Each test runs with one worker and with three.",
    ]
    for prefix, title in (("", "MQTT 5.0"), ("v3:", "MQTT 3.1.1")):
        lines += ["", f"## {title}", "", "| statement | what | shown by |", "|---|---|---|"]
        for statement, words in STATEMENTS.items():
            if statement.startswith("v3:") != bool(prefix):
                continue
            shown = "<br>".join(f"`{test}`" for test in tests.get(statement, ())) or f"- ({WITHOUT_TEST[statement]})"
            lines.append(f"| {statement.removeprefix('v3:')} | {words} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(render())
