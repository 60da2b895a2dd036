"""`@covers("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")`: which normative statements a test shows.

A bare number is of MQTT 5, `v3:` of MQTT 3.1.1. `tests/conformance.py` collects them into docs/conformance.md.
"""

import re
from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

STATEMENT = re.compile(r"^(v3:)?MQTT-\d+\.\d+\.\d+-\d+$")


def covers(*statements: str) -> Callable[[Test], Test]:
    for statement in statements:
        assert STATEMENT.match(statement), f"{statement!r} is not the number of a normative statement"

    def mark(test: Test) -> Test:
        test.covers = (*getattr(test, "covers", ()), *statements)  # type: ignore[attr-defined]
        return test

    return mark
