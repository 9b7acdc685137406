"""The benchmark of many channels: what it prints, and that a subtask which loses or mixes up rows is found out."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from weir.bench import fan_in
from weir.bench.fan_in import FanInOptions, run_fan_in
from weir.cli.main import application
from weir.runtime.task.inner_subtask import InnerSubtask
from weir.runtime.task.turns import Turns

SMALL = FanInOptions((1, 3), elements=60, rounds=2)


def bench(channels: str) -> tuple[int, str]:
    arguments = ["bench", "fan-in", "--channels", channels, "--elements", "100", "--rounds", "1", "--json"]
    result = CliRunner().invoke(application(), arguments)
    return result.exit_code, result.stdout + result.stderr


def verified() -> list[bool]:
    return [report.verified for report in run_fan_in(SMALL)]


def test_each_number_of_channels_is_measured_and_verified_and_all_are_compared() -> None:
    code, out = bench("2,5")
    two, five, both = (json.loads(line) for line in out.splitlines())
    assert code == 0 and two["verified"] and five["verified"] and both["verified"]
    assert (two["channels"], five["channels"], both["channels"]) == (2, 5, [2, 5])
    assert (two["events"], five["events"], both["events"]) == (100, 100, 200)
    costs_us = sorted([two["us_per_element"], five["us_per_element"]])
    assert costs_us[0] > 0 and both["dearest_to_cheapest"] == pytest.approx(costs_us[1] / costs_us[0], abs=0.02)


@pytest.mark.parametrize(("worst_s", "is_flat"), [(0.015, True), (0.016, False)])
def test_the_cost_is_flat_within_one_and_a_half_times(
    monkeypatch: pytest.MonkeyPatch, worst_s: float, is_flat: bool
) -> None:
    seconds = {1: 0.01, 3: worst_s}
    monkeypatch.setattr(fan_in, "_round", lambda count, elements: fan_in._Round(elements, seconds[count], True))
    comparison = run_fan_in(SMALL)[-1]
    assert comparison.more["flat"] is is_flat and comparison.verified


@pytest.mark.parametrize("channels", ["two", "2,", "0", "2,5000"])
def test_what_is_no_number_of_channels_is_refused(channels: str) -> None:
    code, out = bench(channels)
    assert code == 1 and "--channels" in out


def test_rows_that_are_lost_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verified() == [True, True, True]
    merged = InnerSubtask._merged

    def lossy(self: InnerSubtask, channel: int, first: pa.RecordBatch) -> pa.RecordBatch:
        return merged(self, channel, first).slice(0, 0 if channel == 2 else 1)

    monkeypatch.setattr(InnerSubtask, "_merged", lossy)
    assert verified() == [True, False, False]


def test_a_channel_that_is_forgotten_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    next_of = Turns.next_of
    monkeypatch.setattr(Turns, "next_of", lambda self, channels: next_of(self, channels & ~0b100))
    assert verified() == [True, False, False]
