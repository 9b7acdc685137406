"""Settings: what users write is turned into plain values, and what is wrong is refused by its name.

Every refusal must be a ConfigError that names the setting: a bare ValueError from
deep inside would leave the user guessing.
"""

from __future__ import annotations

import ast
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.config import (
    Checkpoints,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    JobConfig,
    NoRestart,
    RocksDb,
    Settings,
    duration_ms,
    size_bytes,
)
from weir.config.units import Bytes, Milliseconds
from weir.errors import ConfigError

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
    (Settings, "commit_retry_delay", "soon"),
    (Settings, "storage_retry_delay_max", "1ms"),
    (Settings, "outage_max", "a day"),
    (Settings, "loop_memory_max", "much"),
    (Settings, "loop_disk_max", -1),
    (RocksDb, "memory_max", "much"),
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


KINDS = (Checkpoints, Settings, RocksDb, FixedDelay, ExponentialDelay, FailureRate)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_time_and_each_size_stands_beside_its_setting_in_its_unit(kind: type[Any]) -> None:
    written = {f.name: f.type for f in fields(kind) if f.type in ("Duration", "Size")}
    made = kind()
    for name, what in written.items():
        parsed = duration_ms(getattr(made, name)) if what == "Duration" else size_bytes(getattr(made, name))
        attribute = f"{name}_ms" if what == "Duration" else f"{name.replace('_bytes', '')}_bytes"
        assert getattr(made, attribute) == getattr(kind, attribute) == parsed


def test_a_changed_setting_is_read_anew_and_the_old_one_stays() -> None:
    settings = Settings(outage_max="1m")
    assert replace(settings, outage_max="2m").outage_max_ms == 120_000
    assert pickle.loads(pickle.dumps(settings)).outage_max_ms == settings.outage_max_ms == 60_000


def test_a_setting_is_parsed_once_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, checkpoints = Settings(), Checkpoints()
    monkeypatch.setattr(Milliseconds, "parse", None)
    monkeypatch.setattr(Bytes, "parse", None)
    assert settings.heartbeat_interval_ms == 500
    assert settings.message_max_bytes == 1 << 30
    assert checkpoints.timeout_ms == 600_000


def test_nobody_outside_of_config_parses_a_setting() -> None:
    """They read `settings.outage_max_ms`; what users write elsewhere, such as windows, is parsed where it is taken."""
    names = {field.name for kind in KINDS for field in fields(kind)}
    package = Path(weir.__file__).parent
    parsed = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.parent.name != "config"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("duration_ms", "size_bytes")
        and any(isinstance(part, ast.Attribute) and part.attr in names for a in node.args for part in ast.walk(a))
    ]
    assert parsed == []


def test_what_a_restart_does_without_checkpoints_of_state_is_said_only_where_there_are_none() -> None:
    assert Checkpoints(mode="none").on_restart == "continue"
    assert Checkpoints(every="5s", mode="none", on_restart="from_the_beginning").commit_interval_ms == 5_000
    with pytest.raises(ConfigError, match=r"on_restart: 'latest' is not one of continue, from_the_beginning"):
        Checkpoints(mode="none", on_restart="latest")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a restart goes on from the last checkpoint; .* needs mode=\"none\""):
        Checkpoints(on_restart="from_the_beginning")


@pytest.mark.parametrize(
    ("checkpoints", "restart", "is_at_most_once"),
    [
        (Checkpoints(mode="none"), FixedDelay(), True),
        (Checkpoints(mode="none", on_restart="from_the_beginning"), FixedDelay(), False),
        (Checkpoints(mode="none"), NoRestart(), False),
        (Checkpoints(), FixedDelay(), False),
        (None, FixedDelay(), False),
    ],
)
def test_a_job_is_at_most_once_if_it_restarts_and_keeps_no_state(
    checkpoints: Checkpoints | None, restart: NoRestart | FixedDelay, is_at_most_once: bool
) -> None:
    assert JobConfig("job", checkpoints, restart).is_at_most_once is is_at_most_once
