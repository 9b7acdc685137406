"""What others read is short, without secrets, and made in no time, whatever users, files and servers send."""

from __future__ import annotations

import json
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest

import weir
from weir import connectors as io
from weir.errors import ConfigError, DataError, UserCodeError, WeirError, shown
from weir.runtime.spark.stage import ERROR_CHARACTERS_MAX, root_cause
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.objects import ObjectStorage
from weir.runtime.task.failures import for_driver
from weir.testing import collect_local
from weir.texts import MESSAGE_CHARACTERS_MAX, QUOTED_CHARACTERS_MAX, quoted, told

CANARY = "cAnArY"
LONG = 1_000_000
PARTS = (
    "a ?key ?a=b &key=a key= ?key={ s3://x :// :80/ http://1:1 = ?a=://@ &a=://b@c ?key=' a.b-c QUJD sas @ %40".split()
)
PARTS += "?x=%3A%2F%2F } ?;&#".split()
SECONDS_MAX = 1.0
"""Of processor time for a text of that length. What is not linear takes minutes."""


@pytest.mark.parametrize(
    "part",
    [" s3://a:b", "a; ", "\n", *PARTS],
)
def test_hiding_takes_time_in_proportion_to_the_text(part: str) -> None:
    long, shorter = part * (LONG // len(part)), part * (LONG // 10 // len(part))
    for text in (long, f"http://{shorter}x", f"?key=x{shorter}x"):
        started_s = time.process_time()
        shown(text)
        assert time.process_time() - started_s < SECONDS_MAX
    started_s = time.process_time()
    assert len(str(DataError(long))) <= MESSAGE_CHARACTERS_MAX
    assert time.process_time() - started_s < SECONDS_MAX


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://AKIA:secret/checkpoints", "s3://AKIA:…"),
        ("s3://AKIA:se/cr?et/checkpoints?region=eu", "s3://AKIA:…"),
        ("location 'gs://a:secret/x': refused", "location 'gs://a:…': refused"),
        ("abfss://account:secret/x", "abfss://account:…"),
        ("abfss://box@account.dfs:443/x", "abfss://box@account.dfs:443/x"),
        ("file://me:secret@nas/x", "file://…@nas/x"),
        ("s3://bucket: no such bucket", "s3://bucket: no such bucket"),
        ("s3://bucket/a:b", "s3://bucket/a:b"),
        ("s3://one,s3://two", "s3://one,s3://two"),
        ("spark://host:7077", "spark://host:7077"),
        ("s3://b/x?pass=1&session=2&passphrase=3", "s3://b/x?pass=…&session=…&passphrase=…"),
        ("s3://b/x#secret=1", "s3://b/x#secret=…"),
    ],
)
def test_what_a_wrong_location_gives_away_is_hidden(location: str, expected: str) -> None:
    assert shown(location) == expected == shown(shown(location))


