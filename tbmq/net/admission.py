"""How many connections a listener of one worker holds, in all and by address."""

from __future__ import annotations

from collections import Counter


class Admission:
    """A connection enters once when it is accepted, claims an address once its address is known, and leaves once.

    Addresses are counted only when there is a limit for them, so the table is empty otherwise.
    """

    def __init__(self, max_connections: int, max_connections_per_ip: int) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_connections_per_ip  # 0: no limit
        self.connections = 0
        self._by_ip: dict[str, int] = {}
        self.refused: Counter[str] = Counter()  # by reason

    def enter(self) -> bool:
        """False: it is full, and the connection was counted as refused."""
        if self.connections >= self._max_connections:
            self.refused["max_connections"] += 1
            return False
        self.connections += 1
        return True

    def claim(self, ip: str) -> bool:
        """False: this address has too many; then the connection has left, too."""
        if self._max_per_ip:
            count = self._by_ip.get(ip, 0)
            if count >= self._max_per_ip:
                self.leave_before_claim("max_connections_per_ip")
                return False
            self._by_ip[ip] = count + 1
        return True

    def leave_before_claim(self, reason: str) -> None:
        self.connections -= 1
        self.refused[reason] += 1

    def leave(self, ip: str) -> None:
        self.connections -= 1
        if self._max_per_ip:
            count = self._by_ip.pop(ip)
            if count > 1:
                self._by_ip[ip] = count - 1
