"""Whom a listener of one worker lets in: how many connections in all and by address, how fast, and how busy the worker
may be. Everything here happens before a single byte is read."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from tbmq.rate_limits import RateLimit, Window

MEASURE_S = 0.1


class LoopLag:
    """How late the loop is: the time that a due call has to wait for its turn.

    While it is above the limit newcomers are turned away: serving those who are here comes first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_lag_s: float) -> None:
        self._loop = loop
        self._max_lag_s = max_lag_s
        self._due = loop.time()
        self.last_s = 0.0
        self.largest_s = 0.0
        self._measure()

    @property
    def is_high(self) -> bool:
        """Also while the call that would tell is still waiting."""
        return max(self.last_s, self._loop.time() - self._due) > self._max_lag_s

    def _measure(self) -> None:
        self.last_s = max(self._loop.time() - self._due, 0.0)
        self.largest_s = max(self.largest_s, self.last_s)
        self._due = self._loop.time() + MEASURE_S
        self._loop.call_at(self._due, self._measure)


class Admission:
    """A connection enters once when it is accepted, claims an address once its address is known, and leaves once.

    Addresses are counted only when there is a limit for them, so the table is empty otherwise.
    """

    def __init__(
        self, max_connections: int, max_connections_per_ip: int, rate: Sequence[Window] = (), lag: LoopLag | None = None
    ) -> None:
        self._max_connections = max_connections
        self._rate = RateLimit(rate, time.monotonic()) if rate else None
        self._lag = lag
        self._max_per_ip = max_connections_per_ip  # 0: no limit
        self.connections = 0
        self._by_ip: dict[str, int] = {}
        self.refused: Counter[str] = Counter()  # by reason

    def enter(self, is_new: bool = True) -> bool:
        """False: the connection was counted as refused. One that another worker had let in is not new."""
        reason = self._reason_to_refuse(is_new)
        if reason:
            self.refused[reason] += 1
            return False
        self.connections += 1
        return True

    def _reason_to_refuse(self, is_new: bool) -> str:
        if self.connections >= self._max_connections:
            return "max_connections"
        if is_new and self._lag is not None and self._lag.is_high:
            return "loop_lag"
        if is_new and self._rate is not None and not self._rate.try_take(1, time.monotonic()):
            return "connect_rate"
        return ""

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
