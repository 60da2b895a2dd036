from collections.abc import Callable
from typing import Any, Final, Protocol, final

STAMP_BYTES: Final[int]
NUMBER_DIGITS: Final[int]
MAX_PUBLISHERS: Final[int]
HISTOGRAM_BUCKETS: Final[int]
FAILURES: Final[tuple[str, ...]]

class Transport(Protocol):
    is_ready: bool

    def start(self) -> bytes: ...
    def receive(self, raw: bytes) -> tuple[bytes, bytes]: ...
    def send(self, data: bytes) -> bytes: ...

@final
class Histogram:
    @property
    def max(self) -> int: ...
    @property
    def count(self) -> int: ...
    def record(self, value: int) -> None: ...
    def percentile(self, percent: float) -> int: ...
    def dump(self) -> dict[str, Any]: ...
    def merge(self, dumped: dict[str, Any]) -> None: ...

@final
class StreamChecker:
    def __init__(self, window: int = 4096) -> None: ...
    def arrive(self, number: int) -> None: ...
    def statistics(self) -> dict[str, int]: ...

@final
class Engine:
    def __init__(
        self,
        *,
        host: str,
        port: int,
        protocol_level: int,
        qos: int,
        connect_packet: tuple[bytes, int],
        subscribe_packet: tuple[bytes, int],
        publish_packet: tuple[bytes, int],
        payload_at: int,
        sources: list[str] | None = None,
        send_buffer_bytes: int = 0,
        read_bytes: int = 131_072,
        chunk_bytes: int = 65_536,
        make_transport: Callable[[], Transport] | None = None,
        timeout_s: float = 10.0,
        keep_alive_s: int = 0,
    ) -> None: ...
    def add(
        self,
        *,
        publishers: int,
        subscribers: int,
        first_publisher: int,
        first_subscriber: int,
        all_publishers: int,
        hears: str,
        window: int = 0,
        stream_window: int = 4096,
    ) -> None: ...
    def open(
        self,
        *,
        max_opening: int = 64,
        rate: float = 0.0,
        limit: int = 0,
        recycle: bool = False,
        number: int = 0,
        at_ns: int = 0,
    ) -> None: ...
    def stop_opening(self) -> None: ...
    def start(self, *, at_ns: int, rate: float = 0.0, messages: int = 0, sample_every: int = 1) -> None: ...
    def begin_measuring(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def run(self, until_ns: int) -> None: ...
    def messages(self, publisher: int, count: int) -> bytes: ...
    def statistics(self) -> dict[str, Any]: ...
    def histogram(self) -> Histogram: ...
    def sent_by_publisher(self) -> list[int]: ...
