from typing import Final, final

from typing_extensions import Buffer

BINARY: Final[int]
CLOSE: Final[int]
PING: Final[int]
PONG: Final[int]

NORMAL: Final[int]
PROTOCOL_ERROR: Final[int]
UNSUPPORTED_DATA: Final[int]
INVALID_TEXT: Final[int]
TOO_LARGE: Final[int]

@final
class FrameReader:
    max_frame_bytes: int
    def __init__(self, max_frame_bytes: int) -> None: ...
    @property
    def close_code(self) -> int: ...
    @property
    def is_closed_by_peer(self) -> bool: ...
    @property
    def fault(self) -> str: ...
    def read(self, buffer: Buffer, size: int) -> int: ...
    def take_ping(self) -> bytes | None: ...

def encode_frame(opcode: int, payload: bytes) -> bytes: ...
