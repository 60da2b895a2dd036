"""The kinds of values that need more than a plain type. Each takes text, which is what every source delivers.

Each also writes itself back as text, so that what `tbmq config show` prints can be loaded again.
"""

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, SecretStr

from tbmq.rate_limits import parse_rate_limits


@dataclass(frozen=True, slots=True)
class Bind:
    """An address to listen on. Port 0 lets the system choose a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Bind":
        """Reads `host:port`, with an IPv6 host in brackets; ValueError with the reason."""
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9._-]+):([0-9]{1,9})", text)
        if found is None:
            raise ValueError(f"must be host:port, such as 127.0.0.1:1883 or [::1]:1883, or empty for off, got {text!r}")
        host, port = found[1].strip("[]"), int(found[2])
        if port > 65535:
            raise ValueError(f"the port must be 0 to 65535, got {port}")
        if (":" in host or re.fullmatch(r"[0-9.]+", host)) and not _is_ip_address(host):
            raise ValueError(f"{host} is not an IP address")
        return cls(host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_bind(value: object) -> object:
    if value is None or isinstance(value, Bind):
        return value
    if not isinstance(value, str):
        raise ValueError("must be one text, host:port")
    return Bind.parse(value) if value else None


def _parse_file(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value and not Path(value).is_file():
        raise ValueError(f"there is no file {value}")
    return value or None


def _parse_secret(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("file://"):
        return value
    path = Path(value.removeprefix("file://"))
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not UTF-8 text") from None


def _items(value: object) -> list[str]:
    """A list, as a file can hold one, or one text with commas."""
    if isinstance(value, str):
        value = value.split(",") if value else []
    if not isinstance(value, list):
        raise ValueError("must be a list, or one text with commas")
    return [str(item).strip() for item in value]


def _parse_networks(value: object) -> "list[Network]":
    networks = []
    for text in _items(value):
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(f"must be networks such as 10.0.0.0/8, but {error}") from None
    return networks


def _parse_origins(value: object) -> list[str]:
    origins = [text.lower() for text in _items(value)]
    for origin in origins:
        if not re.fullmatch(r"\*|same-host|[a-z][a-z0-9+.-]*://[^/\s,]+", origin):
            raise ValueError(f"must be *, same-host, or origins such as https://app.example.org, got {origin!r}")
    return origins


def _parse_workers(value: object) -> object:
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS) if value == AUTO else value


def _check_rate_limits(text: str) -> str:
    parse_rate_limits(text)
    return text


def host_name() -> str:
    """The name of this machine, without what a topic or a file name cannot hold."""
    return re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:64] or "node"


MASK = "********"
RateLimits = Annotated[str, AfterValidator(_check_rate_limits)]  # as `parse_rate_limits` reads them
MAX_WORKERS = 256  # a member of a shared subscription is a worker (8 bits) and a session there (24 bits)

# None is a listener that is switched off, or a file that is not set; both are written as the empty text.
OptionalBind = Annotated[Bind | None, BeforeValidator(_parse_bind), PlainSerializer(lambda bind: str(bind or ""))]
OptionalFile = Annotated[Path | None, BeforeValidator(_parse_file), PlainSerializer(lambda path: str(path or ""))]
# Never shown; `file:///path` reads it from a file.
Secret = Annotated[SecretStr, BeforeValidator(_parse_secret), PlainSerializer(lambda secret: MASK if secret else "")]
# Lists are written as one text with commas.
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Annotated[
    list[Network], BeforeValidator(_parse_networks), PlainSerializer(lambda items: ",".join(map(str, items)))
]
Origins = Annotated[list[str], BeforeValidator(_parse_origins), PlainSerializer(",".join)]
# `auto` becomes the number of cores this process may use.
AUTO: Any = "auto"
SAME_HOST: Any = "same-host"
NO_NETWORKS: Any = ""
Workers = Annotated[int, BeforeValidator(_parse_workers)]
