"""Named packet cases, good and bad: data that every codec test, session test and benchmark can share.

When you add a rule to the codec, add its good and its bad case here.
"""

from __future__ import annotations

from tests.vectors import acks, connack, connect, framing, properties, publish, session_end, subscribe
from tests.vectors.vector import Vector

ALL: list[Vector] = [
    *framing.VECTORS,
    *connect.VECTORS,
    *connack.VECTORS,
    *publish.VECTORS,
    *acks.VECTORS,
    *subscribe.VECTORS,
    *session_end.VECTORS,
    *properties.VECTORS,
]

__all__ = ["ALL", "Vector"]
