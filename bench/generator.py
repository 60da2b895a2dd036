"""How fast the load generator is by itself: `python -m bench.generator [--seconds N]`.

A peer that is no broker plays the other end on the other core. It answers CONNECT and SUBSCRIBE, and then

    discard   reads what publishers send and throws it away     the generator only sends
    source    sends ready-made messages to each subscriber       the generator only receives
    relay     hands each publisher's bytes to its subscriber      the generator does both, on one core

The figures are an upper bound for what any broker can be seen to do from one core of generator.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from tbmq._codec import Decoder, encode
from tbmq._loadgen import Engine
from tbmq.loadgen.options import Options, Scenario, Share
from tbmq.loadgen.worker import make_engine
from tbmq.packets import Connack, Connect, Suback, Subscribe

PAIRS = 50
READ_BYTES = 262_144
CHUNK_MESSAGES = 1_000


def serve(mode: str, options: Options, cores: set[int], ready: Connection) -> None:
    """The peer: one connection after the other gets its answers; then the bytes flow until the sockets close."""
    os.sched_setaffinity(0, cores)
    with socket.create_server(("127.0.0.1", 0), backlog=1_024) as listener:
        ready.send(listener.getsockname()[1])
        publishers, subscribers = _accept(listener, options)
    source = make_engine(options, Share(index=0, publishers=PAIRS)) if mode == "source" else None
    try:
        if source is not None:
            _send_messages(source, subscribers)
        else:
            _read(mode, publishers, subscribers)
    except OSError:
        pass  # the generator has closed its sockets: the end


def _accept(listener: socket.socket, options: Options) -> tuple[list[socket.socket], list[socket.socket]]:
    sockets: dict[int, socket.socket] = {}
    expected = options.publishers + options.subscribers
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ, None)
    subscribed = 0
    while len(sockets) < expected or subscribed < options.subscribers:
        for key, _ in waiting.select():
            if key.data is None:
                accepted, _ = listener.accept()
                waiting.register(accepted, selectors.EVENT_READ, Decoder())
                continue
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            for packet in key.data.feed(peer.recv(65_536)):
                if isinstance(packet, Connect):
                    sockets[int(packet.client_id[-7:])] = peer
                    peer.sendall(encode(Connack(), options.protocol_level))
                elif isinstance(packet, Subscribe):
                    subscribed += 1
                    peer.sendall(encode(Suback(packet.packet_id, [options.qos]), options.protocol_level))
    waiting.close()
    in_order = [sockets[number] for number in sorted(sockets)]
    return in_order[: options.publishers], in_order[options.publishers :]


def _send_messages(source: Engine, subscribers: Sequence[socket.socket]) -> None:
    source.start(at_ns=0, sample_every=64)
    while True:
        for number, subscriber in enumerate(subscribers):
            subscriber.sendall(source.messages(number, CHUNK_MESSAGES))


def _read(mode: str, publishers: Sequence[socket.socket], subscribers: Sequence[socket.socket]) -> None:
    waiting = selectors.EpollSelector()
    for publisher, target in zip(publishers, subscribers, strict=False):
        waiting.register(publisher, selectors.EVENT_READ, target)
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    while True:
        for key, _ in waiting.select():
            size = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            if not size:
                return
            if mode == "relay":
                key.data.sendall(view[:size])


def measure(mode: str, options: Options, seconds: float) -> dict[str, Any]:
    """Messages per second that were sent and received, and the share of its core that the generator used."""
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    peer = context.Process(target=serve, args=(mode, options, {cores[-1]}, theirs), daemon=True)
    peer.start()
    options = replace(options, port=mine.recv())
    os.sched_setaffinity(0, {cores[0]})
    try:
        engine = make_engine(options, Share(index=0, publishers=options.publishers, subscribers=options.subscribers))
        engine.open()
        while engine.statistics()["ready"] < options.publishers + options.subscribers:
            engine.run(time.monotonic_ns() + 10_000_000)
        if mode != "source":
            engine.start(at_ns=time.monotonic_ns(), sample_every=64)
        engine.run(time.monotonic_ns() + 300_000_000)
        before, cpu = engine.statistics(), time.process_time()
        engine.run(time.monotonic_ns() + int(seconds * 1e9))
        after, cpu = engine.statistics(), time.process_time() - cpu
        engine.stop()
        engine.close()
    finally:
        os.sched_setaffinity(0, set(cores))
        peer.join(5)
        peer.kill()
    span = (after["time_ns"] - before["time_ns"]) / 1e9
    return {
        "sent_per_s": (after["sent"] - before["sent"]) / span,
        "received_per_s": (after["received"] - before["received"]) / span,
        "cpu_share": cpu / span,
        "wrong": after["received"] - after["arrived"] + after["late"] + after["strays"],
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.generator", description="How fast the load generator is by itself.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--only", choices=("discard", "source", "relay"))
    parser.add_argument("--send-buffer", type=int, default=262_144, help="bytes; 0: the kernel decides")
    wanted = parser.parse_args(argv)
    base = Options(
        scenario=Scenario.P2P,
        payload_bytes=wanted.payload,
        publishers=PAIRS,
        subscribers=PAIRS,
        send_buffer_bytes=wanted.send_buffer,
    )
    for mode in ("discard", "source", "relay"):
        if wanted.only in (None, mode):
            found = measure(mode, base, wanted.seconds)
            share = found["cpu_share"]
            print(
                f"{mode:8} sent {found['sent_per_s'] / 1e6:6.2f} M/s, received {found['received_per_s'] / 1e6:6.2f} M/s"
                f" with {share:.0%} of one core; a whole core: sent {found['sent_per_s'] / share / 1e6:6.2f} M/s,"
                f" received {found['received_per_s'] / share / 1e6:6.2f} M/s; {found['wrong']} wrong"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
