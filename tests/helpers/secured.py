"""A broker with authentication, and its entity store as the operator has it: by the command line, or opened directly.

    run_secured ──▶ Entities.do(...)      before the broker starts, and while it runs
                ──▶ Secured.client(...)   MQTT clients, closed at the end

The client that asks whether the broker is up needs credentials, too: `is-it-up`, without a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import scramp

from tbmq.auth.model import ClientType
from tbmq.auth.passwords import hash_password
from tbmq.auth.scram import MECHANISMS, make_keys
from tbmq.cli.rules import parse_rules
from tbmq.config import Config
from tbmq.packets import Auth, Connack, Connect
from tbmq.protocol import MQTT_5
from tbmq.storage.entities import (
    BasicProof,
    Blocked,
    BlockedKind,
    Credentials,
    Json,
    Proof,
    ProviderKind,
    ScramProof,
    X509Proof,
)
from tbmq.storage.interfaces import EntityStore
from tbmq.storage.sql import open_entities
from tests.helpers.broker import Broker, run_broker
from tests.helpers.client import Client

T = TypeVar("T")

PATIENCE_S = 10.0
BITES_S = 2.0
"""A change must be in force by then. Half a second is promised; the rest is for a loaded machine."""

_numbers = itertools.count(1)


class Entities:
    """Each call opens the store, does its work, and closes it, as a command does."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def do(self, work: Callable[[EntityStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = await open_entities(Config(data_dir=self.data_dir))
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def command(self, *words: str, text: str = "", code: int = 0) -> str:
        """`tbmq words...`, with this on standard input; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "tbmq", *words, "--set", f"data_dir={self.data_dir}"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == code, f"tbmq {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    # --- credentials; rules are texts such as "allow publish:a/#", none of them: all is allowed ---

    def add(self, name: str, proof: Proof, *rules: str, client_type: ClientType = ClientType.DEVICE) -> str:
        """Their name."""
        credentials = Credentials(name, proof, client_type, parse_rules(list(rules)))
        self.do(lambda store: store.credentials.add([credentials]))
        return name

    def add_basic(
        self,
        *rules: str,
        client_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        **more: Any,
    ) -> str:
        hashed = None if password is None else hash_password(password)
        return self.add(new_name("basic"), BasicProof(client_id, username, hashed), *rules, **more)

    def add_x509(self, common_name: str, *rules: str, is_regex: bool = False, is_whole_chain: bool = False) -> str:
        return self.add(new_name("x509"), X509Proof(common_name, is_regex, is_whole_chain), *rules)

    def add_scram(self, username: str, password: str, *rules: str) -> str:
        keys = tuple(make_keys(password, mechanism) for mechanism in MECHANISMS)
        return self.add(new_name("scram"), ScramProof(username, keys), *rules)

    def change(self, name: str, change: Callable[[Credentials], Credentials]) -> None:
        async def work(store: EntityStore) -> None:
            found = await store.credentials.find(name)
            assert found is not None
            await store.credentials.replace(change(found))

        self.do(work)

    def set_rules(self, name: str, *rules: str) -> None:
        self.change(name, lambda found: replace(found, rules=parse_rules(list(rules))))

    def remove(self, name: str) -> None:
        self.do(lambda store: store.credentials.remove(name))

    # --- providers and blocked clients ---

    def provide(self, kind: str, is_enabled: bool = True, /, **settings: Json) -> None:
        async def work(store: EntityStore) -> None:
            if settings:
                await store.providers.set_settings(ProviderKind(kind), settings)
            await store.providers.set_enabled(ProviderKind(kind), is_enabled)

        self.do(work)

    def order(self, *kinds: str) -> None:
        self.do(lambda store: store.providers.order([ProviderKind(kind) for kind in kinds]))

    def block(self, kind: str, value: str, **more: Any) -> Blocked:
        return self.do(lambda store: store.blocked.put(Blocked(BlockedKind(kind), value, **more)))

    def unblock(self, blocked: Blocked) -> None:
        self.do(lambda store: store.blocked.remove(blocked.id))


@dataclass
class Secured:
    broker: Broker
    entities: Entities
    made: list[Client] = field(default_factory=list)

    def new_id(self, worker: int = 0) -> str:
        """A client id that nobody had, owned by this worker."""
        while True:
            client_id = new_name("c")
            if zlib.crc32(client_id.encode()) % self.broker.workers == worker % self.broker.workers:
                return client_id

    def client(self, client_id: str | None = None, level: int = MQTT_5, worker: int | None = None) -> Client:
        """Not connected yet. Without a name or a worker, one client after the other lives on the next worker."""
        if client_id is None:
            client_id = self.new_id(len(self.made) if worker is None else worker)
        self.made.append(Client(self.broker.address, client_id, level=level))
        return self.made[-1]

    def login(self, *rules: str, client_id: str | None = None, level: int = MQTT_5, **fields: Any) -> Client:
        """A connected client with Basic credentials of its own, whose name is then in `credentials`."""
        client = self.client(client_id, level)
        client.username = f"user of {client.client_id}"  # type: ignore[attr-defined]
        client.credentials = self.entities.add_basic(  # type: ignore[attr-defined]
            *rules, client_id=client.client_id, username=client.username, password="right"
        )
        connect(client, **fields)
        return client

    def wait_for_changes(self, worker: int | None = None) -> None:
        """Until this worker, or each, has taken up all that was changed before: credentials that are made and removed
        now end a client of it."""
        for number in range(self.broker.workers) if worker is None else [worker]:
            witness = self.client(worker=number)
            name = self.entities.add_basic(client_id=witness.client_id)
            witness.connect()
            self.entities.remove(name)
            witness.expect_disconnect(0x87, BITES_S)

    def close_clients(self) -> None:
        for client in self.made:
            client.close()
        self.made.clear()


def connect(client: Client, **fields: Any) -> Connack:
    """A client of `login`, again."""
    return client.connect(username=client.username, password=b"right", **fields)  # type: ignore[attr-defined]


@contextlib.contextmanager
def run_secured(
    folder: Path,
    *providers: str,
    workers: int = 1,
    settings: Mapping[str, object] | None = None,
    prepare: Callable[[Entities], None] = lambda entities: None,
    **more: Any,
) -> Iterator[Secured]:
    """With these providers on, Basic always and first, unless `prepare` says otherwise."""
    entities = Entities(folder / "data")
    if not (folder / "data").exists():
        entities.add("is-it-up", BasicProof("is-it-up"))
        for kind in ("basic", *providers):
            entities.provide(kind)
    prepare(entities)
    with run_broker(folder, workers=workers, settings=settings, **more) as broker:
        secured = Secured(broker, entities)
        try:
            yield secured
        finally:
            secured.close_clients()


def new_name(kind: str) -> str:
    return f"{kind}{next(_numbers)}"


def eventually(condition: Callable[[], Any], within_s: float = PATIENCE_S, what: str = "") -> Any:
    """Waits until it holds; what it answered."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what or condition} did not come true in {within_s} s"
        time.sleep(0.02)
    return found


