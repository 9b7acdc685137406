"""Delays between tries: they grow, they end at a maximum, and no two jobs share them."""

from __future__ import annotations

import random

import pytest

from weir.config import Settings
from weir.errors import ConfigError, ProtocolViolation
from weir.snapshot.backoff import Backoff


def test_a_delay_is_at_least_half_of_what_it_may_be_and_never_more_than_the_maximum() -> None:
    backoff, dice = Backoff(initial_ms=100, maximum_ms=30_000), random.Random(7)
    for failures in range(1, 200):
        whole_ms = min(100 * 2.0 ** (failures - 1), 30_000)
        delays_ms = [backoff.delay_ms(failures, dice.random()) for _ in range(50)]
        assert all(whole_ms / 2 <= delay_ms <= whole_ms for delay_ms in delays_ms)
        assert len(set(delays_ms)) == 50, "many that failed together come back one by one"


def test_a_million_failures_are_no_overflow() -> None:
    assert Backoff(1, 60_000).delay_ms(1_000_000, 1.0) == 60_000


@pytest.mark.parametrize(("failures", "chance"), [(0, 0.5), (1, -0.1), (1, 1.1)])
def test_what_was_not_drawn_or_did_not_fail_is_our_bug(failures: int, chance: float) -> None:
    with pytest.raises(ProtocolViolation):
        Backoff(1, 2).delay_ms(failures, chance)


def test_the_settings_name_both_ends() -> None:
    settings = Settings(commit_retry_delay="20ms", commit_retry_delay_max="2s", outage_retry_delay_max="1m")
    assert Backoff.for_commits(settings) == Backoff(20, 2_000)
    assert Backoff.for_outages(settings) == Backoff(100, 60_000)


@pytest.mark.parametrize("name", ["commit_retry_delay", "outage_retry_delay"])
def test_a_longest_delay_that_is_shorter_than_the_first_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Settings.{name}_max: 1000 ms is shorter than {name}, 2000 ms"):
        Settings(**{name: "2s", f"{name}_max": "1s"})
