"""Rate limits as TBMQ writes them: `100:1,2000:60` is 100 in 1 second and 2,000 in 60 seconds.

Each window is a token bucket that holds `limit` tokens and gets `limit / seconds` back per second; what is to pass
takes its tokens from all buckets, or from none. For a window `L:S` this guarantees, whatever the times:

  - in any span of T seconds at most L * (1 + T / S) pass: L at once, 2 L within any S seconds, L per S in the long run;
  - whoever stays within L in every span of S seconds is never refused.

Both hold to within the rounding of floating point times (`ROUNDING`, a millionth of a message).
To let exactly L pass in every span of S would need the time of each message; the bucket needs one number per window,
which the engine can keep for each connection.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

MAX_WINDOWS = 4  # as in the engine
MAX_LIMIT = 1_000_000_000
MAX_SECONDS = 31_536_000  # a year
WINDOW = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
ROUNDING = 1e-6  # of a token; sums of floating point numbers are never quite what they should be


class Window(NamedTuple):
    limit: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.limit}:{self.seconds}"


def parse_rate_limits(text: str) -> tuple[Window, ...]:
    """Empty text: no limits. Raises ValueError, with a reason for the operator."""
    if not text.strip():
        return ()
    windows: list[Window] = []
    for part in text.split(","):
        found = WINDOW.fullmatch(part.strip())
        if not found:
            raise ValueError(f"a rate limit is limit:seconds, such as 100:1,2000:60; got {part.strip()[:50]!r}")
        window = Window(int(found[1]), int(found[2]))
        if not 1 <= window.limit <= MAX_LIMIT:
            raise ValueError(f"the limit of {window} must be 1 to {MAX_LIMIT:,}")
        if not 1 <= window.seconds <= MAX_SECONDS:
            raise ValueError(f"the seconds of {window} must be 1 to {MAX_SECONDS:,}")
        if any(window.seconds == other.seconds for other in windows):
            raise ValueError(f"there are two limits for {window.seconds} s; keep the smaller one")
        windows.append(window)
    if len(windows) > MAX_WINDOWS:
        raise ValueError(f"{len(windows)} rate limits are too many; at most {MAX_WINDOWS} can be given")
    return tuple(windows)


class RateLimit:
    """The buckets of one key. `now` is of a monotonic clock; should it go back, nothing is given for that time."""

    __slots__ = ("_filled_at", "_tokens", "_windows")

    def __init__(self, windows: Sequence[Window], now: float) -> None:
        self._windows = windows
        self._tokens = [float(window.limit) for window in windows]
        self._filled_at = now

    def try_take(self, n: int, now: float) -> bool:
        """Take n from every bucket, or nothing from any. More than the smallest limit at once never passes."""
        elapsed_s = now - self._filled_at
        tokens = self._tokens
        if elapsed_s > 0:
            self._filled_at = now
            for index, (limit, seconds) in enumerate(self._windows):
                tokens[index] = min(limit, tokens[index] + elapsed_s * limit / seconds)
        for available in tokens:
            if available + ROUNDING < n:
                return False
        for index in range(len(tokens)):
            tokens[index] -= n
        return True


class Limits:
    """A limit for each key (an address, a client id), for at most `max_keys`; over it the longest unused is forgotten.

    A key that comes back after that begins with full buckets. After the longest window without use they would be full
    anyway, so this lets more pass only if more than `max_keys` keys are busy within that time.
    """

    __slots__ = ("_buckets", "_max_keys", "_windows")

    def __init__(self, windows: Sequence[Window], max_keys: int = 100_000) -> None:
        self._windows = tuple(windows)
        self._max_keys = max_keys
        self._buckets: OrderedDict[Hashable, RateLimit] = OrderedDict()

    def try_take(self, key: Hashable, n: int, now: float) -> bool:
        if not self._windows:
            return True
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = RateLimit(self._windows, now)
            if len(self._buckets) > self._max_keys:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.try_take(n, now)

    def forget(self, key: Hashable) -> None:
        self._buckets.pop(key, None)

    def __len__(self) -> int:
        return len(self._buckets)
