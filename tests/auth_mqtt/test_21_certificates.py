"""X.509: client certificates over TLS and WSS, also of clients that another worker owns."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import each_level
from tests.helpers.certificates import Authority, Certificate
from tests.helpers.chains import Intermediate
from tests.helpers.secured import BITES_S, Entities, Secured, eventually, new_name
from tests.helpers.transports import TransportClient, Transports, run_transports

KINDS = ["tls", "wss"]


@dataclass
class Certified(Secured):
    transports: Transports | None = None
    authority: Authority | None = None  # of clients
    intermediate: Intermediate | None = None
    revoked: Certificate | None = None

    def show(self, kind: str, certificate: Certificate | None, worker: int = 0, **more: Any) -> TransportClient:
        """A client with this certificate, not connected yet."""
        assert self.transports is not None
        more.setdefault("context", self.transports.authority.client_context(certificate))
        client_id = more.pop("client_id", None) or self.new_id(worker)
        return self.transports.client(kind, client_id, **more)


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    folder: Path = tmp_path_factory.mktemp("certified")
    authority = Authority(folder / "clients", "Client Root")
    intermediate = Intermediate(folder / "plant", authority, "Plant 7")
    revoked = authority.issue("revoked")
    crl = folder / "crl.pem"
    crl.write_bytes(authority.revoke([revoked]).read_bytes() + intermediate.revoke([]).read_bytes())
    entities = Entities(folder / "broker" / "data")
    entities.command("credentials", "add", "up", "--client-id", "is-it-up", "--no-password")
    entities.command("provider", "enable", "basic")
    entities.command("provider", "enable", "x509")
    files = {"ca": authority.path, "crl": crl}
    settings = {f"listeners__{kind}__{key}": path for kind in KINDS for key, path in files.items()}
    with run_transports(folder, request.param, **settings) as transports:
        yield Certified(transports.broker, entities, [], transports, authority, intermediate, revoked)


@pytest.fixture
def certified(started: Certified) -> Iterator[Certified]:
    start = started.broker.log_bytes()
    yield started
    assert started.transports is not None
    started.transports.close_clients()
    started.close_clients()
    started.broker.assert_healthy(since=start)


each_kind = pytest.mark.parametrize("kind", KINDS)
each_worker = pytest.mark.parametrize("worker", [0, 1, 2])


@each_kind
@each_worker
@each_level
def test_comes_in_when_the_common_name_is_known(certified: Certified, kind, worker, level):
    name = new_name("pump")
    certified.entities.add_x509(name)
    certified.show(kind, certified.authority.issue(name), worker, level=level).connect()


@each_kind
@each_worker
def test_is_refused_when_no_credentials_are_for_the_common_name(certified: Certified, kind, worker):
    name = new_name("pump")
    certified.entities.add_x509(name)
    for other in (f"{name}x", name.upper(), f"x{name}"):
        certified.show(kind, certified.authority.issue(other), worker).connect(code=0x87)


@each_worker
def test_comes_in_when_a_pattern_matches_all_of_the_common_name(certified: Certified, worker):
    fleet = new_name("truck")
    certified.entities.add_x509(f"{fleet}-[0-9]+", is_regex=True)
    certified.show("tls", certified.authority.issue(f"{fleet}-12"), worker).connect()
    certified.show("tls", certified.authority.issue(f"{fleet}-12x"), worker).connect(code=0x87)


@each_kind
@each_worker
def test_comes_in_by_the_intermediate_when_credentials_are_for_the_chain(certified: Certified, kind, worker):
    name = new_name("pump")
    certificate = certified.intermediate.issue(name)
    certified.show(kind, certificate, worker).connect(code=0x87)
    credentials = certified.entities.add_x509("Plant 7", is_whole_chain=True)
    certified.show(kind, certificate, worker).connect()
    certified.show(kind, certified.authority.issue(new_name("pump")), worker).connect(code=0x87)  # not of this plant
    certified.entities.remove(credentials)


def test_authority_is_not_taken_for_the_client_when_credentials_are_for_its_own_name(certified: Certified):
    credentials = certified.entities.add_x509("Plant 7")
    certified.show("tls", certified.intermediate.issue(new_name("pump"))).connect(code=0x87)
    certified.entities.remove(credentials)


def turned_away(transports: Transports, kind: str, certificate: Certificate | None) -> bool:
    """TLS ends it: at the handshake, or, as TLS 1.3 does it, with the first read."""
    context = transports.authority.client_context(certificate)
    with transports.socket(kind) as sock:
        try:
            with context.wrap_socket(sock, server_hostname="localhost") as wrapped:
                return wrapped.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return True


@each_kind
def test_is_turned_away_when_the_certificate_has_expired(certified: Certified, kind):
    name = new_name("pump")
    certified.entities.add_x509(name)
    assert turned_away(certified.transports, kind, certified.authority.issue(name, is_expired=True))


@each_kind
def test_is_turned_away_when_the_certificate_is_revoked(certified: Certified, kind):
    credentials = certified.entities.add_x509("revoked")
    assert turned_away(certified.transports, kind, certified.revoked)
    certified.entities.remove(credentials)


@each_kind
def test_is_turned_away_when_the_authority_is_not_known(certified: Certified, kind, tmp_path):
    name = new_name("pump")
    certified.entities.add_x509(name)
    impostor = Authority(tmp_path, "Client Root").issue(name)
    assert turned_away(certified.transports, kind, impostor)


@each_kind
@each_worker
def test_is_refused_when_no_certificate_and_no_password_is_shown(certified: Certified, kind, worker):
    certified.show(kind, None, worker).connect(code=0x87)


@each_worker
def test_comes_in_by_password_when_no_certificate_is_shown(certified: Certified, worker):
    client = certified.show("tls", None, worker)
    certified.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(password=b"right")


@each_kind
@each_worker
def test_common_name_stands_in_rules_when_the_owner_is_another_worker(certified: Certified, kind, worker, topic):
    name = new_name("pump")
    certified.entities.add_x509(name, f"allow all:{topic}/${{cn}}/#")
    client = certified.show(kind, certified.authority.issue(name), worker)
    client.connect()
    client.subscribe(f"{topic}/{name}/#", qos=1)
    client.publish(f"{topic}/{name}/x", b"mine", qos=1)
    client.take_message(topic=f"{topic}/{name}/x", payload=b"mine")
    assert client.publish(f"{topic}/other/x", qos=1).reason_code == 0x87


def test_certificate_is_verified_again_when_the_client_offers_an_old_tls_session(certified: Certified):
    """A resumed session has no chain to look at, and would let in who was revoked meanwhile."""
    name = new_name("pump")
    certified.entities.add_x509(name)
    context = certified.transports.authority.client_context(certified.authority.issue(name))
    first = certified.show("tls", None, context=context)
    first.connect()
    first.ping()
    session = first.tls_socket.session
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        context.minimum_version = context.maximum_version = version
        for _ in range(3):
            client = certified.show("tls", None, context=Resuming(context, session))
            client.connect()
            client.ping()
            assert version is ssl.TLSVersion.TLSv1_2 or not client.tls_socket.session_reused
            session = client.tls_socket.session or session


class Resuming:
    """Stands for a context whose connections offer this session."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None) -> None:
        self._context = context
        self._session = session

    def wrap_socket(self, sock: Any, server_hostname: str) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, server_hostname=server_hostname, session=self._session)


