"""How long each part of a soak takes. A short one has the same parts, only shorter.

    warm up ──▶ prelude ──▶ settle ──▶ level before ──▶ load, sampled ──▶ settle ──▶ level after

"Before" shall hold what is kept on purpose: match caches that are full, free buffers, code that is imported when first
needed. So each kind of client warms every worker up (`Actor.warm`), and the prelude is a short load of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    load_s: float
    prelude_s: float
    sample_s: float
    expiry_s: int  # most that a session outlives its connection: after it, nothing of the load is left
    workers: int
    seed: int

    @property
    def settle_s(self) -> float:
        """Sessions have expired then; their timers have a second's grain, and closing sockets linger for two."""
        return self.expiry_s + 3.0


def make_plan(minutes: float, *, workers: int = 2, seed: int = 1) -> Plan:
    load_s = minutes * 60
    is_short = load_s < SHORT_S
    return Plan(
        load_s=load_s,
        prelude_s=min(30.0, load_s / 3),
        sample_s=0.5 if is_short else 5.0,
        expiry_s=2 if is_short else 10,
        workers=workers,
        seed=seed,
    )