@pytest.mark.parametrize(
    "location",
    [f"s3://AKIAEXAMPLE:{CANARY}/checkpoints", f"file://me:{CANARY}@nas/x", f"abfss://account:{CANARY}/x"],
)
def test_errors_about_wrong_locations_hide_it_too(location: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage(location)
    assert CANARY not in str(caught.value) and ("%2F" in str(caught.value) or "files are local" in str(caught.value))
    assert CANARY not in repr(weir.Checkpoints(to=location)) + repr(io.FileSink(location))


def test_of_a_long_message_the_beginning_and_the_end_are_kept() -> None:
    text = f"the beginning {'word ' * 5_000}the end"
    error = WeirError(text)
    assert str(error).startswith("the beginning word") and str(error).endswith("word the end")
    assert MESSAGE_CHARACTERS_MAX - 200 < len(str(error)) <= MESSAGE_CHARACTERS_MAX
    assert "characters left out" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(WeirError("x" * MESSAGE_CHARACTERS_MAX)) == "x" * MESSAGE_CHARACTERS_MAX


SECRETS = [
    f"http://user:{CANARY * 5}@host/x",
    f"s3://b/x?secret_key={CANARY * 5}&region=eu",
    f"s3://b/x?proxy_url=http://u:{CANARY * 5}@h&y=1",
    'gs://b/x?service_account_key={"a": {"b": 1}, "private_key": "' + CANARY * 5 + '", "c": {}, "d": 3}',
    f"canary://{CANARY * 5}@host/x",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_cut_in_the_middle_of_a_secret_shows_no_part_of_it(secret: str) -> None:
    for before in (QUOTED_CHARACTERS_MAX, MESSAGE_CHARACTERS_MAX - 4_060):
        for shift in range(len(secret) + 3):
            assert "nAr" not in told(f"{('a b ' * 5_000)[: before - shift]} {secret}{' c' * 10_000}")
            assert "nAr" not in told(f"{'a ' * 10_000}{secret}{(' c' * 5_000)[: 4_000 - shift]}")
            assert "nAr" not in quoted(f"{('a b ' * 5_000)[: before - shift]} {secret}{' c' * 10_000}", before)


def test_cuts_at_random_places_of_random_texts_show_no_secret() -> None:
    rng = random.Random(4)
    for _ in range(300):
        words = [rng.choice(SECRETS) if rng.random() < 0.02 else "w" * rng.randint(1, 40) for _ in range(800)]
        text = rng.choice(["", "x" * 5_000]) + " ".join(words)
        assert "nAr" not in told(text) and "nAr" not in quoted(text, rng.randint(1, 9_000))


def failure_of(stream: Any) -> WeirError:
    started_s = time.process_time()
    with pytest.raises(WeirError) as caught:
        collect_local(stream)
    assert time.process_time() - started_s < 5 * SECONDS_MAX
    assert len(for_driver(caught.value, show_rows=True)) <= MESSAGE_CHARACTERS_MAX
    return caught.value


@pytest.mark.parametrize(
    ("name", "line", "schema"),
    [
        ("a.jsonl", json.dumps({"d": "x" * 300_000}), "d date"),
        ("a.jsonl", "?key" * 100_000, "d date"),
        ("a.csv", "0x" + "1" * 300_000, "d long"),
        ("a.csv", "9" * 300_000, "d double"),
        ("a.csv", "z" * 300_000, "d date"),
    ],
)
def test_a_long_malformed_line_is_an_error_of_a_few_words(tmp_path: Path, name: str, line: str, schema: str) -> None:
    (tmp_path / name).write_text(f"{line}\n")
    stream = weir.Environment(parallelism=1).read(io.Files(tmp_path, schema=schema, header=False), uid="in")
    error = failure_of(stream)
    assert "line 1" in str(error) and len(str(error)) < 2_000


def test_a_function_that_raises_a_long_text_is_told_with_its_frames() -> None:
    def decode(row: Any) -> Any:
        raise ValueError(f"cannot decode {'QUJD' * 50_000}")

    stream = weir.Environment(parallelism=1).from_collection([("x" * 9_000,)], "a string", uid="in")
    error = failure_of(stream.map(decode, "a long", uid="decode"))
    assert isinstance(error, UserCodeError)
    assert "cannot decode QUJD" in str(error) and "in decode" in str(error) and "row:" in str(error)
    assert "left out" not in str(error)


def test_what_spark_and_stores_answer_at_length_is_cut_and_hidden_too() -> None:
    secret = f"http://user:{CANARY * 5}@host/x"
    for shift in range(0, 80, 7):
        padding = "x " * ((ERROR_CHARACTERS_MAX - shift) // 2)
        told_of = root_cause(f"Traceback (most recent call last):\n{secret}{padding}\n\tat org.apache")
        assert "nAr" not in told_of
        assert "nAr" not in root_cause(f"{padding}{secret} and more{padding}")
    started_s = time.process_time()
    answer = ObjectStorage(None, "", location="s3://b")._redacted(
        f"failed: {'a' * LONG}<Message>{'b' * LONG}</Message>"
    )  # type: ignore[arg-type]
    assert time.process_time() - started_s < SECONDS_MAX and len(answer) < 3 * QUOTED_CHARACTERS_MAX
