"""Listeners in this process: who is admitted, what a PROXY header changes, how bad certificates are refused, and how
connections pass from worker to worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tbmq.config.model import Tcp, Tls
from tbmq.net import handover
from tbmq.net.admission import Admission
from tbmq.net.handover import Handover
from tbmq.net.listener import TcpListener
from tbmq.net.tls import TlsError, build_context
from tests.helpers.certificates import Authority

V1 = b"PROXY TCP4 192.0.2.1 198.51.100.7 51234 1883\r\n"


# --- admission


def test_connection_is_refused_when_all_places_are_taken():
    admission = Admission(2, 0)
    assert admission.enter() and admission.enter()
    assert not admission.enter()
    admission.leave("1.1.1.1")
    assert admission.enter()
    assert (admission.connections, dict(admission.refused)) == (2, {"max_connections": 1})


def test_connection_is_refused_when_its_address_has_too_many():
    admission = Admission(100, 2)
    for ip in ("a", "a", "b"):
        assert admission.enter() and admission.claim(ip)
    assert admission.enter() and not admission.claim("a")
    assert admission.connections == 3
    admission.leave("a")
    assert admission.enter() and admission.claim("a")
    assert dict(admission.refused) == {"max_connections_per_ip": 1}


def test_no_address_is_remembered_when_everybody_has_left():
    admission = Admission(100, 2)
    for ip in ("a", "b", "a"):
        assert admission.enter() and admission.claim(ip)
    for ip in ("a", "a", "b"):
        admission.leave(ip)
    assert admission._by_ip == {} and admission.connections == 0


# --- the TCP listener


class Accepted:
    """Stands for the engine: keeps what it was given."""

    def __init__(self) -> None:
        self.connections: list[Accepted.Connection] = []

    class Connection:
        def __init__(self, descriptor: int, peer: str, initial: bytes) -> None:
            self.sock = socket.socket(fileno=descriptor)
            self.sock.setblocking(False)
            self.peer = peer
            self.initial = initial
            self.listener: Any = None

        def end(self) -> None:
            self.sock.close()
            if self.listener is not None:
                self.listener.leave(self.peer)

    def __call__(
        self, descriptor: int, peer: str, common_names: tuple[str, ...] = (), initial: bytes = b""
    ) -> Connection:
        self.connections.append(Accepted.Connection(descriptor, peer, initial))
        return self.connections[-1]


@contextlib.asynccontextmanager
async def listening(connect_timeout_s: float = 5.0, **settings: Any) -> AsyncIterator[tuple[TcpListener, Accepted]]:
    accepted = Accepted()
    loop = asyncio.get_running_loop()
    listener = TcpListener(loop, "127.0.0.1", 0, accepted, Tcp(**settings), connect_timeout_s)
    listener.start()
    try:
        yield listener, accepted
    finally:
        listener.close()
        for connection in accepted.connections:
            connection.sock.close()
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def connect(listener: TcpListener, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket()
    sock.bind((source, 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, listener._socket.getsockname())
    sock.sendall(data)
    return sock


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def is_closed(sock: socket.socket) -> bool:
    try:
        async with asyncio.timeout(5):
            return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


def test_connections_are_counted_and_closed_at_once_when_there_are_too_many():
    async def main() -> None:
        async with listening(max_connections=2) as (listener, accepted):
            with await connect(listener), await connect(listener), await connect(listener) as third:
                assert await is_closed(third)
                assert listener.statistics() == {
                    "accepts": 3,
                    "rests": 0,
                    "connections": 2,
                    "refused": {"max_connections": 1},
                }
                accepted.connections[0].end()
                with await connect(listener):
                    await until(lambda: len(accepted.connections) == 3)

    run(main)


def test_passed_connections_count_where_they_go_to():
    async def main() -> None:
        async with listening(max_connections=2, max_connections_per_ip=1) as (listener, accepted):
            pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(3)]
            for _, theirs in pairs:  # the near ends of pipes: not counted
                listener.take(theirs.detach(), "1.1.1.1:1", (), b"CONNECT")
            assert (listener.connections, len(accepted.connections)) == (0, 3)
            assert accepted.connections[0].initial == b"CONNECT"
            for ours, _ in pairs:
                ours.close()

            with socket.create_server(("127.0.0.1", 0)) as server:
                for n, ip in enumerate(["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3"]):
                    with socket.create_connection(server.getsockname()):
                        listener.take(server.accept()[0].detach(), f"{ip}:{n}", (), b"")
            assert [connection.peer for connection in accepted.connections[3:]] == ["1.1.1.1:0", "2.2.2.2:2"]
            assert listener.statistics()["refused"] == {"max_connections_per_ip": 1, "max_connections": 1}
            accepted.connections[3].end()
            assert listener.connections == 1

    run(main)


def test_connection_is_not_counted_when_it_went_elsewhere():
    async def main() -> None:
        listener = TcpListener(
            asyncio.get_running_loop(), "127.0.0.1", 0, lambda descriptor, peer: os.close(descriptor), Tcp()
        )
        listener.start()
        with await connect(listener) as sock:
            assert await is_closed(sock)
        assert listener.connections == 0
        listener.close()

    run(main)


def test_client_is_known_by_the_address_in_the_header_when_a_proxy_sends_one():
    async def main() -> None:
        async with listening(proxy_protocol=True, trusted_proxies="127.0.0.1/32", max_connections_per_ip=1) as (
            listener,
            accepted,
        ):
            with await connect(listener, V1 + b"MQTT") as sock:
                await until(lambda: bool(accepted.connections))
                assert accepted.connections[0].peer == "192.0.2.1:51234"
                assert accepted.connections[0].sock.recv(10) == b"MQTT"
                with await connect(listener, V1) as second:  # of the same client, not only of the same proxy
                    assert await is_closed(second)
                sock.close()
                accepted.connections[0].end()
                with await connect(listener, V1), await connect(listener, b"PROXY UNKNOWN\r\n") as own:
                    await until(lambda: len(accepted.connections) == 3)
                    host, port = own.getsockname()
                    assert {connection.peer for connection in accepted.connections} == {
                        "192.0.2.1:51234",
                        f"{host}:{port}",
                    }

    run(main)


@pytest.mark.parametrize(
    ("data", "source", "reason"),
    [
        (b"\x10\x0c\x00\x04MQTT", "127.0.0.1", "proxy_header"),
        (V1, "127.0.0.2", "untrusted_proxy"),
        (V1[:20], "127.0.0.1", "proxy_header"),
        (b"", "127.0.0.1", "proxy_header"),
    ],
    ids=["no header", "not trusted", "half a header", "silent"],
)
def test_connection_is_closed_when_it_may_not_or_does_not_send_a_header(data, source, reason):
    async def main() -> None:
        async with listening(0.1, proxy_protocol=True, trusted_proxies="127.0.0.1/32") as (listener, accepted):
            with await connect(listener, data, source) as sock:
                assert await is_closed(sock)
            assert accepted.connections == []
            assert listener.statistics()["refused"] == {reason: 1}
            assert listener.connections == 0

    run(main)


def test_nothing_is_left_when_the_listener_closes_while_headers_are_awaited():
    async def main() -> None:
        async with listening(proxy_protocol=True, trusted_proxies="127.0.0.0/8") as (listener, _):
            with await connect(listener, V1[:10]) as sock:
                await until(lambda: listener.connections == 1)
                listener.close()
                assert await is_closed(sock)
                assert listener.connections == 0

    run(main)


# --- certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def test_context_is_built_when_the_files_fit(authority):
    server = authority.issue("server")
    crl = authority.revoke([])
    settings = Tls(certificate=str(server.path), private_key=str(server.key_path), ca=str(authority.path), crl=str(crl))
    assert build_context(settings, "mqtt").verify_mode.name == "CERT_OPTIONAL"
    required = settings.model_copy(update={"requires_client_certificate": True})
    assert build_context(required, "mqtt").verify_mode.name == "CERT_REQUIRED"
    assert build_context(settings.model_copy(update={"ca": None, "crl": None}), "mqtt").verify_mode.name == "CERT_NONE"


def test_error_names_the_file_when_it_cannot_be_used(authority, tmp_path):
    server, other = authority.issue("server"), authority.issue("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no PEM\n")
    good = Tls(certificate=str(server.path), private_key=str(server.key_path))
    for update, message in [
        ({"private_key": other.key_path}, "other.key does not belong to .*server.pem"),
        ({"certificate": garbage}, "garbage.pem must hold a certificate"),
        ({"private_key": garbage}, "server.pem must hold a certificate and .*garbage.pem its key"),
        ({"ca": garbage}, "garbage.pem must hold certificates of authorities"),
        ({"ca": authority.path, "crl": garbage}, "garbage.pem must hold a list of revoked certificates"),
        ({"certificate": tmp_path / "gone.pem"}, "gone.pem cannot be read: No such file or directory"),
    ]:
        with pytest.raises(TlsError, match=message):
            build_context(good.model_copy(update=update), "mqtt")


# --- passing connections on


Taken = list[tuple[int, str, bytes]]


@contextlib.contextmanager
def two_workers(folder: Path):
    """The hand-over of worker 0, that of worker 1, and what worker 1 was given."""
    loop = asyncio.get_running_loop()
    taken: Taken = []
    ours = Handover(loop, folder, 0, lambda *_: None)
    theirs = Handover(loop, folder, 1, lambda *given: taken.append(given))
    theirs.listen()
    theirs.start()
    try:
        yield ours, theirs, taken
    finally:
        ours.close()
        theirs.close()
        for descriptor, *_ in taken:
            os.close(descriptor)


def a_client() -> tuple[socket.socket, int]:
    """Its own end, and the descriptor that a worker has of it."""
    client, accepted = socket.socketpair()
    client.setblocking(False)
    return client, accepted.detach()


def test_bytes_of_every_size_arrive_with_their_connection_when_it_is_passed_on(tmp_path):
    sizes = [0, 1, 65_535, 65_536, 65_537, 160_000, 1_000_000, 5_000_000, 7]

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            ours, _, taken = stack.enter_context(two_workers(tmp_path))
            clients = []
            for n, size in enumerate(sizes):
                client, descriptor = a_client()
                clients.append(stack.enter_context(client))
                ours.pass_on(1, descriptor, f"10.0.0.{n}:1", ("cn",), os.urandom(1) * size)
            await until(lambda: len(taken) == len(sizes))
            assert [(peer, names, len(data)) for _, peer, names, data in taken] == [
                (f"10.0.0.{n}:1", ("cn",), size) for n, size in enumerate(sizes)
            ]
            assert all(len(set(data)) <= 1 for *_, data in taken)
            for n, (descriptor, *_) in enumerate(taken):  # each descriptor is that of its client
                os.write(descriptor, b"%d" % n)
                assert clients[n].recv(10) == b"%d" % n
            assert (ours.passed, ours.refused) == (len(sizes), 0)

    run(main)


def test_connections_are_refused_when_too_much_waits_for_a_busy_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "MAX_WAITING_BYTES", 2_000_000)

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            ours, _, taken = stack.enter_context(two_workers(tmp_path))
            clients = []
            for _ in range(5):  # without a turn of the loop between them: nothing is taken
                client, descriptor = a_client()
                clients.append(stack.enter_context(client))
                ours.pass_on(1, descriptor, "10.0.0.1:1", (), b"x" * 1_000_000)
            assert ours.refused > 0
            refused = clients[-ours.refused :]
            assert all([await is_closed(client) for client in refused])
            await until(lambda: len(taken) == 5 - ours.refused)
            assert all(len(data) == 1_000_000 for *_, data in taken)

    run(main)


def test_a_connection_of_which_not_all_has_come_is_closed_when_its_worker_dies(tmp_path):
    async def main() -> None:
        with contextlib.ExitStack() as stack:
            ours, _, taken = stack.enter_context(two_workers(tmp_path))
            client, descriptor = a_client()
            stack.enter_context(client)
            ours.pass_on(1, descriptor, "10.0.0.1:1", (), b"x" * 5_000_000)  # more than the socket between them takes
            ours.close()
            assert await is_closed(client)
            assert taken == []

    run(main)


def test_connections_are_refused_and_the_next_are_passed_when_a_worker_was_away(tmp_path):
    async def main() -> None:
        with contextlib.ExitStack() as stack:
            ours, theirs, taken = stack.enter_context(two_workers(tmp_path))
            os.rename(handover.handover_path(tmp_path, 1), tmp_path / "away")
            client, descriptor = a_client()
            stack.enter_context(client)
            ours.pass_on(1, descriptor, "10.0.0.1:1", (), b"x")
            assert await is_closed(client)
            os.rename(tmp_path / "away", handover.handover_path(tmp_path, 1))
            client, descriptor = a_client()
            stack.enter_context(client)
            ours.pass_on(1, descriptor, "10.0.0.2:1", (), b"y")
            await until(lambda: len(taken) == 1)
            assert taken[0][1:] == ("10.0.0.2:1", (), b"y")
            assert (ours.passed, ours.refused, theirs.refused) == (1, 1, 0)

    run(main)
