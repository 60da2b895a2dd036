"""User names and passwords, against a real store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import bcrypt
import pytest

from tbmq.auth.basic import BasicProvider, BasicSettings
from tbmq.auth.model import SKIPPED, Answer, ClientType, Denied, Granted, Login
from tbmq.auth.passwords import hash_password
from tbmq.auth.settings import SettingsError
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import BasicProof
from tests.auth.support import LostStore, entity_store, loop_lags, on_loop

RIGHT = hash_password("right")
OTHER = hash_password("other")


@contextlib.asynccontextmanager
async def basic(folder, *proofs, **settings):
    async with entity_store(folder, *proofs) as (store, credentials):
        provider = BasicProvider.from_settings(settings, store.lookup)
        try:
            yield provider, store, credentials
        finally:
            await provider.close()


def who(answer: Answer) -> str | None:
    """The credentials that let the client in."""
    return answer.principal.credentials_id if isinstance(answer, Granted) else None


def is_refused(answer: Answer) -> bool:
    return (
        isinstance(answer, Denied) and answer.reason_code is ReasonCode.BAD_USERNAME_OR_PASSWORD and not answer.is_fault
    )


@on_loop
async def test_client_is_let_in_when_name_and_password_fit(tmp_path):
    async with basic(tmp_path, BasicProof(username="u", password_hash=RIGHT)) as (provider, store, [credentials]):
        await store.credentials.replace(replace(credentials, client_type=ClientType.APPLICATION))
        answer = await provider.authenticate(Login("c", "u", b"right"))
        assert isinstance(answer, Granted)
        assert answer.principal.name == f"basic:{credentials.id}"
        assert answer.principal.client_type is ClientType.APPLICATION
        assert answer.principal.rules == credentials.rules
        assert answer.expires_at is None


@on_loop
async def test_client_is_refused_when_something_is_wrong_or_missing(tmp_path):
    proofs = BasicProof(username="u", password_hash=RIGHT), BasicProof("c2", "u2", RIGHT)
    async with basic(tmp_path, *proofs) as (provider, _, _):
        for login in (
            Login("c", "u", b"wrong"),
            Login("c", "u", b""),
            Login("c", "u"),
            Login("c", "U", b"right"),
            Login("c", "", b"right"),
            Login("c", None, b"right"),
            Login("c", "nobody", b"right"),
            Login("c", "u2", b"right"),  # the client id belongs to it
            Login("c2", None, b"right"),
            Login("c", "u", b"right\0"),
            Login("c", "u", b"right" * 1_000),
            Login("c", "u", b"\xff\xfe"),
        ):
            assert is_refused(await provider.authenticate(login)), login


@on_loop
async def test_nothing_is_said_when_nothing_is_shown(tmp_path):
    async with basic(tmp_path, BasicProof(client_id="known", password_hash=RIGHT)) as (provider, _, _):
        assert await provider.authenticate(Login("c")) is SKIPPED
        assert is_refused(await provider.authenticate(Login("known")))


@on_loop
async def test_most_specific_credentials_are_taken_when_several_fit(tmp_path):
    proofs = [
        BasicProof(username="u", password_hash=RIGHT),
        BasicProof(client_id="c", password_hash=RIGHT),
        BasicProof("c", "u", RIGHT),
    ]
    async with basic(tmp_path, *proofs) as (provider, _, [by_name, by_id, by_both]):
        for _ in range(2):  # hashed, then from the cache
            assert who(await provider.authenticate(Login("c", "u", b"right"))) == by_both.id
            assert who(await provider.authenticate(Login("c", "v", b"right"))) == by_id.id
            assert who(await provider.authenticate(Login("c", None, b"right"))) == by_id.id
            assert who(await provider.authenticate(Login("d", "u", b"right"))) == by_name.id


@on_loop
async def test_next_credentials_are_tried_when_the_password_is_that_of_others(tmp_path):
    proofs = BasicProof(client_id="c", password_hash=OTHER), BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, *proofs) as (provider, _, [by_id, by_name]):
        assert who(await provider.authenticate(Login("c", "u", b"right"))) == by_name.id
        assert who(await provider.authenticate(Login("c", "u", b"other"))) == by_id.id
        assert is_refused(await provider.authenticate(Login("c", "u", b"neither")))


@on_loop
async def test_name_alone_is_enough_when_the_credentials_ask_for_no_password(tmp_path):
    proofs = BasicProof(client_id="c"), BasicProof(username="u")
    async with basic(tmp_path, *proofs) as (provider, _, [by_id, by_name]):
        assert who(await provider.authenticate(Login("c"))) == by_id.id
        assert who(await provider.authenticate(Login("d", "u"))) == by_name.id
        assert who(await provider.authenticate(Login("d", "u", b"any"))) == by_name.id
        assert await provider.authenticate(Login("d")) is SKIPPED


@on_loop
async def test_imported_password_is_taken_when_its_hash_is_bcrypt(tmp_path):
    stored = bcrypt.hashpw(b"right", bcrypt.gensalt(4, prefix=b"2a")).decode()
    async with basic(tmp_path, BasicProof(username="u", password_hash=stored)) as (provider, _, [credentials]):
        assert who(await provider.authenticate(Login("c", "u", b"right"))) == credentials.id
        assert is_refused(await provider.authenticate(Login("c", "u", b"wrong")))


# --- what is remembered


@on_loop
async def test_password_is_hashed_once_when_the_client_comes_again(tmp_path):
    async with basic(tmp_path, BasicProof(username="u", password_hash=RIGHT)) as (provider, _, [credentials]):
        for number in range(5):
            assert who(await provider.authenticate(Login(f"c{number}", "u", b"right"))) == credentials.id
        assert provider.statistics()["hasher"]["done"] == 1
        provider.forget(credentials.id)
        assert who(await provider.authenticate(Login("c", "u", b"right"))) == credentials.id
        assert provider.statistics()["hasher"]["done"] == 2
        provider.clear()
        assert who(await provider.authenticate(Login("c", "u", b"right"))) == credentials.id
        assert provider.statistics()["hasher"]["done"] == 3


@on_loop
async def test_password_is_hashed_each_time_when_the_cache_is_off(tmp_path):
    proof = BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, proof, cache_ttl_s=0) as (provider, _, _):
        for _ in range(3):
            assert who(await provider.authenticate(Login("c", "u", b"right")))
        assert provider.statistics()["hasher"]["done"] == 3


@on_loop
async def test_old_password_is_refused_at_once_when_it_was_changed(tmp_path):
    """Even where nobody told the provider of the change."""
    proof = BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, proof) as (provider, store, [credentials]):
        assert who(await provider.authenticate(Login("c", "u", b"right")))
        assert is_refused(await provider.authenticate(Login("c", "u", b"other")))
        await store.credentials.replace(replace(credentials, proof=replace(proof, password_hash=OTHER)))
        assert is_refused(await provider.authenticate(Login("c", "u", b"right")))
        assert who(await provider.authenticate(Login("c", "u", b"other"))) == credentials.id
        await store.credentials.remove(credentials.name)
        assert is_refused(await provider.authenticate(Login("c", "u", b"other")))


@on_loop
async def test_refusal_costs_the_same_work_when_the_name_does_not_exist(tmp_path):
    """Hashes are counted, not seconds: who does not exist is hashed and remembered as who does."""
    async with basic(tmp_path, BasicProof(username="known", password_hash=RIGHT)) as (provider, _, _):

        async def hashes(login: Login) -> int:
            before = provider.statistics()["hasher"]["done"]
            assert is_refused(await provider.authenticate(login))
            return provider.statistics()["hasher"]["done"] - before

        for name in ("known", "unknown"):
            assert await hashes(Login("c1", name, b"wrong")) == 1
            assert await hashes(Login("c1", name, b"wrong")) == 0
            assert await hashes(Login("c2", name, b"wrong")) == 1
            assert await hashes(Login("c2", name, b"wronger")) == 1
            assert await hashes(Login("c2", name)) == 0
            assert await hashes(Login("c2", name, b"x" * 2_000)) == 0


@on_loop
async def test_one_hash_is_enough_when_a_fleet_with_one_password_comes_at_once(tmp_path):
    proof = BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, proof, max_waiting=200) as (provider, _, [credentials]):
        began = time.process_time()
        answers = await asyncio.gather(
            *(provider.authenticate(Login(f"c{number}", "u", b"right")) for number in range(200))
        )
        assert {who(answer) for answer in answers} == {credentials.id}
        assert time.process_time() - began < 1.5  # 200 hashes take three seconds


# --- storms and faults


@on_loop
async def test_client_is_told_to_come_later_when_too_many_wait(tmp_path):
    proof = BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, proof, max_waiting=1) as (provider, _, _):
        answers = await asyncio.gather(
            *(provider.authenticate(Login(f"c{number}", "u", b"wrong")) for number in range(20))
        )
        busy = [answer for answer in answers if isinstance(answer, Denied) and answer.is_fault]
        assert busy and {answer.reason_code for answer in busy} == {ReasonCode.SERVER_BUSY}
        assert all(is_refused(answer) for answer in answers if answer not in busy)
        assert provider.statistics()["hasher"]["waiting"] == 0


@on_loop
async def test_known_clients_come_in_quickly_when_a_storm_of_wrong_passwords_runs(tmp_path):
    proof = BasicProof(username="u", password_hash=RIGHT)
    async with basic(tmp_path, proof, max_waiting=64) as (provider, _, [credentials]):
        assert who(await provider.authenticate(Login("good", "u", b"right")))
        async with loop_lags() as lags:
            storm = asyncio.gather(
                *(provider.authenticate(Login(f"c{number}", "u", b"wrong")) for number in range(1_000))
            )
            while not storm.done():
                assert who(await provider.authenticate(Login("good", "u", b"right"))) == credentials.id
                await asyncio.sleep(0.01)
        assert all(isinstance(answer, Denied) for answer in storm.result())
        late = sorted(lags)
        assert late[int(len(late) * 0.95)] < 0.05


@on_loop
async def test_client_is_refused_as_a_fault_when_the_database_is_gone():
    provider = BasicProvider(LostStore())
    for login in (Login("c"), Login("c", "u", b"right")):
        answer = await provider.authenticate(login)
        assert isinstance(answer, Denied) and answer.is_fault
        assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    await provider.close()


@pytest.mark.parametrize("settings", [{"hash_threads": 0}, {"hash_threads": "many"}, {"cache": 5}, {"max_waiting": -1}])
def test_settings_are_refused_by_name_when_they_are_wrong(settings):
    [name] = settings
    with pytest.raises(SettingsError, match=rf"^basic\.{name}: "):
        BasicProvider.from_settings(settings, store=None)


def test_settings_cannot_change():
    with pytest.raises(ValueError, match="frozen"):
        BasicSettings().max_waiting = 3


def test_password_is_not_in_the_text_of_a_login():
    assert "hunter2" not in repr(Login("c", "u", b"hunter2"))
