"""The rows of `bench compare --extra` about who may come in: what rules cost, how fast logins are, what a storm does.

    rules    50 pairs, QoS 0: CPU per message of clients with 20 rules each, against an open broker, one after the other
    logins   connects per second and core with user name and password, after the first one has warmed the caches
    storm    p99 latency of steady traffic while 5,000 clients come with wrong passwords

The entity store is made with the broker's own code, in the broker's folder, before it starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.compare_brokers import BrokerError, BrokerKind, our_broker, running
from bench.compare_setup import Setup, Values
from tbmq._codec import encode
from tbmq.auth.model import Action, Effect, PatternKind, Rule
from tbmq.auth.passwords import hash_password
from tbmq.config import Config
from tbmq.loadgen import Options, Scenario, run
from tbmq.loadgen.result import Result
from tbmq.packets import Connect
from tbmq.storage.entities import BasicProof, Credentials, ProviderKind
from tbmq.storage.sql import open_entities

USERNAME, PASSWORD = "bench", "correct horse"
N_RULES = 20
STORM = 5_000
STORM_AT_ONCE = 200
STEADY_RATE = 2_000


def measure_rules(setup: Setup) -> Values:
    options = Options(scenario=Scenario.P2P, warmup_s=setup.warmup_s, duration_s=setup.seconds)
    open_us = _cost(_run(our_broker(), setup, options))
    ruled_us = _cost(_run(guarded_broker(_rules()), setup, replace(options, username=USERNAME, password=PASSWORD)))
    return {"open_us": open_us, "ruled_us": ruled_us, "times": ruled_us / open_us}


def measure_logins(setup: Setup) -> Values:
    options = Options(
        scenario=Scenario.CONN,
        clients=100,
        warmup_s=setup.warmup_s,
        duration_s=setup.seconds,
        username=USERNAME,
        password=PASSWORD,
    )
    result = _run(guarded_broker(()), setup, options)
    return {"per_s": result.connects_per_s, "per_core_s": 1e6 / _cost(result), "cpu_us": _cost(result)}


def measure_storm(setup: Setup) -> Values:
    """The storm and the steady traffic share the generator's core; the broker has its own."""
    options = Options(
        scenario=Scenario.P2P, publishers=10, subscribers=10, rate=STEADY_RATE, username=USERNAME, password=PASSWORD
    )
    with running(guarded_broker(()), cores=[setup.broker_core]) as (pid, port):
        options = replace(
            options, port=port, warmup_s=0.0, duration_s=max(setup.seconds, 5.0), cores=(setup.generator_core,)
        )
        refused: list[int] = []
        storm = threading.Thread(target=lambda: refused.append(asyncio.run(_storm(port))))
        storm.start()
        result = run(options, broker=[str(pid)], observe=setup.observe)
        storm.join()
    if result.lost or result.latency is None:
        raise BrokerError(f"a storm of logins: {result.lost} messages were lost")
    return {"p99_ms": result.latency.p99_us / 1000, "refused": float(refused[0])}


async def _storm(port: int) -> int:
    """Every client with another wrong password, so that no answer is remembered. Answers how many were refused."""
    numbers = iter(range(STORM))

    async def knock() -> int:
        refused = 0
        for number in numbers:
            packet = Connect(client_id=f"stranger-{number}", username=USERNAME, password=b"wrong %d" % number)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode(packet, packet.protocol_level, client=True))
            refused += (await reader.read())[:1] == b"\x20"
            writer.close()
        return refused

    return sum(await asyncio.gather(*(knock() for _ in range(STORM_AT_ONCE))))


def _run(kind: BrokerKind, setup: Setup, options: Options) -> Result:
    with running(kind, cores=[setup.broker_core]) as (pid, port):
        result = run(
            replace(options, port=port, cores=(setup.generator_core,)), broker=[str(pid)], observe=setup.observe
        )
    if result.problems:
        raise BrokerError(f"{options.scenario}: {'; '.join(result.problems)}")
    return result


def _cost(result: Result) -> float:
    if not result.broker_cpu_us_per_message:
        raise BrokerError("too short to see CPU time")
    return result.broker_cpu_us_per_message


# --- a broker with credentials ---


def guarded_broker(rules: tuple[Rule, ...]) -> BrokerKind:
    """Ours, with one user; without rules everything is allowed to it."""
    ours = our_broker()
    return BrokerKind(ours.name, _after(lambda folder: _make_store(folder / "data", rules), ours.command))


def _after(
    prepare: Callable[[Path], None], command: Callable[[int, Path], list[str]]
) -> Callable[[int, Path], list[str]]:
    def prepared(port: int, folder: Path) -> list[str]:
        prepare(folder)
        return command(port, folder)

    return prepared


def _make_store(data_dir: Path, rules: tuple[Rule, ...]) -> None:
    async def fill() -> None:
        store = await open_entities(Config(data_dir=data_dir))
        credentials = Credentials("bench", BasicProof(username=USERNAME, password_hash=hash_password(PASSWORD)))
        await store.credentials.add([replace(credentials, rules=rules) if rules else credentials])
        await store.providers.set_enabled(ProviderKind.BASIC, True)
        await store.close()

    asyncio.run(fill())


def _rules() -> tuple[Rule, ...]:
    """The last one decides."""
    others = [
        Rule(Effect.DENY, Action.ALL, PatternKind.FILTER, f"plant/{number}/${{clientid}}/#")
        for number in range(N_RULES - 1)
    ]
    return (*others, Rule(Effect.ALLOW, Action.ALL, PatternKind.FILTER, "#"))
