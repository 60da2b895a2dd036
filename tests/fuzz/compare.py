"""One input through both codecs, and the smallest input that still shows a difference.

Run a block again in this process, for example after a crash or under a debugger:

    python -m tests.fuzz.compare SEED BLOCK
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections.abc import Callable

from tbmq.packets import Connect, Packet
from tests.fuzz.mutations import Input, random_input
from tests.reference.implementations import NATIVE, REFERENCE, Outcome, chunks_of, decode

BLOCK_INPUTS = 1000
MAX_SHRINK_STEPS = 4000


def random_chunks(rng: random.Random, data: bytes) -> list[bytes]:
    chunks = []
    at = 0
    while at < len(data):
        size = rng.choice((0, 1, 1, 2, 3, 5, 11, 40))
        chunks.append(data[at : at + size])
        at += size
    return chunks


def difference(given: Input, split_seed: int) -> str | None:
    """What the two codecs do not agree on, or None."""
    data = given.data
    want = decode(REFERENCE.decoder(**given.decoder_arguments), [data])
    cuts = {
        "whole": [data],
        "pieces of 1": chunks_of(data, 1),
        "pieces of 2": chunks_of(data, 2),
        "pieces of 7": chunks_of(data, 7),
        "random pieces": random_chunks(random.Random(split_seed), data),
    }
    for name, chunks in cuts.items():
        got = decode(NATIVE.decoder(**given.decoder_arguments), chunks)
        # The text also shows wrong types, but equality is faster: the text is compared once.
        if got != want or (name == "whole" and want.packets and repr(got) != repr(want)):
            return f"{name}\n  native     {got}\n  reference  {want}"
    return encoding_difference(given, want)


def encoding_difference(given: Input, outcome: Outcome) -> str | None:
    """Accepted packets must be writable, in the same bytes by both, and come back equal."""
    level = given.level
    for packet in outcome.packets:
        level = packet.protocol_level if isinstance(packet, Connect) else level
        try:
            native, reference = (codec.encode(packet, level, client=not given.client) for codec in (NATIVE, REFERENCE))
        except ValueError as refusal:
            return f"accepted, then refused by an encoder: {packet}: {refusal}"
        if native != reference:
            return f"encoded differently: {packet}\n  native     {native.hex()}\n  reference  {reference.hex()}"
        # The encoder's reference has read its own bytes already; the compiled decoder does it here.
        start = 0 if isinstance(packet, Connect) else level
        limits = {"max_properties": 1_000_000, "max_topic_levels": 65_536}
        returned: list[Packet] = decode(
            NATIVE.decoder(client=given.client, protocol_level=start, **limits), [native]
        ).packets
        if returned != [packet]:
            return f"changed by encoding: {packet} became {returned}"
    return None


def shrink(data: bytes, is_different: Callable[[bytes], bool]) -> bytes:
    """Removes ever smaller slices, then makes bytes zero, as long as the difference stays."""
    steps = 0
    size = max(1, len(data) // 2)
    while size:
        at = 0
        while at < len(data) and steps < MAX_SHRINK_STEPS:
            shorter = data[:at] + data[at + size :]
            steps += 1
            if is_different(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    for at in range(len(data)):
        simpler = data[:at] + b"\0" + data[at + 1 :]
        if simpler != data and is_different(simpler):
            data = simpler
    return data


def run_block(seed: int, block: int) -> tuple[int, int, str | None]:
    """Inputs tried, inputs that gave at least one packet, and the report of the first difference."""
    rng = random.Random(f"{seed}:{block}")
    fruitful = 0
    for index in range(BLOCK_INPUTS):
        given = random_input(rng)
        split_seed = rng.getrandbits(32)
        found = difference(given, split_seed)
        if found is not None:
            return index + 1, fruitful, report(seed, block, index, given, split_seed, found)
        fruitful += _has_packets(given)
    return BLOCK_INPUTS, fruitful, None


def _has_packets(given: Input) -> bool:
    return bool(decode(NATIVE.decoder(**given.decoder_arguments), [given.data]).packets)


def report(seed: int, block: int, index: int, given: Input, split_seed: int, found: str) -> str:
    def is_different(data: bytes) -> bool:
        return difference(given._replace(data=data), split_seed) is not None

    small = given._replace(data=shrink(given.data, is_different))
    return "\n".join(
        [
            f"the codecs disagree: seed {seed}, block {block}, input {index}",
            f"decoder {given.decoder_arguments}",
            f"input    {given.data.hex(' ')}",
            found,
            f"smallest {small.data.hex(' ')}",
            str(difference(small, split_seed)),
        ]
    )


if __name__ == "__main__":
    faulthandler.enable()
    tried, fruitful, found = run_block(int(sys.argv[1]), int(sys.argv[2]))
    print(found or f"{tried} inputs agree, {fruitful} of them with packets")
