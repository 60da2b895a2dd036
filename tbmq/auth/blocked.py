"""Who stays outside whatever they show: asked at every CONNECT, before authentication.

    exact     {(kind, value) -> entry}                        one look-up each
    networks  {(version, prefix length) -> {network -> entry}}   one look-up per length in use, longest first
    patterns  {kind -> [(expression, entry), ...]}            tried in turn, at most MAX_PATTERNS of a kind

The index is immutable: when the entries of the store change, build it anew. An IPv4 address written as IPv6
(`::ffff:10.0.0.1`) is taken for what it is, in entries and in questions. Of entries that name the same, the one that
lasts longest counts. Entries are checked when they are entered; one that cannot be used all the same is in `unusable`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from tbmq.auth.expressions import Expression, expression
from tbmq.storage.entities import Blocked, BlockedKind

MAX_PATTERNS = 500  # of each kind; all are tried at every CONNECT, about a microsecond each

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BlockedClients:
    def __init__(self, entries: Iterable[Blocked]) -> None:
        self._exact: dict[tuple[BlockedKind, str], Blocked] = {}
        self._networks: dict[tuple[int, int], dict[int, Blocked]] = {}
        self._patterns: dict[BlockedKind, list[tuple[Expression, Blocked]]] = {kind: [] for kind in BlockedKind}
        self.unusable: list[tuple[Blocked, str]] = []  # with the reason; for the log
        for entry in entries:
            try:
                self._add(entry)
            except ValueError as error:
                self.unusable.append((entry, str(error)))
        self._lengths = sorted(self._networks, reverse=True)

    def find(self, client_id: str, username: str | None, ip: str, now: float) -> Blocked | None:
        """An entry that keeps this client outside at this Unix time. `ip` has no port; a text that is no address (of a
        Unix socket, say) is in no network."""
        address = read_address(ip)
        plain_ip = ip if address is None else str(address)
        asked = [(BlockedKind.CLIENT_ID, client_id), (BlockedKind.IP, plain_ip)]
        if username is not None:
            asked.append((BlockedKind.USERNAME, username))
        for key in asked:
            entry = self._exact.get(key)
            if entry is not None and is_in_force(entry, now):
                return entry
        if address is not None:
            entry = self._find_network(address, now)
            if entry is not None:
                return entry
        return self._find_pattern(asked, now)

    def statistics(self) -> dict[str, int]:
        return {
            "exact": len(self._exact),
            "networks": sum(map(len, self._networks.values())),
            "patterns": sum(map(len, self._patterns.values())),
            "unusable": len(self.unusable),
        }

    def _find_network(self, address: Address, now: float) -> Blocked | None:
        number = int(address)
        for version, length in self._lengths:
            if version == address.version:
                bits = address.max_prefixlen - length
                entry = self._networks[version, length].get(number >> bits << bits)
                if entry is not None and is_in_force(entry, now):
                    return entry
        return None

    def _find_pattern(self, asked: list[tuple[BlockedKind, str]], now: float) -> Blocked | None:
        for kind, text in asked:
            encoded = text.encode()
            for pattern, entry in self._patterns[kind]:
                if is_in_force(entry, now) and pattern.matches(encoded):
                    return entry
        return None

    def _add(self, entry: Blocked) -> None:
        """ValueError when the entry cannot be used."""
        if entry.is_regex:
            if entry.kind is BlockedKind.NETWORK:
                raise ValueError("a network cannot be a regular expression")
            if len(self._patterns[entry.kind]) == MAX_PATTERNS:
                raise ValueError(f"there are more than {MAX_PATTERNS} regular expressions of this kind")
            self._patterns[entry.kind].append((expression(entry.value), entry))
        elif entry.kind is BlockedKind.NETWORK:
            network = read_network(entry.value)
            same_length = self._networks.setdefault((network.version, network.prefixlen), {})
            number = int(network.network_address)
            same_length[number] = longest(same_length.get(number), entry)
        else:
            value = entry.value
            if entry.kind is BlockedKind.IP:
                address = read_address(value)
                if address is None:
                    raise ValueError(f"{value!r} is not an IP address")
                value = str(address)
            key = (entry.kind, value)
            self._exact[key] = longest(self._exact.get(key), entry)


def is_in_force(entry: Blocked, now: float) -> bool:
    return entry.expires_at is None or now < entry.expires_at


def longest(known: Blocked | None, entry: Blocked) -> Blocked:
    if known is None or entry.expires_at is None:
        return entry
    return known if known.expires_at is None or known.expires_at >= entry.expires_at else entry


def read_address(text: str) -> Address | None:
    """None if it is no address. The zone of a link-local address (`fe80::1%eth0`) is of no interest."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def read_network(text: str) -> Network:
    """Raises ValueError. `::ffff:10.0.0.0/104` is 10.0.0.0/8."""
    network = ipaddress.ip_network(text)
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ipaddress.IPv4Network((int(network.network_address.ipv4_mapped), network.prefixlen - 96))
    return network
