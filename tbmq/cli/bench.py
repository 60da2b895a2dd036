"""`tbmq bench SCENARIO`: load on a broker, and what it did with it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tbmq.loadgen import BenchError, Options, OptionsError, Scenario, run
from tbmq.loadgen.report import Progress, show

EXIT_LOST = 1  # messages were lost, or connections failed
EXIT_REFUSED = 2  # the options do not fit together
EXIT_FAILED = 3  # the run could not be done
EXIT_INTERRUPTED = 130
PASSWORD_VARIABLE = "TBMQ_BENCH_PASSWORD"
DEFAULT_CLIENTS = {
    Scenario.P2P: {"pairs": 50},
    Scenario.FANIN: {"publishers": 50, "subscribers": 1},
    Scenario.FANOUT: {"publishers": 1, "subscribers": 100},
    Scenario.SHARED: {"publishers": 50, "subscribers": 10},
    Scenario.CONN: {"clients": 100},
    Scenario.IDLE: {"clients": 1_000},
}


class Protocol(StrEnum):
    V311 = "3.1.1"
    V5 = "5"


def option(*names: str, help: str, metavar: str | None = None, group: str = "Options") -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=group)


CLIENTS, LOAD, BROKER, NETWORK, OUTPUT = "Who", "What", "The broker", "How to connect", "Output"


def bench(
    scenario: Annotated[
        Scenario,
        typer.Argument(
            help="p2p: pairs. fanin: publishers to one subscriber. fanout: one publisher to subscribers. "
            "shared: publishers to a shared subscription. conn: connect and close. idle: hold connections."
        ),
    ],
    host: Annotated[str, option("--host", "-h", help="Where the broker is.", group=BROKER)] = "127.0.0.1",
    port: Annotated[
        int | None, option("--port", "-p", help="1883; TLS: 8883; WebSocket: 8083; both: 8084.", group=BROKER)
    ] = None,
    broker_pid: Annotated[
        list[str] | None,
        option(
            "--broker-pid",
            metavar="PID|NAME",
            help="Measure CPU and memory of this process and its children. Repeatable.",
            group=BROKER,
        ),
    ] = None,
    pairs: Annotated[int | None, option("--pairs", help="p2p: how many (50).", group=CLIENTS)] = None,
    publishers: Annotated[int | None, option("--publishers", help="How many (50; fanout: 1).", group=CLIENTS)] = None,
    subscribers: Annotated[
        int | None, option("--subscribers", help="How many (fanin: 1; fanout: 100; shared: 10).", group=CLIENTS)
    ] = None,
    clients: Annotated[
        int | None,
        option("--clients", "-c", help="conn: at a time (100). idle: held (1,000).", group=CLIENTS),
    ] = None,
    processes: Annotated[int, option("--processes", help="Of the generator; 0: one per core.", group=CLIENTS)] = 1,
    rate: Annotated[
        float,
        option("--rate", "-r", help="Messages (conn: connects) per second in all; 0: as fast as possible.", group=LOAD),
    ] = 0.0,
    duration: Annotated[float, option("--duration", "-d", metavar="S", help="Seconds to measure.", group=LOAD)] = 10.0,
    messages: Annotated[
        int, option("--messages", "-n", help="Send so many in all instead (conn: connects).", group=LOAD)
    ] = 0,
    warmup: Annotated[float, option("--warmup", metavar="S", help="Seconds before the measurement.", group=LOAD)] = 1.0,
    drain: Annotated[
        float,
        option("--drain", metavar="S", help="Wait so long for messages on the way; then they are lost.", group=LOAD),
    ] = 60.0,
    payload: Annotated[
        int, option("--payload", help="Bytes; below 16 neither order nor latency is seen.", group=LOAD)
    ] = 64,
    qos: Annotated[int, option("--qos", "-q", help="0, 1 or 2.", group=LOAD)] = 0,
    window: Annotated[
        int, option("--window", "-w", help="QoS 1, 2: unacknowledged messages per publisher.", group=LOAD)
    ] = 100,
    topic: Annotated[str, option("--topic", "-t", help="Prefix of the topics (one that is new).", group=LOAD)] = "",
    protocol: Annotated[Protocol, option("--protocol", help="Of MQTT.", group=NETWORK)] = Protocol.V311,
    tls: Annotated[bool, option("--tls", help="Encrypt.", group=NETWORK)] = False,
    ca: Annotated[
        Path | None, option("--ca", metavar="FILE", help="Trust the authorities in this PEM file.", group=NETWORK)
    ] = None,
    insecure: Annotated[
        bool, option("--insecure", help="Do not check the broker's certificate.", group=NETWORK)
    ] = False,
    ws: Annotated[bool, option("--ws", help="MQTT over WebSocket.", group=NETWORK)] = False,
    ws_path: Annotated[str, option("--ws-path", help="Of the WebSocket.", group=NETWORK)] = "/mqtt",
    username: Annotated[str | None, option("--username", "-u", help="Of all clients.", group=NETWORK)] = None,
    password_file: Annotated[
        Path | None,
        option(
            "--password-file",
            metavar="FILE",
            help=f"Its first line is the password; or set {PASSWORD_VARIABLE}.",
            group=NETWORK,
        ),
    ] = None,
    keep_alive: Annotated[int, option("--keep-alive", metavar="S", help="Seconds; 0: none.", group=NETWORK)] = 0,
    connect_rate: Annotated[
        float, option("--connect-rate", help="Connections per second before the run; 0: no limit.", group=NETWORK)
    ] = 0.0,
    connect_timeout: Annotated[
        float, option("--connect-timeout", metavar="S", help="Seconds until CONNACK and SUBACK.", group=NETWORK)
    ] = 10.0,
    source: Annotated[
        list[str] | None,
        option(
            "--source",
            metavar="ADDRESS",
            help="Local address; repeat it for more than 28,000 connections.",
            group=NETWORK,
        ),
    ] = None,
    core: Annotated[
        list[int] | None, option("--core", help="Run the processes on these cores. Repeatable.", group=CLIENTS)
    ] = None,
    json_file: Annotated[
        Path | None,
        option("--json", metavar="FILE", help="Write the result here too; - is standard output.", group=OUTPUT),
    ] = None,
    quiet: Annotated[bool, option("--quiet", help="No progress.", group=OUTPUT)] = False,
) -> None:
    """Put load on an MQTT broker, and measure what arrives, when, and at which cost.

    Exit codes: 0 fine; 1 messages were lost at QoS above 0, or connections failed; 2 wrong options; 3 could not run.
    """
    console = Console(stderr=str(json_file) == "-", highlight=False, markup=False)
    with _exit_in_words(console):
        counts = _clients(scenario, pairs, publishers, subscribers, clients)
        options = Options(
            scenario=scenario,
            host=host,
            port=port or _default_port(tls, ws),
            publishers=counts.get("publishers", 0),
            subscribers=counts.get("subscribers", 0),
            clients=counts.get("clients", 0),
            rate=rate,
            payload_bytes=payload,
            qos=qos,
            window=window,
            protocol_level=5 if protocol is Protocol.V5 else 4,
            topic=topic,
            duration_s=duration,
            messages=messages,
            warmup_s=warmup,
            drain_s=drain,
            processes=processes or len(os.sched_getaffinity(0)),
            tls=tls,
            ca=str(ca or ""),
            is_insecure=insecure,
            websocket=ws,
            websocket_path=ws_path,
            username=username,
            password=_password(password_file),
            keep_alive_s=keep_alive,
            connect_rate=connect_rate,
            connect_timeout_s=connect_timeout,
            sources=tuple(source or ()),
            cores=tuple(core or ()),
        )
        with Progress(options, console) as progress:
            result = run(options, broker=broker_pid or (), observe=None if quiet else progress.observe)
    show(options, result, console)
    if json_file is not None:
        text = json.dumps({"options": _public(options), "result": asdict(result), "ok": result.is_ok}, indent=2)
        typer.echo(text) if str(json_file) == "-" else json_file.write_text(text + "\n")
    raise typer.Exit(0 if result.is_ok else EXIT_LOST)


@contextmanager
def _exit_in_words(console: Console) -> Iterator[None]:
    """Ends the command with a text instead of a traceback when the run cannot be done."""
    try:
        yield
    except OptionsError as error:
        text, code = str(error), EXIT_REFUSED
    except BenchError as error:
        text, code = str(error), EXIT_FAILED
    except KeyboardInterrupt:
        text, code = "interrupted", EXIT_INTERRUPTED
    else:
        return
    console.print(text, style="bold red", soft_wrap=True)
    raise typer.Exit(code)


def _clients(
    scenario: Scenario, pairs: int | None, publishers: int | None, subscribers: int | None, clients: int | None
) -> dict[str, int]:
    """The numbers of clients with the defaults of the scenario. What a scenario does not know is refused."""
    given = {"pairs": pairs, "publishers": publishers, "subscribers": subscribers, "clients": clients}
    defaults = DEFAULT_CLIENTS[scenario]
    for name, value in given.items():
        if value is not None and name not in defaults:
            known = " and ".join(f"--{name}" for name in defaults)
            raise OptionsError(f"{scenario} has no --{name}; it has {known}")
    chosen = {name: default if (value := given[name]) is None else value for name, default in defaults.items()}
    if scenario is Scenario.P2P:
        return {"publishers": chosen["pairs"], "subscribers": chosen["pairs"]}
    return chosen


def _default_port(tls: bool, ws: bool) -> int:
    return {(False, False): 1883, (True, False): 8883, (False, True): 8083, (True, True): 8084}[tls, ws]


def _password(file: Path | None) -> str | None:
    """From a file or the environment, never from the command line, where everybody on the machine could read it."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE)
    try:
        return file.read_text().partition("\n")[0]
    except OSError as error:
        raise OptionsError(f"cannot read the password file {file}: {error.strerror}") from None


def _public(options: Options) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name != "password"}
