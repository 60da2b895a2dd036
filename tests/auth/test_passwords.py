"""Hashes of passwords, and the threads that verify them."""

from __future__ import annotations

import asyncio
import threading
import time

import bcrypt
import pytest

from tbmq.auth.passwords import (
    MAX_PASSWORD_BYTES,
    NOBODY,
    Hasher,
    HasherBusy,
    hash_password,
    is_known_hash,
    verify_password,
)
from tests.auth.support import loop_lags, on_loop

BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def test_password_is_verified_when_it_was_hashed_here():
    stored = hash_password("päss")
    assert stored.startswith("$argon2id$")
    assert verify_password(stored, "päss".encode())
    assert not verify_password(stored, b"pass")
    assert not verify_password(stored, b"")
    assert hash_password("päss") != stored


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_password_is_verified_when_its_hash_is_bcrypt(prefix):
    stored = prefix + BCRYPT[4:]
    assert verify_password(stored, b"secret")
    assert not verify_password(stored, b"Secret")


def test_long_password_is_verified_when_bcrypt_saw_only_its_beginning():
    stored = bcrypt.hashpw(b"a" * 72, bcrypt.gensalt(4)).decode()
    assert verify_password(stored, b"a" * 100)
    assert not verify_password(stored, b"a" * 71)


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "secret",
        "$2x$" + BCRYPT[4:],
        "$2b$31$" + BCRYPT[7:],  # would take days
        "$2b$03$" + BCRYPT[7:],
        BCRYPT[:-1],
        BCRYPT + "\n",
        "$argon2id$",
        "$argon2id$v=19$m=4194304,t=5,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo",  # 4 GiB
        "$argon2id$v=19$m=7168,t=1000000,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo",
        "$argon2i$v=19$m=7168,t=5,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo",
        "$argon2id$v=19$m=7168,t=5,p=1$c2FsdHNhbHQ$" + "a" * 1_000,
        "$6$salt$hash",
        "ünknown",
    ],
)
def test_nothing_is_right_when_the_hash_is_damaged_or_of_another_kind(stored):
    began = time.monotonic()
    assert not is_known_hash(stored)
    assert not verify_password(stored, b"secret")
    assert time.monotonic() - began < 1


def test_damaged_argon2_hash_is_refused_when_its_form_looks_right():
    assert not verify_password("$argon2id$v=19$m=7168,t=5,p=1$!!!!$!!!!", b"secret")


def test_password_is_bounded_when_hashed_and_verified():
    longest = "x" * MAX_PASSWORD_BYTES
    stored = hash_password(longest)
    assert verify_password(stored, longest.encode())
    assert not verify_password(stored, longest.encode() + b"x")
    with pytest.raises(ValueError, match="longer than"):
        hash_password(longest + "x")
    with pytest.raises(ValueError, match="empty"):
        hash_password("")


def test_hash_of_nobody_costs_as_much_when_verified():
    def cost(stored: str) -> float:
        began = time.process_time()
        for _ in range(5):
            assert not verify_password(stored, b"wrong")
        return time.process_time() - began

    somebody = hash_password("right")
    assert is_known_hash(NOBODY)
    assert 0.5 < cost(NOBODY) / cost(somebody) < 2


# --- threads


@on_loop
async def test_answer_comes_from_another_thread_when_verified_by_the_hasher():
    hasher = Hasher()
    try:
        assert await hasher.verify(hash_password("right"), b"right")
        assert not await hasher.verify(hash_password("right"), b"wrong")
        assert await hasher.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await hasher.run(lambda: 1 // 0)
        assert hasher.statistics() == {"waiting": 0, "done": 4, "refused": 0}
    finally:
        await hasher.close()


@on_loop
async def test_work_is_refused_at_once_when_the_queue_is_full():
    hasher = Hasher(threads=1, max_waiting=3)
    go = threading.Event()
    try:
        waiting = [asyncio.create_task(hasher.run(go.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(HasherBusy, match="3 logins wait"):
            await hasher.run(go.wait)
        go.set()
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert await hasher.run(go.is_set)
        assert hasher.statistics()["refused"] == 1
    finally:
        go.set()
        await hasher.close()


@on_loop
async def test_given_up_work_is_skipped_and_keeps_its_place_when_its_turn_has_not_come():
    hasher = Hasher(threads=1, max_waiting=2)
    go, ran = threading.Event(), []
    try:
        first = asyncio.create_task(hasher.run(go.wait))
        second = asyncio.create_task(hasher.run(lambda: ran.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        with pytest.raises(HasherBusy):
            await hasher.run(go.is_set)
        go.set()
        await first
        while hasher.statistics()["waiting"]:
            await asyncio.sleep(0.001)
        assert await hasher.run(lambda: "third") == "third"
        assert ran == []
    finally:
        go.set()
        await hasher.close()


@on_loop
async def test_who_waits_is_told_when_the_hasher_closes():
    hasher = Hasher(threads=1)
    began, go = threading.Event(), threading.Event()

    def block() -> bool:
        began.set()
        return go.wait()

    running = asyncio.create_task(hasher.run(block))
    while not began.is_set():
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(hasher.run(go.wait))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, go.set)
    await hasher.close()
    for task in (running, waiting):
        with pytest.raises(HasherBusy, match="stopping"):
            await task


@on_loop
async def test_loop_stays_quick_when_a_storm_of_wrong_passwords_arrives():
    """2,000 at once: most are refused, the rest is hashed for seconds. The bound is generous, for a busy machine."""
    hasher = Hasher(max_waiting=64)
    stored = hash_password("right")
    try:
        async with loop_lags() as lags:
            answers = await asyncio.gather(
                *(hasher.verify(stored, b"wrong %d" % number) for number in range(2_000)), return_exceptions=True
            )
        assert answers.count(False) == 64
        assert sum(isinstance(answer, HasherBusy) for answer in answers) == 2_000 - 64
        late = sorted(lags)
        assert len(late) > 50
        assert late[int(len(late) * 0.99)] < 0.05
    finally:
        await hasher.close()
