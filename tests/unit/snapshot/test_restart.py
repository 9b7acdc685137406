"""Restart strategies: how long to wait after each failure, and when to stop trying."""

from __future__ import annotations

import pytest

from weir.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart, Settings
from weir.errors import ConfigError, StorageFull, StorageUnavailable, UserCodeError
from weir.snapshot.restart import Failure, GiveUp, Outage, RestartAfter, RestartDecider, Restarts


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


# --- Storage that is away, and user code that fails for good --------------------------------------------


def away(now_ms: float, code: str = StorageUnavailable.code, chance: float = 1.0) -> Failure:
    return Failure(now_ms, "connection refused", code, chance)


def crash(now_ms: float) -> Failure:
    return Failure(now_ms, "killed", "TASK_LOST")


def test_storage_that_is_away_does_not_count_for_the_strategy() -> None:
    restarts = Restarts(FixedDelay(attempts=1, delay="3s"), Settings())
    assert all(isinstance(restarts.failed(away(now_ms)), RestartAfter) for now_ms in range(100))
    assert restarts.failed(crash(100)) == RestartAfter(3_000)
    assert isinstance(restarts.failed(crash(101)), GiveUp)


@pytest.mark.parametrize("code", [StorageUnavailable.code, StorageFull.code])
def test_delays_in_an_outage_grow_to_their_maximum_and_are_partly_drawn(code: str) -> None:
    restarts = Restarts(ExponentialDelay(), Settings(outage_retry_delay="1s", outage_retry_delay_max="4s"))
    decisions = [restarts.failed(away(0, code, chance)) for chance in (1.0, 1.0, 0.0, 0.5)]
    assert decisions == [RestartAfter(1_000), RestartAfter(2_000), RestartAfter(2_000), RestartAfter(3_000)]


def test_an_outage_is_known_by_its_first_failure_and_what_was_found_last() -> None:
    restarts = Restarts(ExponentialDelay(), Settings(outage_retry_delay="1s"))
    restarts.failed(Failure(10, "lost", StorageUnavailable.code, 1.0))
    restarts.failed(crash(15))
    restarts.failed(Failure(20, "refused", StorageUnavailable.code, 1.0))
    assert restarts.outage == Outage(since_ms=10, failures=2, error="refused", retry_ms=2_020)


def test_patience_is_counted_from_the_first_failure_and_ends() -> None:
    restarts = Restarts(ExponentialDelay(), Settings(outage_max="1h"))
    assert isinstance(restarts.failed(away(0)), RestartAfter)
    assert isinstance(restarts.failed(away(3_600_000)), RestartAfter)
    assert restarts.failed(away(3_601_000)) == GiveUp(
        "storage has been away for 3601 s, longer than Settings.outage_max"
    )


def test_a_checkpoint_or_a_minute_of_running_ends_an_outage_and_less_does_not() -> None:
    restarts = Restarts(ExponentialDelay(), Settings(outage_max="1h"))
    restarts.failed(away(0))
    restarts.healthy(1_000)
    restarts.failed(away(60_999))
    assert restarts.outage is not None and restarts.outage.since_ms == 0
    restarts.healthy(70_000)
    restarts.healthy(100_000)
    restarts.failed(away(130_000))
    assert restarts.outage.since_ms == 130_000, "running from the first time that it was said"
    restarts.checkpointed()
    restarts.failed(away(140_000))
    assert restarts.outage.since_ms == 140_000


@pytest.mark.parametrize(("code", "since_ms"), [(StorageFull.code, 0), (StorageUnavailable.code, 0), ("", 120_000)])
def test_running_for_a_minute_ends_no_outage_when_storage_took_none_of_the_checkpoints(
    code: str, since_ms: float
) -> None:
    restarts = Restarts(ExponentialDelay(), Settings())
    restarts.failed(away(0))
    restarts.healthy(1_000)
    restarts.not_checkpointed(code)
    restarts.failed(away(120_000))
    assert restarts.outage is not None and restarts.outage.since_ms == since_ms


def test_without_patience_storage_counts_like_everything_else() -> None:
    restarts = Restarts(FixedDelay(attempts=1), Settings(outage_max=0))
    assert isinstance(restarts.failed(away(0)), RestartAfter)
    assert isinstance(restarts.failed(away(1)), GiveUp)
    assert isinstance(Restarts(NoRestart(), Settings()).failed(away(0)), GiveUp)


def test_user_code_fails_for_good_at_the_third_time_without_a_checkpoint() -> None:
    restarts = Restarts(ExponentialDelay(), Settings())
    failure = Failure(0, "division by zero", UserCodeError.code)
    assert [type(restarts.failed(failure)) for _ in range(2)] == [RestartAfter] * 2
    restarts.checkpointed()
    assert [type(restarts.failed(failure)) for _ in range(3)] == [RestartAfter, RestartAfter, GiveUp]
