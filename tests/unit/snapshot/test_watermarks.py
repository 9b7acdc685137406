"""The watermark of several channels: the least of those that count, and never back."""

from __future__ import annotations

import random

import pytest

from weir.errors import ProtocolViolation
from weir.snapshot.watermarks import END_US, NEVER_US, WatermarkMerge


def test_the_slowest_channel_decides() -> None:
    merge = WatermarkMerge(2)
    assert merge.advanced(0, 10) is None
    assert merge.advanced(1, 4) == 4
    assert merge.advanced(1, 20) == 10
    assert merge.advanced(1, 30) is None


def test_an_idle_channel_holds_nothing_back() -> None:
    merge = WatermarkMerge(2)
    merge.advanced(0, 10)
    assert merge.idle(1) == 10
    assert merge.advanced(0, 20) == 20


def test_a_channel_that_resumes_behind_counts_when_it_has_caught_up() -> None:
    merge = WatermarkMerge(2)
    merge.advanced(1, 5)
    merge.advanced(0, 10)
    merge.idle(1)
    assert merge.advanced(0, 20) == 20
    merge.resumed(1)
    assert merge.advanced(1, 8) is None
    assert merge.advanced(0, 30) == 30  # not held back by one that is behind
    assert merge.advanced(1, 31) is None
    assert merge.advanced(0, 40) == 31


def test_when_all_are_idle_the_greatest_holds() -> None:
    merge = WatermarkMerge(2)
    merge.advanced(0, 10)
    merge.advanced(1, 3)
    assert merge.idle(1) == 10
    assert not merge.is_idle
    assert merge.idle(0) is None
    assert merge.is_idle


def test_an_ended_channel_holds_nothing_back_and_the_last_ends_event_time() -> None:
    merge = WatermarkMerge(2)
    merge.advanced(0, 10)
    assert merge.ended(1) == 10
    assert merge.idle(1) is None
    assert merge.ended(0) == END_US


def test_a_channel_cannot_go_back() -> None:
    merge = WatermarkMerge(1)
    merge.advanced(0, 10)
    with pytest.raises(ProtocolViolation, match="went back from 10 to 9"):
        merge.advanced(0, 9)


@pytest.mark.parametrize("seed", range(50))
def test_the_merged_watermark_never_goes_back_nor_beyond_a_channel_that_was_never_idle(seed: int) -> None:
    rng = random.Random(seed)
    merge, times, before = WatermarkMerge(3), [NEVER_US] * 3, NEVER_US
    for _ in range(100):
        channel = rng.randrange(3)
        if channel == 2 and rng.random() < 0.4:
            merge.idle(2)
        else:
            times[channel] = max(times[channel], 0) + rng.randint(0, 5)
            merge.advanced(channel, times[channel])
        assert merge.time_us >= before
        assert merge.time_us <= min(times[:2])
        before = merge.time_us


def test_event_time_has_not_ended_while_an_idle_channel_may_go_on() -> None:
    merge = WatermarkMerge(2)
    merge.advanced(0, 5)
    merge.advanced(1, 9)
    merge.idle(0)
    assert merge.time_us == 9
    assert merge.ended(1) is None
    merge.resumed(0)
    assert merge.advanced(0, 12) == 12
    assert merge.ended(0) == END_US


def test_channels_without_watermarks_hold_nothing_back_unless_there_are_no_others() -> None:
    merge = WatermarkMerge(3, timeless=[2])
    merge.advanced(0, 5)
    assert merge.advanced(1, 4) == 4
    merge.resumed(2)
    assert merge.advanced(1, 7) == 5
    assert merge.ended(0) == 7
    assert merge.ended(1) is None
    assert merge.ended(2) == END_US
    alone = WatermarkMerge(2, timeless=[0, 1])
    assert alone.ended(0) is None
    assert alone.ended(1) == END_US


@pytest.mark.parametrize("seed", range(50))
def test_the_merged_watermark_is_what_a_look_at_all_channels_would_say(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    timeless = rng.sample(range(count), rng.randint(0, count - 1))
    merge, times = WatermarkMerge(count, timeless), [NEVER_US] * count
    counts, idle = [c not in timeless for c in range(count)], [c in timeless for c in range(count)]
    merged = NEVER_US
    for _ in range(300):
        channel, act = rng.randrange(count), rng.random()
        if act < 0.15:
            merge.idle(channel)
            if times[channel] != END_US:
                idle[channel], counts[channel] = True, False
        elif act < 0.3:
            merge.resumed(channel)
            if idle[channel] and channel not in timeless:
                idle[channel], counts[channel] = False, times[channel] >= merged
            continue
        elif times[channel] != END_US:
            times[channel] = END_US if act > 0.995 else max(times[channel], 0) + rng.choice([0, 1, 5, 50])
            merge.advanced(channel, times[channel])
            idle[channel], counts[channel] = False, counts[channel] or times[channel] >= merged
        still_open = [c for c in range(count) if times[c] != END_US]
        deciding = [times[c] for c in still_open if counts[c]]
        merged = max(merged, min(deciding) if deciding else max((times[c] for c in still_open), default=END_US))
        assert merge.time_us == merged
        assert merge.is_idle == all(idle)
        assert merge.ahead == sum(1 << c for c in range(count) if times[c] > merged)


def test_a_channel_far_ahead_of_a_silent_one_leaves_nothing_behind_for_each_of_its_watermarks() -> None:
    merge = WatermarkMerge(2)
    for time_us in range(10_000):
        merge.advanced(0, time_us)
    assert len(merge._deciding._heap) + len(merge._leading._heap) < 50
