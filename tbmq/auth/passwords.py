"""Passwords: hashed, verified, and verified away from the loop.

    loop ── run(work) ──▶ [ job | job | ... ] ──▶ 1 thread (or 2), below the loop's priority
      ▲                     at most `max_waiting`          │
      └───────────────── answer, call_soon_threadsafe ─────┘

A hash is made slow on purpose, so whoever sends wrong passwords spends our time. What bounds it: the threads are few
and yield the core to the loop, argon2 and bcrypt run without the interpreter's lock, and a full queue refuses at once.
A job whose login was given up keeps its place until its turn comes and is skipped then: so the queue is never longer
than it claims, whatever clients do.

New hashes are argon2id with 7 MiB and 5 passes, one of the settings of equal strength that OWASP lists: about 15 ms,
and the one with the least memory, which leaves most of the shared cache to the loop. Verified are also hashes of other
argon2id settings and of bcrypt, as imports bring them, up to a cost that cannot hold the thread for long.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import argon2
import bcrypt
from argon2.exceptions import Argon2Error, InvalidHashError

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_PASSWORD_BYTES = 1_024
MAX_HASH_CHARACTERS = 512
NICENESS = 10  # about a tenth of the core when the loop wants all of it, the whole core when it does not

_TIME_COST, _MEMORY_KIB, _PARALLELISM = 5, 7_168, 1
_MAX_TIME_COST, _MAX_MEMORY_KIB, _MAX_PARALLELISM = 16, 131_072, 16
_MAX_BCRYPT_COST = 14  # about a second
_BCRYPT_BYTES = 72  # bcrypt has never looked further; the library refuses longer ones, their hashes exist all the same

_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}", re.ASCII)
_HASHER = argon2.PasswordHasher(_TIME_COST, _MEMORY_KIB, _PARALLELISM, type=argon2.Type.ID)


def hash_password(text: str) -> str:
    """An argon2id hash. Takes some 15 ms: not for the loop. ValueError for an empty password and one out of bounds."""
    password = text.encode("utf-8")
    if not password:
        raise ValueError("the password is empty")
    if len(password) > MAX_PASSWORD_BYTES:
        raise ValueError(f"the password is longer than {MAX_PASSWORD_BYTES} bytes")
    return _HASHER.hash(password)


def is_known_hash(stored: str) -> bool:
    """Whether `verify_password` can ever say yes: a form that it knows, at a cost that it takes."""
    if len(stored) > MAX_HASH_CHARACTERS:
        return False
    if bcrypt_form := _BCRYPT.fullmatch(stored):
        return 4 <= int(bcrypt_form[1]) <= _MAX_BCRYPT_COST
    if not stored.startswith("$argon2id$"):
        return False
    try:
        cost = argon2.extract_parameters(stored)
    except InvalidHashError:
        return False
    return (
        1 <= cost.time_cost <= _MAX_TIME_COST
        and 8 <= cost.memory_cost <= _MAX_MEMORY_KIB
        and 1 <= cost.parallelism <= _MAX_PARALLELISM
    )


def verify_password(hash: str, password: bytes) -> bool:
    """Compares in constant time. False for a hash of another kind, a damaged one, and a password out of bounds."""
    if len(password) > MAX_PASSWORD_BYTES or not is_known_hash(hash):
        return False
    if hash.startswith("$2"):
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hash.encode("ascii"))
    try:
        return _HASHER.verify(hash, password)
    except (Argon2Error, InvalidHashError):
        return False


def _random_text(length: int) -> str:
    return base64.b64encode(os.urandom(length)).decode("ascii").rstrip("=")


NOBODY = f"$argon2id$v=19$m={_MEMORY_KIB},t={_TIME_COST},p={_PARALLELISM}${_random_text(16)}${_random_text(32)}"
"""The hash of no password. Verified when nobody has the name: it costs what a wrong password of somebody costs."""


class HasherBusy(Exception):
    """More work waits than the threads can do in good time."""


class Hasher:
    """Runs slow work of logins on a few threads of low priority. Belongs to one loop; made after the fork."""

    def __init__(self, threads: int = 1, max_waiting: int = 256) -> None:
        self._max_waiting = max_waiting
        self._answers: set[asyncio.Future[Any]] = set()  # of the jobs that wait or run, given up or not
        self._done = 0
        self._refused = 0
        self._threads = ThreadPoolExecutor(threads, "hasher", initializer=_lower_priority)

    async def verify(self, hash: str, password: bytes) -> bool:
        """`verify_password` elsewhere; HasherBusy when too many wait."""
        return await self.run(lambda: verify_password(hash, password))

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; HasherBusy when too many wait. Cancelled before its turn, it is skipped."""
        if len(self._answers) >= self._max_waiting:
            self._refused += 1
            raise HasherBusy(f"{len(self._answers)} logins wait for a thread that checks them")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(set_answer: Callable[[], object]) -> None:
            self._answers.discard(answer)
            self._done += 1
            if not answer.done():
                set_answer()

        def job() -> None:
            if answer.done():
                loop.call_soon_threadsafe(settle, answer.cancel)
                return
            try:
                result = work()
            except Exception as error:
                loop.call_soon_threadsafe(settle, partial(answer.set_exception, error))
            else:
                loop.call_soon_threadsafe(settle, partial(answer.set_result, result))

        self._threads.submit(job)
        self._answers.add(answer)
        return await answer

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._answers), "done": self._done, "refused": self._refused}

    async def close(self) -> None:
        """Refuses what waits and lets what runs end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(HasherBusy("the broker is stopping"))
        self._answers.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)


def _lower_priority() -> None:
    """Linux has a priority per thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError as error:
        log.warning("threads that check passwords run at the priority of everything else: %s", error)
