from collections.abc import Iterator
from typing import Final, NamedTuple, final

from typing_extensions import Buffer

MAGIC: Final[bytes]
VERSION: Final[int]
HEADER_BYTES: Final[int]
RECORD_BYTES: Final[int]
MAX_BATCH_BYTES: Final[int]
MAX_TIME_MS: Final[int]
CRC32C_HARDWARE: Final[bool]

class BatchMessage(NamedTuple):
    publisher: bytes
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    time_ms: int
    expiry_s: int | None
    properties: bytes

@final
class BatchWriter:
    def __init__(self, max_bytes: int | None = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    def append(
        self,
        topic: Buffer,
        payload: Buffer,
        *,
        time_ms: int,
        publisher: Buffer = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        expiry_s: int | None = None,
        properties: Buffer = b"",
    ) -> None: ...
    def full(self, limit_bytes: int) -> bool: ...
    def reset(self) -> None: ...
    def finish(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class BatchReader:
    def __init__(self, buffer: Buffer, *, verify: bool = True) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def base_time_ms(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[BatchMessage]: ...
    @staticmethod
    def batch_bytes(buffer: Buffer, offset: int = 0) -> int: ...
    @staticmethod
    def split(buffer: Buffer) -> Iterator[memoryview]: ...

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_table(data: Buffer, crc: int = 0) -> int: ...
def append_many(writer: BatchWriter, count: int, publisher: Buffer, topic: Buffer, payload: Buffer) -> int: ...
def iterate_all(reader: BatchReader) -> tuple[int, int]: ...
