"""Steady load by the native load generator: each flow is a run of its own process, watched by a thread of ours."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from tbmq.loadgen import BenchError, Options, Result, Scenario, run
from tbmq.loadgen.result import Totals
from tests.helpers.transports import Transports

CONNECT_TIMEOUT_S = 30.0  # the machine may have other things to do


class _Stopped(Exception):
    pass


class Flow(threading.Thread):
    """Counts are those of the load generator so far; `result` is there when it has ended well, else `error`."""

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name=name, daemon=True)
        self.options = options
        self.result: Result | None = None
        self.error = ""
        self._totals = Totals()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def run(self) -> None:
        try:
            self.result = run(self.options, observe=self._observe)
        except BenchError as error:
            self.error = str(error)
        except _Stopped:
            self.error = "interrupted"

    def _observe(self, phase: str, totals: Totals) -> None:
        self._totals = totals
        if self._is_stopped:
            raise _Stopped

    @property
    def counts(self) -> dict[str, int]:
        totals = self._totals
        return {"sent": totals["sent"], "received": totals["received"], "connects": totals["connected"]}

    @property
    def problems(self) -> list[str]:
        """What is wrong with it: QoS 1 or 2 lost, connections that failed, or no result at all."""
        if self.result is None:
            return [self.error or "it did not end"]
        return list(self.result.problems)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "result": asdict(self.result) if self.result else None,
            "problems": self.problems,
        }


def make_flows(target: Transports, seconds: float) -> list[Flow]:
    """Pairs at each QoS over each transport, a shared group, a fan-out, and connections that come and go."""
    ports = target.ports
    tls = {"host": "localhost", "tls": True, "ca": str(target.authority.path)}
    p2p = Scenario.P2P
    kinds: dict[str, dict[str, Any]] = {
        "pairs QoS 0": {"scenario": p2p, "pairs": 20, "qos": 0, "rate": 2_000.0},
        "pairs QoS 1": {"scenario": p2p, "pairs": 20, "qos": 1, "rate": 1_000.0, "protocol_level": 5},
        "pairs QoS 2": {"scenario": p2p, "pairs": 20, "qos": 2, "rate": 500.0},
        "TLS QoS 1": {"scenario": p2p, "pairs": 4, "qos": 1, "rate": 100.0, "port": ports["tls"], **tls},
        "WebSocket QoS 2": {
            "scenario": p2p,
            "pairs": 4,
            "qos": 2,
            "rate": 100.0,
            "port": ports["ws"],
            "websocket": True,
            "protocol_level": 5,
        },
        "shared QoS 1": {"scenario": Scenario.SHARED, "publishers": 4, "subscribers": 4, "qos": 1, "rate": 200.0},
        "fan-out QoS 0": {"scenario": Scenario.FANOUT, "publishers": 1, "subscribers": 50, "qos": 0, "rate": 20.0},
        "connects": {"scenario": Scenario.CONN, "clients": 8, "rate": 50.0},
    }
    flows = []
    for name, fields in kinds.items():
        if pairs := fields.pop("pairs", 0):
            fields |= {"publishers": pairs, "subscribers": pairs}
        fields = {"port": ports["tcp"], **fields}
        options = Options(duration_s=seconds, warmup_s=0.0, connect_timeout_s=CONNECT_TIMEOUT_S, **fields)
        flows.append(Flow(name, options))
    return flows
