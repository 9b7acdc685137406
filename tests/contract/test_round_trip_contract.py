"""What a file sink writes, the file source reads back: the same rows, or an error when the job is built."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.round_trips import LEAVES, OTHERS, nested, random_table
from tests.contract.sources import opened, positions
from weir.connectors import Files
from weir.connectors.formats.encode import FILE_FORMATS, check_encodable, encode
from weir.errors import SchemaError

SEEDS = range(60)
POLLS_MAX = 100_000


def shown(table: pa.Table) -> list[str]:
    """Rows that can be compared: NaN is NaN, and -0.0 is not 0.0."""
    return [repr(row) for row in table.to_pylist()]


def read_back(source: Files, rng: random.Random, parallelism: int) -> pa.Table:
    """All rows, with a restore at another parallelism somewhere on the way."""
    readers, batches, polls = opened(source, parallelism=parallelism), [], 0
    restore_at = rng.randrange(40)
    while not all(reader.finished for reader in readers):
        for reader in readers:
            batch = reader.poll(rng.choice([1, 2, 100]))
            batches += [] if batch is None else [batch]
        polls += 1
        if polls == restore_at:
            restored = positions(readers)
            for reader in readers:
                reader.close()
            readers = opened(source, parallelism=1 if parallelism == 1 else 3, restored=restored)
        assert polls < POLLS_MAX, "the readers never finish"
    return pa.Table.from_batches(batches, source.schema)


def check(directory: Path, table: pa.Table, format: str, rng: random.Random, *, split_bytes: int | None = None) -> bool:
    """Whether a format holds these columns; then the rows that come back are those that went in."""
    try:
        check_encodable(table.schema, format=format, name="out")
    except SchemaError:
        return False
    cut = rng.randrange(table.num_rows + 1)
    path = directory / f"part.{format}"
    path.write_bytes(encode([*table[:cut].to_batches(), *table[cut:].to_batches()], format).to_pybytes())
    splits = rng.choice([1, 2, 5, 20]) if format in ("parquet", "arrow") else rng.choice([1, 2, 7, 40, 100])
    split_bytes = split_bytes or path.stat().st_size // splits + 1
    source = Files(directory, None, table.schema, split_size=split_bytes)
    source.block_bytes = rng.choice([1, 2, 5, 50, 10**6])
    source.validate("in")
    parallelism = rng.choice([1, 1, 2])
    found = shown(read_back(source, rng, parallelism))
    expected = shown(table)
    assert found == expected if parallelism == 1 else sorted(found) == sorted(expected)
    return True


@pytest.mark.parametrize("format", FILE_FORMATS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_rows_come_back_as_they_were(tmp_path: Path, format: str, seed: int) -> None:
    rng = random.Random(f"{format} {seed}")
    kinds = [nested(rng, rng.choice([0, 0, 1, 2]) if format != "csv" else 0) for _ in range(rng.choice([1, 2, 4]))]
    check(tmp_path, random_table(rng, kinds, rng.randrange(1, 8)), format, rng)


@pytest.mark.parametrize("format", FILE_FORMATS)
@pytest.mark.parametrize("split_bytes", [1, 2, 3])
def test_rows_come_back_from_the_smallest_splits(tmp_path: Path, format: str, split_bytes: int) -> None:
    rng = random.Random(f"{format} {split_bytes}")
    text = next(kind for kind in LEAVES if kind[0] == pa.string())
    kinds = [text] if format in ("parquet", "arrow") else [text, text]
    assert check(tmp_path, random_table(rng, kinds, 20), format, rng, split_bytes=split_bytes)


@pytest.mark.parametrize("format", FILE_FORMATS)
@pytest.mark.parametrize("kind", [*LEAVES, *OTHERS], ids=lambda kind: str(kind[0]))
def test_every_type_comes_back_alone_and_beside_others(tmp_path: Path, format: str, kind: Any) -> None:
    for number, kinds in enumerate(([kind], [kind, kind], [LEAVES[4], kind])):
        rng = random.Random(f"{format} {kind[0]} {number}")
        place = tmp_path / str(number)
        place.mkdir()
        held = check(place, random_table(rng, kinds, 12), format, rng)
        assert held or format in ("csv", "jsonl"), f"{format} holds every type"
    if not held:
        # What the sink refuses, so does the source, when the job is built.
        (tmp_path / f"a.{format}").write_text("{}\n")
        with pytest.raises(SchemaError, match="cannot be read"):
            Files(tmp_path, format, pa.schema([("x", kind[0])]), header=False).validate("in")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FILE_FORMATS)
def test_every_simple_type_of_ddl_is_held_unless_the_format_cannot(tmp_path: Path, format: str) -> None:
    refused = {str(kind) for kind, _ in LEAVES if not _is_held(kind, format)}
    assert refused == ({"binary"} if format == "csv" else set())


def _is_held(kind: pa.DataType, format: str) -> bool:
    try:
        check_encodable(pa.schema([("x", kind)]), format=format, name="out")
    except SchemaError:
        return False
    return True
