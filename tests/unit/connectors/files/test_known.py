"""Files that change at the same length, and links that leave the directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sources import drain, opened, positions
from weir.connectors import Files
from weir.connectors.files.known import SMALL_FILE_BYTES
from weir.errors import DataError

LARGE = SMALL_FILE_BYTES // 8 + 100


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def numbers(first: int, count: int) -> str:
    return "".join(f'{{"n":{number:07}}}\n' for number in range(first, first + count)).replace(":000", ":100")


def write(path: Path, text: str, *, seconds_later: int = 0) -> None:
    """As an editor or a copy would, with a time of modification that is known."""
    path.write_text(text)
    os.utime(path, (1_700_000_000 + seconds_later,) * 2)


def source(path: Path, **settings: Any) -> Files:
    return Files(path, None, "n long", **settings)


def some(readers: Any, polls: int) -> list[int]:
    return [n for reader in readers for (n,) in drain(reader, 2, polls)]


@pytest.mark.parametrize("count", [10, LARGE])
@pytest.mark.parametrize("watch", [None, "1s"])
def test_a_file_that_is_rewritten_at_the_same_length_is_an_error_on_resume(
    tmp_path: Path, count: int, watch: str | None
) -> None:
    write(tmp_path / "a.jsonl", numbers(0, count))
    readers = opened(source(tmp_path, watch=watch), parallelism=1)
    assert len(some(readers, 2)) == 4
    restored = positions(readers)
    write(tmp_path / "a.jsonl", numbers(50, count), seconds_later=5)
    with pytest.raises(DataError, match=r"a.jsonl: the file .*, at the same length; .*a new name"):
        some(opened(source(tmp_path, watch=watch), parallelism=2, restored=restored), 2)


def test_a_rewrite_that_hides_its_time_is_seen_by_the_content_of_a_small_file(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbers(0, 10))
    readers = opened(source(tmp_path), parallelism=1)
    some(readers, 2)
    write(tmp_path / "a.jsonl", numbers(50, 10))
    with pytest.raises(DataError, match="has other content than when it was first read"):
        some(opened(source(tmp_path), parallelism=1, restored=positions(readers)), 2)


def test_a_file_that_was_read_to_its_end_must_not_change_either(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbers(0, 10))
    clock = Clock()
    readers = opened(source(tmp_path, watch="1s", clock=clock), parallelism=1)
    assert len(some(readers, 20)) == 10
    write(tmp_path / "a.jsonl", numbers(50, 10), seconds_later=5)
    with pytest.raises(DataError, match="was written again since it was first seen"):
        opened(source(tmp_path, watch="1s"), parallelism=1, restored=positions(readers))


@pytest.mark.parametrize("count", [10, LARGE])
def test_a_file_that_was_only_touched_is_the_same_if_that_is_known(tmp_path: Path, count: int) -> None:
    write(tmp_path / "a.jsonl", numbers(0, count))
    readers = opened(source(tmp_path), parallelism=1)
    first = some(readers, 2)
    restored = positions(readers)
    os.utime(tmp_path / "a.jsonl", (1_700_000_100,) * 2)
    again = source(tmp_path, check_modified=count == 10)
    rest = some(opened(again, parallelism=1, restored=restored), 10_000)
    assert len(first + rest) == count == len(set(first + rest))


def test_a_checkpoint_that_knows_lengths_only_is_read_as_before(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbers(0, 10))
    readers = opened(source(tmp_path), parallelism=1)
    some(readers, 2)
    restored = positions(readers)
    del restored[0].value["files"]
    assert len(some(opened(source(tmp_path), parallelism=1, restored=restored), 10)) == 6


def test_a_file_that_has_no_content_yet_may_get_some(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "")
    reader = opened(source(tmp_path, watch="1ms"), parallelism=1)[0]
    assert reader.poll(10) is None
    write(tmp_path / "a.jsonl", numbers(0, 3), seconds_later=5)
    while (batch := reader.poll(10)) is None:
        pass
    assert batch.num_rows == 3


def test_a_link_inside_of_the_directory_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "_hidden.jsonl", numbers(0, 3))
    (tmp_path / "a.jsonl").symlink_to("_hidden.jsonl")
    source(tmp_path).validate("in")
    assert len(some(opened(source(tmp_path), parallelism=1), 5)) == 3


def test_a_link_that_leaves_the_directory_is_followed_only_if_asked(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    write(tmp_path / "secret.jsonl", numbers(0, 3))
    (place / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    refused = r"a.jsonl: it is a link to .*/secret.jsonl, outside of the directory.*follow_links=True"
    with pytest.raises(DataError, match=rf"source 'in': .*{refused}"):
        source(place).validate("in")
    with pytest.raises(DataError, match=refused):
        opened(source(place, watch="1s"), parallelism=1)
    assert len(some(opened(source(place, follow_links=True), parallelism=1), 5)) == 3
    # A path that is given may be a link, and so may what leads there.
    assert len(some(opened(source(place / "a.jsonl"), parallelism=1), 5)) == 3
    (tmp_path / "way").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "b.jsonl", numbers(0, 2))
    assert len(some(opened(source(tmp_path / "way"), parallelism=1), 5)) == 2


def test_a_file_that_becomes_a_link_before_it_is_read_is_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    write(place / "a.jsonl", numbers(0, 3))
    write(tmp_path / "secret.jsonl", numbers(7, 3))
    readers = opened(source(place), parallelism=1)
    (place / "a.jsonl").unlink()
    (place / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(DataError, match="it is a link"):
        some(readers, 1)
