"""Times and sizes: what users write is turned into plain values, and what is wrong is refused by its name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from weir.config import Checkpoints, duration_ms, size_bytes
from weir.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [
        ("250ms", 250),
        ("5s", 5_000),
        ("1.5s", 1_500),
        (".5s", 500),
        (" 2 m ", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        (2, 2_000),
        (0.25, 250),
        (0, 0),
        (timedelta(minutes=1, milliseconds=3), 60_003),
    ],
)
def test_a_duration_becomes_whole_milliseconds(written: Any, expected_ms: int) -> None:
    assert duration_ms(written) == expected_ms


BAD_DURATIONS = [
    10**400,
    1e300,
    "",
    "5",
    "5 parsecs",
    "s",
    ".s",
    "1.2.3s",
    "-5s",
    "5S",
    None,
    True,
    [],
    float("nan"),
    float("inf"),
]


@pytest.mark.parametrize("written", [*BAD_DURATIONS, -1, timedelta(seconds=-1)], ids=repr)
def test_a_bad_duration_is_refused_by_name_and_value(written: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        duration_ms(written, "Checkpoints.every")
    assert str(caught.value).startswith("Checkpoints.every: ")
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize(
    ("written", "expected_bytes"),
    [("64KB", 65_536), ("1.5 mb", 1_572_864), ("2GB", 2 << 30), ("1TB", 1 << 40), ("7B", 7), (10, 10), (0, 0)],
)
def test_a_size_becomes_bytes(written: Any, expected_bytes: int) -> None:
    assert size_bytes(written) == expected_bytes


@pytest.mark.parametrize(
    "written",
    ["", "64", "KB", "1.2.3KB", ".KB", "-1KB", "3PB", "9" * 400 + "GB", 10**400, -1, 1.5, None, True],
    ids=repr,
)
def test_a_bad_size_is_refused_by_name_and_value(written: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        size_bytes(written, "Checkpoints.memory_limit")
    assert str(caught.value).startswith("Checkpoints.memory_limit: ")
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize("value", [61, 5_000, 60.5])
def test_a_bare_number_above_a_minute_is_refused_with_what_may_be_meant(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"every: {value} would be .* write '{value}ms' or '{value}s'"):
        Checkpoints(every=value)
    assert duration_ms(60) == 60_000
