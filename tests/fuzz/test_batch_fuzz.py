"""Mutated batches: the compiled reader and the reference accept and refuse the same ones, and read the same messages.

Most mutants get fitting checksums again, otherwise all of them would end there. TBMQ_FULL=1 runs 200,000 instead of
5,000; TBMQ_SEED repeats the run of a failure.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
from typing import Any

from tbmq._batch import BatchReader, BatchWriter
from tbmq.errors import BatchError
from tests.reference import batch as reference
from tests.reference.batch import Message

MUTANTS = 200_000 if os.environ.get("TBMQ_FULL") == "1" else 5_000
SEED = int(os.environ.get("TBMQ_SEED") or random.SystemRandom().randrange(2**32))
INTERESTING = [0, 1, 2, 23, 24, 25, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
REFUSED = "refused"


def random_message(rng: random.Random) -> Message:
    qos = rng.randrange(3)
    return Message(
        publisher=rng.randbytes(rng.randrange(6)),
        topic=rng.randbytes(rng.randrange(1, 10)),
        payload=rng.randbytes(rng.randrange(20)),
        qos=qos,
        retain=rng.random() < 0.5,
        dup=rng.random() < 0.5,
        packet_id=rng.randrange(65536) if qos else 0,
        time_ms=1_700_000_000_000 + rng.randrange(1000),
        expiry_s=rng.randrange(2**32) if rng.random() < 0.5 else None,
        properties=rng.randbytes(rng.randrange(6)),
    )


def field_offsets(data: bytes) -> list[tuple[int, str]]:
    """Where the numbers of a sound batch are, so that mutations meet them more often than chance would."""
    fields = [(5, "<B"), (6, "<H"), (8, "<I"), (12, "<I"), (16, "<Q")]
    offset = 32
    while offset < len(data):
        record = [(0, "<I"), (4, "<B"), (5, "<B"), (6, "<H"), (8, "<H"), (10, "<H"), (12, "<I"), (16, "<I"), (20, "<I")]
        fields += [(offset + at, kind) for at, kind in record]
        offset += struct.unpack_from("<I", data, offset)[0]
    return fields


def mutate(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        match rng.randrange(6):
            case 0 | 1:  # a field gets another value, near the old one or at a limit
                offset, kind = rng.choice(field_offsets(good))
                if offset + struct.calcsize(kind) <= len(data):
                    (old,) = struct.unpack_from(kind, data, offset)
                    new = rng.choice((old + 1, old - 1, old ^ 1 << rng.randrange(32), rng.choice(INTERESTING)))
                    struct.pack_into(kind, data, offset, new % 256 ** struct.calcsize(kind))
            case 2:  # a bit flips
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 3:  # cut
                del data[rng.randrange(len(data) + 1) :]
            case 4:  # bytes go missing
                start = rng.randrange(len(data) + 1)
                del data[start : start + rng.randrange(1, 30)]
            case 5:  # bytes come in
                start = rng.randrange(len(data) + 1)
                data[start:start] = rng.randbytes(rng.randrange(1, 30))
    if len(data) >= 32:
        if rng.random() < 0.8:
            struct.pack_into("<I", data, 12, len(data) - 32)
        if rng.random() < 0.95:
            struct.pack_into("<I", data, 24, reference.crc32c(bytes(data[32:])))
            struct.pack_into("<I", data, 28, reference.crc32c(bytes(data[:28])))
    return bytes(data)


def outcome_of_native(data: bytes, verify: bool) -> Any:
    # Memory of exactly the size, so that AddressSanitizer sees a read of one byte more.
    buffer = (ctypes.c_char * len(data)).from_buffer_copy(data)
    try:
        return [tuple(message) for message in BatchReader(buffer, verify=verify)]
    except BatchError as error:
        assert "offset" in str(error)
        return REFUSED


def outcome_of_reference(data: bytes, verify: bool) -> Any:
    try:
        return reference.read(data, verify=verify)
    except BatchError:
        return REFUSED


def test_mutated_batches_are_judged_like_the_reference_judges_them() -> None:
    rng = random.Random(SEED)
    accepted = 0
    good = b""
    for number in range(MUTANTS):
        if number % 20 == 0:
            good = reference.write([random_message(rng) for _ in range(rng.randrange(5))])
        data = mutate(rng, good)
        for verify in (True, False):
            expected = outcome_of_reference(data, verify)
            told = f"TBMQ_SEED={SEED}, mutant {number}, verify={verify}: {data.hex()}"
            assert outcome_of_native(data, verify) == expected, told
        accepted += expected != REFUSED
    # Both outcomes must be met often, or the comparison shows nothing.
    assert MUTANTS * 0.1 < accepted < MUTANTS * 0.9, f"TBMQ_SEED={SEED}: {accepted} of {MUTANTS} accepted"


def test_random_messages_are_written_like_the_reference_writes_them() -> None:
    rng = random.Random(SEED)
    writer = BatchWriter()
    for number in range(MUTANTS // 10):
        batch = [random_message(rng) for _ in range(rng.randrange(6))]
        for message in batch:
            fields = message._asdict()
            writer.append(fields.pop("topic"), fields.pop("payload"), **fields)
        expected = reference.write(batch)
        assert writer.finish() == expected, f"TBMQ_SEED={SEED}, batch {number}: {batch}"
