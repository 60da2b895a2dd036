"""Blocked clients: who is found, and who is not."""

import ipaddress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq.auth.blocked import MAX_PATTERNS, BlockedClients
from tbmq.storage.entities import Blocked, BlockedKind

NOW = 1_000.0


def find(*entries: Blocked, client_id="c", username=None, ip="192.0.2.1", now=NOW) -> Blocked | None:
    blocked = BlockedClients(entries)
    assert blocked.unusable == []
    return blocked.find(client_id, username, ip, now)


@pytest.mark.parametrize(
    ("kind", "value", "client"),
    [
        ("client_id", "c1", {"client_id": "c1"}),
        ("username", "u1", {"username": "u1"}),
        ("username", "", {"username": ""}),
        ("ip", "10.0.0.1", {"ip": "10.0.0.1"}),
        ("ip", "::ffff:10.0.0.1", {"ip": "10.0.0.1"}),
        ("ip", "10.0.0.1", {"ip": "::ffff:10.0.0.1"}),
        ("ip", "fd00::1", {"ip": "fd00:0:0::1"}),
        ("ip", "fe80::1", {"ip": "fe80::1%eth0"}),
        ("network", "10.0.0.0/8", {"ip": "10.255.0.9"}),
        ("network", "10.0.0.0/8", {"ip": "::ffff:10.1.2.3"}),
        ("network", "::ffff:10.0.0.0/104", {"ip": "10.1.2.3"}),
        ("network", "10.0.0.7", {"ip": "10.0.0.7"}),
        ("network", "0.0.0.0/0", {"ip": "203.0.113.5"}),
        ("network", "fd00::/8", {"ip": "fd12::9"}),
    ],
)
def test_client_is_found_when_an_entry_names_it(kind, value, client):
    entry = Blocked(BlockedKind(kind), value)
    assert find(entry, **client) is entry
    assert find(entry, client_id="other", username="other", ip="198.18.0.1") is (
        entry if value == "0.0.0.0/0" else None
    )


@pytest.mark.parametrize(
    ("kind", "value", "client"),
    [
        ("client_id", "u1", {"username": "u1"}),
        ("client_id", "C1", {"client_id": "c1"}),
        ("username", "", {"username": None}),
        ("network", "10.0.0.0/8", {"ip": "11.0.0.0"}),
        ("network", "::/0", {"ip": "10.0.0.1"}),
        ("network", "0.0.0.0/0", {"ip": "fd00::1"}),
        ("network", "0.0.0.0/0", {"ip": ""}),
        ("ip", "10.0.0.1", {"ip": "10.0.0.1.example"}),
    ],
)
def test_client_is_not_found_when_an_entry_names_something_else(kind, value, client):
    assert find(Blocked(BlockedKind(kind), value), **client) is None


@pytest.mark.parametrize(
    ("kind", "client"),
    [("client_id", {"client_id": "bot-17"}), ("username", {"username": "bot-17"}), ("ip", {"ip": "10.0.0.17"})],
)
def test_pattern_must_match_the_whole_text(kind, client):
    whole = Blocked(BlockedKind(kind), r"(bot-|10\.0\.0\.)\d+", is_regex=True)
    part = Blocked(BlockedKind(kind), r"\d+", is_regex=True)
    assert find(part, whole, **client) is whole
    assert find(part, **client) is None


def test_line_break_does_not_slip_past_a_pattern():
    assert find(Blocked(BlockedKind.CLIENT_ID, "bot.*", is_regex=True), client_id="bot\n1")


def test_entry_counts_until_it_expires():
    entry = Blocked(BlockedKind.CLIENT_ID, "c", expires_at=NOW)
    assert find(entry, now=NOW - 0.001) is entry
    assert find(entry, now=NOW) is None


@pytest.mark.parametrize("is_regex", [False, True])
@pytest.mark.parametrize(("kind", "value"), [("client_id", "c"), ("network", "192.0.2.0/24"), ("ip", "192.0.2.1")])
def test_entry_that_lasts_is_found_behind_one_that_expired(kind, value, is_regex):
    if kind == "network" and is_regex:
        return
    old = Blocked(BlockedKind(kind), value, is_regex, expires_at=NOW - 1)
    later = Blocked(BlockedKind(kind), value, is_regex, expires_at=NOW + 1)
    ever = Blocked(BlockedKind(kind), value, is_regex)
    assert find(old, later) is find(later, old) is later
    assert find(old, ever) is find(ever, old) is ever


def test_wider_network_is_found_when_the_narrow_one_expired():
    narrow = Blocked(BlockedKind.NETWORK, "192.0.2.0/28", expires_at=NOW - 1)
    wide = Blocked(BlockedKind.NETWORK, "192.0.0.0/16")
    assert find(narrow, wide) is wide


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Blocked(BlockedKind.CLIENT_ID, "(", is_regex=True), "missing"),
        (Blocked(BlockedKind.NETWORK, ".*", is_regex=True), "cannot be a regular expression"),
        (Blocked(BlockedKind.NETWORK, "10.0.0.1/8"), "host bits"),
        (Blocked(BlockedKind.IP, "localhost"), "not an IP address"),
    ],
)
def test_unusable_entry_is_told_and_the_others_count(entry, reason):
    good = Blocked(BlockedKind.CLIENT_ID, "c")
    blocked = BlockedClients([entry, good])
    assert [(unusable, reason in text) for unusable, text in blocked.unusable] == [(entry, True)]
    assert blocked.find("c", None, "", NOW) is good
    assert blocked.statistics() == {"exact": 1, "networks": 0, "patterns": 0, "unusable": 1}


def test_patterns_are_bounded():
    entries = [Blocked(BlockedKind.CLIENT_ID, f"bot-{number}-.*", is_regex=True) for number in range(MAX_PATTERNS + 1)]
    blocked = BlockedClients(entries)
    assert [entry for entry, _ in blocked.unusable] == entries[-1:]
    assert blocked.find(f"bot-{MAX_PATTERNS - 1}-x", None, "", NOW) is entries[-2]


ADDRESSES = st.builds(ipaddress.IPv4Address, st.integers(0, 2**32 - 1)) | st.builds(
    ipaddress.IPv6Address, st.integers(0, 2**128 - 1)
)


@given(ADDRESSES, st.lists(st.tuples(st.booleans(), ADDRESSES, st.integers(0, 128)), max_size=8))
def test_networks_are_found_as_the_standard_library_finds_them(address, choices):
    networks = []
    for is_near, other, length in choices:
        base = address if is_near else other
        networks.append(ipaddress.ip_network((base, min(length, base.max_prefixlen)), strict=False))
    blocked = BlockedClients([Blocked(BlockedKind.NETWORK, str(network)) for network in networks])
    found = blocked.find("c", None, str(address), NOW)
    assert (found is not None) == any(address in network for network in networks)
    if found is not None:
        assert address in ipaddress.ip_network(found.value)


def test_all_kinds_are_asked():
    entries = [Blocked(kind, value) for kind, value in product(BlockedKind, ["nobody"]) if kind.value.endswith("e")]
    entries.append(Blocked(BlockedKind.USERNAME, "u"))
    assert find(*entries, username="u") is entries[-1]
