"""Batches: 546 messages of 120 bytes, head included, make the 64 KB that a full batch has."""

from __future__ import annotations

from pytest_benchmark.fixture import BenchmarkFixture

from tbmq._batch import BatchReader, BatchWriter, append_many, crc32c, iterate_all

PUBLISHER = b"device-000042"
TOPIC = b"plant/7/line/3/temp"
PAYLOAD = b"x" * 64
MESSAGES = 546
BATCHES = 20  # per timed call, so that the call itself does not count


def full_batch() -> bytes:
    writer = BatchWriter()
    assert append_many(writer, MESSAGES, PUBLISHER, TOPIC, PAYLOAD) == MESSAGES
    return writer.finish()


def test_append(benchmark: BenchmarkFixture) -> None:
    writer = BatchWriter()

    def append() -> None:
        for _ in range(BATCHES):
            writer.reset()
            append_many(writer, MESSAGES, PUBLISHER, TOPIC, PAYLOAD)

    append()
    messages = list(BatchReader(writer.finish()))
    assert len(messages) == MESSAGES
    assert all((m.publisher, m.topic, m.payload) == (PUBLISHER, TOPIC, PAYLOAD) for m in messages)
    benchmark.extra_info["operations"] = BATCHES * MESSAGES
    benchmark(append)


def test_append_and_finish(benchmark: BenchmarkFixture) -> None:
    writer = BatchWriter()

    def append_and_finish() -> bytes:
        batch = b""
        for _ in range(BATCHES):
            append_many(writer, MESSAGES, PUBLISHER, TOPIC, PAYLOAD)
            batch = writer.finish()
        return batch

    assert append_and_finish() == full_batch()
    benchmark.extra_info["operations"] = BATCHES * MESSAGES
    benchmark(append_and_finish)


def test_iterate(benchmark: BenchmarkFixture) -> None:
    reader = BatchReader(full_batch(), verify=False)

    def iterate() -> None:
        for _ in range(BATCHES):
            iterate_all(reader)

    assert iterate_all(reader) == (MESSAGES, MESSAGES * len(PAYLOAD))
    benchmark.extra_info["operations"] = BATCHES * MESSAGES
    benchmark(iterate)


def test_iterate_verified(benchmark: BenchmarkFixture) -> None:
    batch = full_batch()

    def open_and_iterate() -> None:
        for _ in range(BATCHES):
            iterate_all(BatchReader(batch))

    assert iterate_all(BatchReader(batch)) == (MESSAGES, MESSAGES * len(PAYLOAD))
    benchmark.extra_info["operations"] = BATCHES * MESSAGES
    benchmark(open_and_iterate)


def test_crc32c(benchmark: BenchmarkFixture) -> None:
    """Operations are bytes here."""
    data = bytes(range(256)) * 4096
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(data[:65536]) == crc32c(data[65536:131072])
    benchmark.extra_info["operations"] = len(data)
    benchmark(crc32c, data)
