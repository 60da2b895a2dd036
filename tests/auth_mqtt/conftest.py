"""One broker with Basic and SCRAM on for each number of workers; every test makes the credentials that it needs."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.helpers.secured import Secured, new_name, run_secured


@pytest.fixture(scope="session", params=[1, 3], ids=lambda count: f"{count}worker")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with run_secured(tmp_path_factory.mktemp("secured"), "scram", workers=request.param) as started:
        yield started


@pytest.fixture
def secured(running: Secured) -> Iterator[Secured]:
    start = running.broker.log_bytes()
    yield running
    running.close_clients()
    running.broker.assert_healthy(since=start)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its broker printed last."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Secured):
                report.sections.append(("end of the broker's log", value.broker.log()[-3_000:]))
    return report


@pytest.fixture
def topic() -> str:
    return new_name("topic")
