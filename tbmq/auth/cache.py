"""Logins that were verified a short while ago, so that a fleet that comes back does not cost a hash each.

    digest of (credentials id, stored hash, password) ──▶ Entry(good until, credentials id)    least recently used first
    credentials id ──▶ its digests                                                             for `forget`

No password is kept: the key is a digest with a random key of this process, of no use outside it. The stored hash is
part of it, so a changed password makes old entries unreachable even where nobody calls `forget`. Wrong passwords are
remembered in a small cache of their own, so that right ones can never be pushed out by them. Their digest has what the
client calls itself instead of the credentials id: a name that does not exist is remembered as one that does, and the
time of an answer tells nobody which it was.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

_DIGEST_BYTES = 24


class Entry(NamedTuple):
    good_until: float
    owner: str


class DigestCache:
    """A bounded set of digests, each for `ttl_s` and with an owner. Runs on the loop; `holds` may run on any thread."""

    def __init__(self, max_entries: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._key = os.urandom(64)
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._by_owner: dict[str, set[bytes]] = {}
        self._hits = 0
        self._misses = 0

    def digest(self, *parts: bytes) -> bytes:
        """Lengths go in too: ("ab", "c") and ("a", "bc") differ."""
        state = hashlib.blake2b(key=self._key, digest_size=_DIGEST_BYTES)
        for part in parts:
            state.update(len(part).to_bytes(8, "big"))
            state.update(part)
        return state.digest()

    def holds(self, digest: bytes) -> bool:
        """Only looks: no order or count changes."""
        entry = self._entries.get(digest)
        return entry is not None and self._clock() < entry.good_until

    def find(self, digest: bytes) -> bool:
        entry = self._entries.get(digest)
        if entry is None:
            self._misses += 1
            return False
        if self._clock() >= entry.good_until:
            self._misses += 1
            self._remove(digest)
            return False
        self._entries.move_to_end(digest)
        self._hits += 1
        return True

    def add(self, digest: bytes, owner: str = "") -> None:
        """Its time counts from now; a second time does not prolong an entry that stands."""
        if self._max_entries == 0 or self._ttl_s == 0 or self.holds(digest):
            return
        if digest in self._entries:
            self._remove(digest)
        while len(self._entries) >= self._max_entries:
            self._remove(next(iter(self._entries)))
        self._entries[digest] = Entry(self._clock() + self._ttl_s, owner)
        if owner:
            self._by_owner.setdefault(owner, set()).add(digest)

    def forget(self, owner: str) -> None:
        for digest in self._by_owner.pop(owner, set()):
            del self._entries[digest]

    def clear(self) -> None:
        self._entries.clear()
        self._by_owner.clear()

    def statistics(self) -> dict[str, int]:
        return {"entries": len(self._entries), "hits": self._hits, "misses": self._misses}

    def _remove(self, digest: bytes) -> None:
        owner = self._entries.pop(digest).owner
        if owner:
            siblings = self._by_owner[owner]
            siblings.discard(digest)
            if not siblings:
                del self._by_owner[owner]
