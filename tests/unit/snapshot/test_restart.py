"""Restart strategies: how long to wait after each failure, and when to stop trying."""

from __future__ import annotations

import pytest

from weir.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart
from weir.errors import ConfigError
from weir.snapshot.restart import GiveUp, RestartAfter, RestartDecider


def delays(restart: Restart, *failed_ms: float) -> list[float | str]:
    """The delay after each failure, or the reason for giving up."""
    decider = RestartDecider.from_config(restart)
    decisions = [decider.failed(moment) for moment in failed_ms]
    return [d.delay_ms if isinstance(d, RestartAfter) else d.reason for d in decisions]


def test_without_a_strategy_the_first_failure_ends_the_job() -> None:
    assert isinstance(RestartDecider.from_config(NoRestart()).failed(0), GiveUp)


def test_a_fixed_delay_allows_so_many_restarts_in_all() -> None:
    *first, last = delays(FixedDelay(attempts=2, delay="3s"), 0, 10**9, 2 * 10**9)
    assert first == [3_000, 3_000]
    assert last == "3 failures; FixedDelay allows 2 restarts"


def test_an_exponential_delay_grows_to_its_maximum_and_then_gives_up() -> None:
    restart = ExponentialDelay(initial="100ms", maximum="350ms", multiplier=2.0, attempts=4)
    *first, last = delays(restart, 0, 1, 2, 3, 4)
    assert first == [100, 200, 350, 350]
    assert "5 failures in a row" in str(last)


def test_an_exponential_delay_without_a_limit_never_gives_up() -> None:
    assert delays(ExponentialDelay(maximum="1s", attempts=None), *range(1_000))[-1] == 1_000


def test_an_exponential_delay_falls_back_after_a_healthy_time_and_only_then() -> None:
    decider = RestartDecider.from_config(ExponentialDelay(initial="1s", maximum="8s", reset_after="1m", attempts=2))
    assert decider.failed(0) == RestartAfter(1_000)
    assert decider.failed(100_000) == RestartAfter(2_000), "it never ran, however long that took"
    decider.healthy(200_000)
    decider.healthy(250_000)
    assert decider.failed(260_000) == RestartAfter(1_000), "healthy from the first time that it was said"
    decider.healthy(300_000)
    assert decider.failed(359_999) == RestartAfter(2_000)
    assert isinstance(decider.failed(400_000), GiveUp), "the healthy time before the last failure counts no more"


def test_a_failure_rate_counts_only_what_is_recent() -> None:
    restart = FailureRate(failures=2, per="10s", delay="500ms")
    assert delays(restart, 0, 5_000, 10_000, 15_000, 20_000) == [500] * 5
    *first, last = delays(restart, 0, 5_000, 9_999)
    assert first == [500, 500]
    assert last == "3 failures within 10000 ms; FailureRate allows 2"


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not NoRestart"):
        RestartDecider.from_config("always")  # type: ignore[arg-type]
