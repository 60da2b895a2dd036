"""Every key, with its default, unit and description.

To add a key: one field with its default and description, its unit in the name (`_s`, `_bytes`).
To add a section: a subclass of Section, and one field in Config. Nothing else is to be changed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tbmq.config.values import (
    AUTO,
    MAX_WORKERS,
    NO_NETWORKS,
    SAME_HOST,
    Bind,
    Networks,
    OptionalBind,
    OptionalFile,
    Origins,
    RateLimits,
    Secret,
    Workers,
    host_name,
)

Key = tuple[str, ...]  # ("listeners", "tcp", "bind")


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_section_is_defaults(cls, value: object) -> object:
        return {} if value == "" else value


class Node(Section):
    name: str = Field(
        default_factory=host_name,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        description="Name of this node, unique in a cluster; the host name unless set.",
    )


def _bind(default: str, what: str) -> Any:
    """Loopback on purpose: nothing is open to the network until the operator says so."""
    return Field(
        default=default,
        description=f"Where {what} listens. Loopback by default: open to the network only when you say so, "
        "for example 0.0.0.0 as host. Port 0 takes a free port; empty switches it off.",
    )


class Listener(Section):
    bind: OptionalBind

    @property
    def address(self) -> Bind | None:
        """Where to listen, None when this listener is off."""
        return self.bind


class MqttListener(Listener):
    max_connections: int = Field(
        default=1_000_000, ge=1, description="Most connections of each worker here; more are closed at once."
    )
    max_connections_per_ip: int = Field(
        default=0, ge=0, description="Most connections of each worker from one address; 0: no limit."
    )
    connect_rate_limit: RateLimits = Field(
        default="",
        description="Most new connections of each worker here, as limit:seconds lists such as 100:1,2000:60; more are "
        "closed at once. Empty: no limit.",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Every connection comes from a proxy and starts with a PROXY header, version 1 or 2, that tells "
        "the client's address.",
    )
    trusted_proxies: Networks = Field(
        default=NO_NETWORKS,
        description="Networks that may send PROXY headers, such as 10.0.0.0/8,fd00::/8; all others are closed.",
    )

    @model_validator(mode="after")
    def _proxies_are_known(self) -> Self:
        if self.proxy_protocol and not self.trusted_proxies:
            raise ValueError("proxy_protocol needs trusted_proxies: who may send a header can claim any address")
        return self


class TlsListener(MqttListener):
    certificate: OptionalFile = Field(
        default=None, description="PEM file of the server's certificate and chain; without it this listener is off."
    )
    private_key: OptionalFile = Field(default=None, description="PEM file of the certificate's private key.")
    private_key_password: Secret = Field(
        default=SecretStr(""), description="Password of the private key; file:///path reads it from a file."
    )
    ca: OptionalFile = Field(
        default=None, description="PEM file of the authorities that client certificates are checked against."
    )
    crl: OptionalFile = Field(
        default=None, description="PEM file of the authorities' lists of revoked client certificates."
    )
    requires_client_certificate: bool = Field(
        default=False, description="Refuse clients without a certificate; otherwise, with ca, they may show one."
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="Oldest version of TLS that is spoken.")
    handshake_timeout_s: int = Field(
        default=10, ge=1, le=3_600, description="Time that a new connection has for its TLS handshake."
    )

    @property
    def address(self) -> Bind | None:
        return self.bind if self.certificate else None

    @model_validator(mode="after")
    def _certificate_and_key_come_together(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key must be set together")
        return self

    @model_validator(mode="after")
    def _client_certificates_have_an_authority(self) -> Self:
        if self.ca is None and (self.requires_client_certificate or self.crl is not None):
            raise ValueError("requires_client_certificate and crl need ca")
        return self


class WebSocketOptions(Section):
    path: str = Field(
        default="/mqtt", pattern=r"^/[A-Za-z0-9._~/-]*$", max_length=200, description="Path of the WebSocket."
    )
    origins: Origins = Field(
        default=SAME_HOST,
        description="Web sites whose pages may connect, such as https://app.example.org; same-host: those with the "
        "host name by which the broker was reached, on any port; *: all. Clients that are no browsers are not bound.",
    )


class Tcp(MqttListener):
    bind: OptionalBind = _bind("127.0.0.1:1883", "MQTT over TCP")


class Tls(TlsListener):
    bind: OptionalBind = _bind("127.0.0.1:8883", "MQTT over TLS")


class WebSocket(MqttListener, WebSocketOptions):
    bind: OptionalBind = _bind("127.0.0.1:8083", "MQTT over WebSocket")


class SecureWebSocket(TlsListener, WebSocketOptions):
    bind: OptionalBind = _bind("127.0.0.1:8084", "MQTT over WebSocket with TLS")


class Listeners(Section):
    tcp: Tcp = Field(default_factory=Tcp)
    tls: Tls = Field(default_factory=Tls)
    ws: WebSocket = Field(default_factory=WebSocket)
    wss: SecureWebSocket = Field(default_factory=SecureWebSocket)


class Admin(Listener):
    bind: OptionalBind = _bind("127.0.0.1:18083", "the admin process (REST, UI, metrics)")


class Mqtt(Section):
    max_packet_bytes: int = Field(
        default=1_048_576, ge=256, le=268_435_455, description="Largest packet taken from a client that is connected."
    )
    max_connect_packet_bytes: int = Field(
        default=65_536, ge=256, le=268_435_455, description="Largest CONNECT: all that a stranger can make us hold."
    )
    max_topic_levels: int = Field(
        default=128, ge=1, le=65_535, description="Most levels (parts between slashes) of a topic or topic filter."
    )
    connect_timeout_s: int = Field(
        default=10, ge=1, le=3_600, description="Time that a new connection has to send its whole CONNECT."
    )
    max_keep_alive_s: int = Field(
        default=65_535,
        ge=1,
        le=65_535,
        description="Longest keep-alive granted; below 65535 having none counts as longer. MQTT 5 clients are told of "
        "it, others are refused.",
    )
    receive_maximum: int = Field(
        default=1_024, ge=1, le=65_535, description="Most QoS 1 and 2 messages that a client may have un-acked at once."
    )
    strict: bool = Field(
        default=True,
        description="Disconnect clients that exceed Receive Maximum; off: let them, count it, and log it once.",
    )
    max_inflight: int = Field(
        default=1_024,
        ge=1,
        le=65_535,
        description="Most QoS 1 and 2 messages sent to a client and not acknowledged; MQTT 5 clients may ask for less.",
    )
    max_queued_messages: int = Field(
        default=10_000, ge=0, description="Most messages that wait for one client; over it the oldest is dropped."
    )
    max_subscriptions: int = Field(
        default=10_000, ge=1, description="Most subscriptions of one client; over it SUBSCRIBE gets 0x97."
    )
    max_retained_messages: int = Field(
        default=1_000_000,
        ge=1,
        le=0xFFFF_FFFF,
        description="Most retained messages of this node, in equal parts for its workers; over it a new one is "
        "delivered, not retained.",
    )
    max_retained_payload_bytes: int = Field(
        default=1_048_576,
        ge=0,
        le=268_435_455,
        description="Largest payload that is retained; a larger one is delivered, not retained.",
    )
    max_retained_total_bytes: int = Field(
        default=1_073_741_824,
        ge=0,
        description="Most memory for retained messages of this node, in equal parts for its workers; over it a message "
        "is delivered, not retained.",
    )
    max_sessions: int = Field(
        default=1_000_000,
        ge=1,
        le=16_777_216,
        description="Most sessions of this node, connected or not, in equal parts for its workers; over it a CONNECT "
        "that needs a new one gets 0x97.",
    )
    max_session_expiry_s: int = Field(
        default=604_800,
        ge=0,
        le=0xFFFF_FFFF,
        description="Longest that a session outlives its connection; MQTT 5 clients are told of it.",
    )
    topic_alias_maximum: int = Field(
        default=100, ge=0, le=65_535, description="Most topic aliases per connection, in each direction; MQTT 5."
    )
    client_rate_limit: RateLimits = Field(
        default="",
        description="Most messages that a client may publish, such as 100:1,2000:60 (100 in 1 second and 2000 in 60); "
        "who is over it is read more slowly. Empty: no limit.",
    )
    client_bytes_rate_limit: RateLimits = Field(
        default="", description="The same for the bytes of what it publishes, such as 1000000:1."
    )
    client_outgoing_rate_limit: RateLimits = Field(
        default="",
        description="Most messages that are sent to a client; over it QoS 0 is dropped, and QoS 1 and 2 wait.",
    )
    total_rate_limit: RateLimits = Field(
        default="",
        description="Most messages that all clients of this node may publish together, in equal parts for its workers.",
    )
    response_information: str = Field(
        default="", max_length=1_000, description="Topic prefix for replies, told to MQTT 5 clients that ask for it."
    )


class Auth(Section):
    flapping_max_disconnects: int = Field(
        default=0,
        ge=0,
        description="A client that disconnects so often within flapping_window_s is blocked for a while; 0: never.",
    )
    flapping_window_s: int = Field(default=60, ge=1, le=86_400, description="See flapping_max_disconnects.")
    flapping_block_s: int = Field(default=300, ge=1, le=31_536_000, description="How long it stays blocked.")
    max_loop_lag_ms: int = Field(
        default=500,
        ge=10,
        le=60_000,
        description="A worker that is later than this with its work accepts no new connections meanwhile.",
    )


class Database(Section):
    url: Secret = Field(
        default=SecretStr(""),
        description="Where users, credentials and rules are kept: postgresql://user:password@host:port/database, or "
        "file:///path to read that from a file; empty: the SQLite file entities.db in data_dir.",
    )

    @field_validator("url")
    @classmethod
    def _is_postgresql_or_empty(cls, url: SecretStr) -> SecretStr:
        """The text itself is not repeated: it may hold a password."""
        text = url.get_secret_value()
        if text and not text.startswith("postgresql://"):
            raise ValueError("must be postgresql://user:password@host:port/database, or empty for SQLite in data_dir")
        return url


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least serious kind of line that is logged."
    )


class Config(BaseSettings):
    """`Config()` is the defaults, `Config(workers=2)` the same with one change; only `load` reads anything."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    profile: Literal["embedded", "cluster"] = Field(
        default="embedded",
        description="embedded: this package and a data folder; cluster: with Kafka, Redis and PostgreSQL.",
    )
    workers: Workers = Field(
        default=AUTO, ge=1, le=MAX_WORKERS, description="Worker processes, one core each; auto: one per core."
    )
    data_dir: Path = Field(
        default=Path("data"), description="Folder of everything that is kept; relative to where tbmq is started."
    )
    node: Node = Field(default_factory=Node)
    listeners: Listeners = Field(default_factory=Listeners)
    admin: Admin = Field(default_factory=Admin)
    auth: Auth = Field(default_factory=Auth)
    database: Database = Field(default_factory=Database)
    mqtt: Mqtt = Field(default_factory=Mqtt)
    log: Log = Field(default_factory=Log)

    @model_validator(mode="after")
    def _addresses_differ(self) -> Self:
        """SO_REUSEPORT would let two listeners share an address, and give each a random half of the connections."""
        taken: dict[Bind, str] = {}
        named = {f"listeners.{name}.bind": listener for name, listener in self.listeners}
        for key, listener in (named | {"admin.bind": self.admin}).items():
            address = listener.address
            if address and address.port and taken.setdefault(address, key) != key:
                reason = f"{address} is the address of {taken[address]} too; each listener needs its own"
                raise PydanticCustomError("address_taken", "{reason}", {"key": key, "reason": reason})
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


UNITS = {"_s": "seconds", "_bytes": "bytes"}


def keys(model: type[BaseModel] = Config, section: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Every key that can be set, in the order of the model."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from keys(info.annotation, (*section, name))
        else:
            yield (*section, name), info


def unit(key: Key) -> str:
    """The unit of a number, as its name says it; empty for everything else."""
    return next((unit for suffix, unit in UNITS.items() if key[-1].endswith(suffix)), "")
