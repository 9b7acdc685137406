"""The demo's text, its job and its verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from weir.cli.demo.check import Verdict, verdict_of, verify
from weir.cli.demo.job import DemoOptions, FullSpeed, _directory, split_into_words, word_count
from weir.cli.demo.words import WORDS_PER_LINE, MakeLines, vocabulary
from weir.errors import ConfigError


def test_the_vocabulary_has_no_word_twice_and_no_space() -> None:
    words = vocabulary().to_pylist()
    assert len(words) == len(set(words)) == 4_000
    assert not any(" " in word for word in words)


def test_the_true_counts_are_those_of_the_text() -> None:
    lines = MakeLines()
    text = lines(np.arange(3_000))["line"].to_pylist()
    assert lines.true_counts(3_000) == Counter(word for line in text for word in line.split(" "))
    assert sum(lines.true_counts(3_000).values()) == 3_000 * WORDS_PER_LINE


def test_a_line_follows_from_its_number_alone() -> None:
    one, other = MakeLines(), MakeLines()
    together = one(np.arange(100))["line"].to_pylist()
    assert other(np.array([17, 99, 3]))["line"].to_pylist() == [together[17], together[99], together[3]]


def test_some_words_are_much_more_frequent_than_others() -> None:
    counts = sorted(MakeLines().true_counts(10_000).values())
    assert counts[-1] > 100 * counts[len(counts) // 2]


def test_lines_are_split_at_every_space() -> None:
    frame = split_into_words(pl.DataFrame({"line": ["a b a", "c"]}))
    assert frame["word"].to_list() == ["a", "b", "a", "c"]


def test_the_job_is_one_shuffle_from_lines_to_counts(tmp_path: Path) -> None:
    environment, _ = word_count(DemoOptions(words=10_000), tmp_path)
    plan = environment.plan()
    assert [edge.exchange.keys for edge in plan.edges] == [("word",)]  # type: ignore[union-attr]
    assert plan.bounded


def test_a_stream_of_many_words_goes_faster_rather_than_longer() -> None:
    assert DemoOptions(words=4_000_000).lines_per_s == 25_000
    many = DemoOptions(words=100_000_000)
    assert many.lines_per_s is not None and many.lines / many.lines_per_s == pytest.approx(20.0)


def test_at_full_speed_nobody_holds_the_lines_back() -> None:
    assert DemoOptions(paced=False).lines_per_s is None


def test_full_speed_is_told_with_what_it_was_measured_on() -> None:
    good = Verdict(words=10_000_000, distinct=4_000, rows=9_000, lost=0, duplicated=0)
    assert FullSpeed(10_000_000, 2.5, good).line == (
        "At full speed this machine counts 4.00 M words/s (400.0 k lines/s): 10,000,000 words in 2.5 s, verified"
    )
    bad = replace(good, lost=3)
    assert FullSpeed(10_000_000, 2.5, bad).line == "At full speed: 3 words lost, 0 duplicated"


TRUTH = {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("rows", "lost", "duplicated"),
    [
        ([("a", 1), ("a", 3), ("b", 2)], 0, 0),
        ([("a", 1), ("a", 2), ("b", 2)], 1, 0),
        ([("a", 3)], 2, 0),
        ([("a", 4), ("b", 2)], 0, 1),
        ([("a", 1), ("a", 1), ("a", 3), ("b", 2)], 0, 1),
        ([("a", 3), ("b", 2), ("c", 1)], 0, 1),
        ([], 5, 0),
    ],
    ids=["right", "too few", "a word missing", "too many", "a count twice", "an unknown word", "nothing"],
)
def test_the_verdict_finds_what_is_lost_and_what_is_duplicated(
    rows: list[tuple[str, int]], lost: int, duplicated: int
) -> None:
    frame = pl.DataFrame(rows, {"word": pl.String, "n": pl.Int64}, orient="row")
    verdict = verdict_of(frame, TRUTH)
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)
    assert verdict.exact == (lost == duplicated == 0)


def test_an_output_without_files_has_lost_everything(tmp_path: Path) -> None:
    assert verify(tmp_path, TRUTH).lost == 5


def test_an_output_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(ConfigError, match="name a fresh directory"):
        _directory(DemoOptions(output=tmp_path))
    assert _directory(DemoOptions(output=tmp_path / "new")) == tmp_path / "new"
