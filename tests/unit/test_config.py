"""Settings: what users write is turned into plain values, and what is wrong is refused by its name.

Every refusal must be a ConfigError that names the setting: a bare ValueError from
deep inside would leave the user guessing.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from weir.config import (
    Checkpoints,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    JobConfig,
    NoRestart,
    Settings,
    duration_ms,
    size_bytes,
)
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


BAD_SETTINGS: list[tuple[type[Any], str, Any]] = [
    (Checkpoints, "every", "soon"),
    (Checkpoints, "every", 0),
    (Checkpoints, "mode", "exactly-once"),
    (Checkpoints, "timeout", "0s"),
    (Checkpoints, "timeout", None),
    (Checkpoints, "min_pause", "-1s"),
    (Checkpoints, "max_concurrent", 0),
    (Checkpoints, "max_concurrent", "2"),
    (Checkpoints, "tolerable_failures", -1),
    (Checkpoints, "retain", 0),
    (Checkpoints, "retain", 1.5),
    (Checkpoints, "memory_limit", "lots"),
    (Checkpoints, "exclusive_storage", "no"),
    (Checkpoints, "to", ""),
    (Checkpoints, "to", 5),
    (Settings, "trust_spark_network", "false"),
    (Settings, "show_rows", "false"),
    (Settings, "local_recovery", 1),
    (Settings, "share_slots", None),
    (Settings, "message_max", 0),
    (Settings, "message_max", 10),
    (Settings, "ping_interval", 10**400),
    (Settings, "max_parallelism", 0),
    (Settings, "max_parallelism", 32_769),
    (Settings, "batch_rows_max", 0),
    (Settings, "batch_bytes_max", "much"),
    (Settings, "buffer_timeout", "10"),
    (Settings, "channel_batches_max", 0),
    (Settings, "heartbeat_interval", "often"),
    (Settings, "heartbeat_timeout", -1),
    (Settings, "ping_interval", 0),
    (Settings, "driver_ports", "high"),
    (Settings, "task_ports", "7100-7000"),
    (Settings, "task_ports", "0-70000"),
    (Settings, "task_ports", 7000),
    (Settings, "tls", "always"),
    (Settings, "message_max", "much"),
    (Settings, "line_timeout", "1.9s"),
    (Settings, "launch_timeout", "1 minute"),
    (Settings, "stop_timeout", None),
    (Settings, "snapshot_threads", True),
    (Settings, "commit_retries_max", -1),
    (Settings, "storage_retries_max", "5"),
    (FixedDelay, "attempts", -1),
    (FixedDelay, "delay", "later"),
    (ExponentialDelay, "initial", "x"),
    (ExponentialDelay, "maximum", -1),
    (ExponentialDelay, "multiplier", 0.5),
    (ExponentialDelay, "multiplier", float("nan")),
    (ExponentialDelay, "reset_after", ""),
    (ExponentialDelay, "attempts", -1),
    (FailureRate, "failures", -1),
    (FailureRate, "per", "day"),
    (FailureRate, "delay", None),
]


@pytest.mark.parametrize(
    ("kind", "name", "value"), BAD_SETTINGS, ids=lambda part: getattr(part, "__name__", repr(part))
)
def test_a_bad_value_is_refused_when_the_settings_are_made(kind: type[Any], name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{name: value})
    assert str(caught.value).startswith(f"{kind.__name__}.{name}: ")


@pytest.mark.parametrize("name", ["resume", "allow_dropped_state"])
def test_what_a_run_is_asked_for_is_a_plain_yes_or_no(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"JobConfig.{name}: 'no' is neither True nor False"):
        JobConfig("totals", **{name: "no"})  # type: ignore[arg-type]


def test_the_defaults_are_valid_and_survive_pickling() -> None:
    for config in (Checkpoints(), Settings(), FixedDelay(), ExponentialDelay(), FailureRate(), NoRestart()):
        assert pickle.loads(pickle.dumps(config)) == config
    job = JobConfig("totals", checkpoints=Checkpoints(every="5s", to="file:///tmp/x"))
    assert pickle.loads(pickle.dumps(job)) == job


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(AttributeError):
        Checkpoints().retain = 0  # type: ignore[misc]


def test_checkpoints_speak_in_milliseconds_and_bytes() -> None:
    checkpoints = Checkpoints(every="5s", timeout="1m", min_pause=0.5, memory_limit="1MB")
    assert checkpoints.interval_ms == 5_000
    assert checkpoints.timeout_ms == 60_000
    assert checkpoints.min_pause_ms == 500
    assert checkpoints.memory_limit_bytes == 1 << 20


def test_without_an_interval_or_a_mode_there_are_no_periodic_checkpoints() -> None:
    assert Checkpoints(every=None).interval_ms is None
    assert Checkpoints(every="5s", mode="none").interval_ms is None


@pytest.mark.parametrize("value", [61, 5_000, 60.5])
def test_a_bare_number_above_a_minute_is_refused_with_what_may_be_meant(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"every: {value} would be .* write '{value}ms' or '{value}s'"):
        Checkpoints(every=value)
    assert duration_ms(60) == 60_000
