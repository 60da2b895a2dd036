"""The order of providers, and what happens when one of them fails. The providers here have set answers."""

from __future__ import annotations

import asyncio
import logging
import timeit

import pytest

from tbmq.auth.chain import Chain
from tbmq.auth.model import ALLOW_ALL, SKIPPED, Answer, ClientType, Denied, Granted, Login, Principal
from tbmq.protocol import ReasonCode
from tests.auth.support import on_loop

LOGIN = Login("c", "u", b"hunter2")
NO = Denied("no")


def yes(name: str, client_type: ClientType = ClientType.DEVICE, expires_at: float | None = None) -> Granted:
    return Granted(Principal(name, client_type, ALLOW_ALL), expires_at)


class Says:
    """Answers what it was made with; raises it if it is an exception, waits for it if it is an event."""

    def __init__(self, name: str, answer: Answer | Exception | asyncio.Event) -> None:
        self.name = name
        self.answer = answer
        self.asked = 0
        self.is_closed = False

    async def authenticate(self, login: Login) -> Answer:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
            return NO
        return self.answer

    async def close(self) -> None:
        self.is_closed = True


@on_loop
async def test_everybody_is_let_in_as_a_device_when_there_is_no_provider():
    chain = Chain([])
    answer = await chain.authenticate(LOGIN)
    assert answer == yes("anonymous")
    assert chain.try_now(LOGIN) == answer


def test_answer_without_waiting_takes_less_than_a_microsecond():
    chain = Chain([])
    seconds = min(timeit.repeat(lambda: chain.try_now(LOGIN), number=10_000, repeat=20)) / 10_000
    assert seconds < 1e-6


@on_loop
async def test_first_that_does_not_skip_decides():
    skips, grants, denies = Says("basic", SKIPPED), Says("x509", yes("x509:1")), Says("jwt", NO)
    chain = Chain([skips, grants, denies])
    assert chain.try_now(LOGIN) is None
    assert await chain.authenticate(LOGIN) == yes("x509:1")
    assert denies.asked == 0
    assert await Chain([skips, denies, grants]).authenticate(LOGIN) is NO
    assert chain.statistics() == {"chain": {"under_way": 0}, "basic": {"skipped": 1}, "x509": {"granted": 1}}


@on_loop
async def test_client_is_refused_when_all_skip():
    chain = Chain([Says("basic", SKIPPED), Says("jwt", SKIPPED)])
    answer = await chain.authenticate(LOGIN)
    assert isinstance(answer, Denied) and not answer.is_fault
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    assert chain.statistics()["chain"]["unknown"] == 1


@pytest.mark.parametrize(
    ("others", "expected"),
    [([], "DEVICE"), (["http"], "DEVICE"), (["basic"], "APPLICATION"), (["x509"], "APPLICATION")],
)
def test_client_is_a_device_when_neither_basic_nor_x509_is_on(others, expected):
    grant = yes("jwt:s", ClientType.APPLICATION, expires_at=5.0)
    chain = Chain([*(Says(name, SKIPPED) for name in others), Says("jwt", grant)])
    answer = asyncio.run(chain.authenticate(LOGIN))
    assert answer == yes("jwt:s", ClientType(expected), expires_at=5.0)


@on_loop
async def test_client_is_refused_and_no_secret_logged_when_a_provider_raises(caplog):
    after = Says("jwt", yes("jwt:s"))
    chain = Chain([Says("http", RuntimeError("it was hunter2")), after])
    with caplog.at_level(logging.DEBUG):
        answer = await chain.authenticate(LOGIN)
    assert isinstance(answer, Denied) and answer.is_fault
    assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    assert after.asked == 0
    assert "hunter2" not in caplog.text + answer.reason
    assert "RuntimeError" in caplog.text and "test_chain.py" in caplog.text
    assert chain.statistics()["http"] == {"error": 1}


@on_loop
async def test_client_is_refused_when_the_providers_take_too_long():
    chain = Chain([Says("http", asyncio.Event())], timeout_s=0.01)
    answer = await chain.authenticate(LOGIN)
    assert isinstance(answer, Denied) and answer.is_fault
    assert "0.01 s" in answer.reason
    assert chain.statistics()["chain"] == {"under_way": 0, "timeout": 1}


@on_loop
async def test_client_is_told_to_come_later_when_too_many_are_under_way():
    go = asyncio.Event()
    chain = Chain([Says("http", go)], max_under_way=2)
    waiting = [asyncio.create_task(chain.authenticate(LOGIN)) for _ in range(2)]
    await asyncio.sleep(0)
    answer = await chain.authenticate(LOGIN)
    assert isinstance(answer, Denied) and answer.is_fault and answer.reason_code is ReasonCode.SERVER_BUSY
    waiting[0].cancel()  # its client went away
    await asyncio.wait(waiting[:1])
    third = asyncio.create_task(chain.authenticate(LOGIN))
    go.set()
    assert await waiting[1] is NO and await third is NO
    assert chain.statistics() == {"chain": {"under_way": 0, "busy": 1}, "http": {"denied": 2}}


@on_loop
async def test_all_are_closed_when_one_cannot_be():
    class Stubborn(Says):
        async def close(self) -> None:
            raise OSError("stuck")

    last = Says("jwt", SKIPPED)
    with pytest.raises(OSError, match="stuck"):
        await Chain([Stubborn("http", SKIPPED), last]).close()
    assert last.is_closed