@each_worker
def test_session_stays_the_same_clients_when_its_rules_change(certified: Certified, worker, topic):
    name = new_name("pump")
    credentials = certified.entities.add_x509(name, f"allow all:{topic}/#")
    certificate = certified.authority.issue(name)
    client = certified.show("tls", certificate, worker)
    client.connect(persistent=True)
    client.subscribe(f"{topic}/a", f"{topic}/b", qos=1)
    start = certified.broker.log_bytes()
    certified.entities.set_rules(credentials, f"allow all:{topic}/a")
    wait_for(certified, "1 subscriptions ended", start)
    client.disconnect()
    assert client.connect(persistent=True).session_present
    client.publish(f"{topic}/a", b"still", qos=1)
    client.take_message(payload=b"still")


def wait_for(certified: Certified, text: str, since: int) -> None:
    eventually(lambda: text in certified.broker.log(since), BITES_S, text)


def test_members_of_a_fleet_are_not_each_other_when_one_pattern_stands_for_all(certified: Certified):
    fleet = new_name("truck")
    certified.entities.add_x509(f"{fleet}-[0-9]+", is_regex=True)
    one = certified.show("tls", certified.authority.issue(f"{fleet}-1"))
    one.connect()
    two = certified.show("tls", certified.authority.issue(f"{fleet}-2"), client_id=one.client_id)
    two.connect(code=0x87)
    one.ping()


def test_is_disconnected_when_its_credentials_are_removed(certified: Certified):
    for worker in range(3):
        name = new_name("pump")
        credentials = certified.entities.add_x509(name)
        client = certified.show("wss", certified.authority.issue(name), worker)
        client.connect()
        certified.entities.remove(credentials)
        client.expect_disconnect(0x87, BITES_S)


def test_needs_a_certificate_when_the_listener_says_so(tmp_path):
    authority = Authority(tmp_path / "clients")
    entities = Entities(tmp_path / "broker" / "data")
    entities.command("credentials", "add", "up", "--client-id", "is-it-up", "--no-password")
    entities.provide("basic")
    entities.provide("x509")
    entities.add_x509("pump")
    settings = {"listeners__tls__ca": authority.path, "listeners__tls__requires_client_certificate": True}
    with run_transports(tmp_path, **settings) as transports:
        assert turned_away(transports, "tls", None)
        client = transports.client("tls", "b", context=transports.authority.client_context(authority.issue("pump")))
        client.connect()