# --- SCRAM, by a client that we did not write ---


def scram_begin(
    client: Client,
    username: str,
    password: str,
    method: str,
    properties: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> scramp.ScramClient:
    """CONNECT with the first message, and with more properties and fields. Nothing is read."""
    scram = scramp.ScramClient([method], username, password)
    first = {"authentication_method": method, "authentication_data": scram.get_client_first().encode()}
    client.open()
    client.send(Connect(client.client_id, properties={**first, **(properties or {})}, **(fields or {})))
    return scram


def scram_answer(client: Client, scram: scramp.ScramClient, method: str) -> bytes:
    """Takes the challenge and answers it; the answer."""
    challenge = client.expect(Auth, reason_code=0x18)
    assert challenge.properties["authentication_method"] == method
    scram.set_server_first(challenge.properties["authentication_data"].decode())
    final: bytes = scram.get_client_final().encode()
    client.send(auth(method, final))
    return final


def scram_connect(
    client: Client, username: str, password: str, method: str = "SCRAM-SHA-256", code: int = 0, **more: Any
) -> Connack:
    scram = scram_begin(client, username, password, method, **more)
    scram_answer(client, scram, method)
    connack = client.expect(Connack, reason_code=code)
    if code == 0:
        assert connack.properties["authentication_method"] == method
        scram.set_server_final(connack.properties["authentication_data"].decode())  # the broker's own proof
    return connack


def auth(method: str | None, data: bytes | None, code: int = 0x18) -> Auth:
    properties: dict[str, Any] = {}
    if method is not None:
        properties["authentication_method"] = method
    if data is not None:
        properties["authentication_data"] = data
    return Auth(code, properties)
