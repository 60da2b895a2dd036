"""Clients that come and go too fast are kept outside for a while. Off unless `max_disconnects` is set.

    disconnects  {client id -> times of its disconnects inside the window}   oldest touched first
    blocked      {client id -> until when}                                   soonest over first

A client id that has disconnected `max_disconnects` times within `window_s` is blocked for `block_s`. It is counted
exactly: of each id the last times are kept, less than `max_disconnects`. Both tables hold at most `max_clients` ids and
forget the oldest, so more ids than that in one window hide each other. Times are of a monotonic clock. A client belongs
to one worker, so each worker has tables of its own.
"""

from __future__ import annotations

from collections import OrderedDict


class Flapping:
    def __init__(
        self, max_disconnects: int = 0, window_s: float = 60, block_s: float = 300, max_clients: int = 10_000
    ) -> None:
        """`max_disconnects` 0 switches it off."""
        self._max_disconnects = max_disconnects
        self._window_s = window_s
        self._block_s = block_s
        self._max_clients = max_clients
        self._disconnects: OrderedDict[str, list[float]] = OrderedDict()
        self._blocked: OrderedDict[str, float] = OrderedDict()
        self._total_blocked = 0

    def note_disconnect(self, client_id: str, now: float) -> bool:
        """True when this was one too many: from now on the client is blocked."""
        if not self._max_disconnects:
            return False
        self._forget_old(now)
        times = self._disconnects.pop(client_id, [])
        times = [*(time for time in times if time > now - self._window_s), now]
        if len(times) >= self._max_disconnects:
            self._blocked.pop(client_id, None)
            self._blocked[client_id] = now + self._block_s
            self._total_blocked += 1
            if len(self._blocked) > self._max_clients:
                self._blocked.popitem(last=False)
            return True
        self._disconnects[client_id] = times
        if len(self._disconnects) > self._max_clients:
            self._disconnects.popitem(last=False)
        return False

    def blocked_until(self, client_id: str, now: float) -> float | None:
        """None if the client may come in."""
        until = self._blocked.get(client_id)
        return until if until is not None and now < until else None

    def forgive(self, client_id: str) -> bool:
        """Forget all about the client, as an operator may ask; True if it was blocked."""
        self._disconnects.pop(client_id, None)
        return self._blocked.pop(client_id, None) is not None

    def statistics(self) -> dict[str, int]:
        return {"watched": len(self._disconnects), "blocked": len(self._blocked), "total_blocked": self._total_blocked}

    def _forget_old(self, now: float) -> None:
        """Both tables are in the order of time, so only what goes is looked at."""
        while self._disconnects and next(iter(self._disconnects.values()))[-1] <= now - self._window_s:
            self._disconnects.popitem(last=False)
        while self._blocked and next(iter(self._blocked.values())) <= now:
            self._blocked.popitem(last=False)
