"""What holds for all tests: which core they run on, and how long the random ones take."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

import tbmq

IS_FULL = os.environ.get("TBMQ_FULL") == "1"
IS_ASAN = os.environ.get("TBMQ_ASAN") == "1"
PACKAGE = Path(tbmq.__file__).parent

# No deadline: a slow machine is not a failure. Tests that hang meet the time-out of pyproject.toml.
settings.register_profile("quick", deadline=None, max_examples=100)
settings.register_profile("full", deadline=None, max_examples=5_000)
settings.load_profile("full" if IS_FULL else "quick")


def pytest_report_header() -> list[str]:
    return [f"tbmq from {PACKAGE}{' (AddressSanitizer)' if IS_ASAN else ''}{', full run' if IS_FULL else ''}"]


def pytest_sessionstart() -> None:
    """A green run under AddressSanitizer that ran on the ordinary build would prove nothing."""
    if ("asan" in PACKAGE.parts) != IS_ASAN:
        pytest.exit(f"tbmq was imported from {PACKAGE}, which is not the build asked for", returncode=3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Full campaigns take their time; each has an hour instead of minutes."""
    if IS_FULL:
        for item in items:
            item.add_marker(pytest.mark.timeout(3_600))
