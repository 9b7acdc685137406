"""What every test may use: marks that follow from where a test lives, and waiting with a deadline.

Everything below tests/spark is marked `spark`, so that `-m "not spark"` needs no Java; everything below tests/services
is marked `services`, and needs what scripts/services.sh fetches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
SPARK_TESTS = Path(__file__).parent / "spark"
SERVICE_TESTS = Path(__file__).parent / "services"
POLL_S = 0.01
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark that lives for seconds spends half of its time on code that it will never run often."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)
        if SERVICE_TESTS in item.path.parents:
            item.add_marker(pytest.mark.services)


@pytest.fixture(scope="session", autouse=True)
def own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Jobs of tests are listed in a directory of the test run's own, not in the user's; JVMs that they start are made
    for a short life."""
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory))
        patch.setenv("SPARK_SUBMIT_OPTS", SHORT_LIVED_JVM)
        yield directory


@pytest.fixture
def eventually() -> Callable[..., T]:
    """`eventually(condition, within_s=10.0)` polls until the condition is truthy and returns its value."""
    return poll


def poll(condition: Callable[[], T], within_s: float = 10.0) -> T:
    """Poll until `condition()` is truthy; fail with its last value when the deadline has passed."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {within_s} s; the last value was {value!r}")
        pause.wait(POLL_S)
