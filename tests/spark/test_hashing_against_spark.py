"""Weir's hash and key groups against those that Spark SQL computes itself."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from weir.state.keys.hashing import hash_keys, key_groups

pyspark_sql = pytest.importorskip("pyspark.sql")

ROWS = 600


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark_sql.SparkSession.builder.master("local[1]").appName("hashing")
    session = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    yield session
    session.stop()


def filled(edges: list[Any], draw: Any, randomness: random.Random) -> list[Any]:
    """The edge values and nulls, then random ones, in random order."""
    values = [*edges, None, None, *(draw() for _ in range(ROWS - len(edges) - 2))]
    randomness.shuffle(values)
    return values


def every_key_type() -> pa.Table:
    randomness = random.Random(7)

    def integers(bits: int) -> list[Any]:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return filled([0, 1, -1, low, high], lambda: randomness.randint(low, high), randomness)

    def text(length: int) -> str:
        return "".join(randomness.choice("abcXYZ 019äß漢字🌊\u0000") for _ in range(length))

    floats = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, 1.5]
    lengths = [randomness.randbytes(length) for length in range(101)]
    instants = [datetime(1970, 1, 1), datetime(1582, 10, 15), datetime(1969, 12, 31, 23, 59, 59, 999_999)]

    def instant() -> datetime:
        return datetime(2000, 1, 1) + timedelta(microseconds=randomness.randint(-(10**16), 10**16))

    def decimals(digits: int, scale: int) -> list[Any]:
        most = 10**digits - 1
        edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, 1 << 56, -(1 << 56), most, -most, (1 << 63), -(1 << 63)]

        def draw() -> int:
            return randomness.randint(-most, most) // 10 ** randomness.randint(0, digits)

        unscaled = filled([edge for edge in edges if abs(edge) <= most], draw, randomness)
        return [None if u is None else Decimal(u).scaleb(-scale, Context(prec=38)) for u in unscaled]

    utc = timezone.utc
    aware = [None if v is None else v.replace(tzinfo=utc) for v in filled(instants, instant, randomness)]
    return pa.table(
        {
            "bool": pa.array(filled([], lambda: randomness.random() < 0.5, randomness)),
            "int8": pa.array(integers(8), pa.int8()),
            "int16": pa.array(integers(16), pa.int16()),
            "int32": pa.array(integers(32), pa.int32()),
            "int64": pa.array(integers(64), pa.int64()),
            "float": pa.array(filled(floats, lambda: randomness.gauss(0, 1e9), randomness), pa.float32()),
            "double": pa.array(filled(floats, lambda: randomness.gauss(0, 1e9), randomness), pa.float64()),
            "string": pa.array(
                filled([text(n) for n in range(101)], lambda: text(randomness.randint(0, 20)), randomness)
            ),
            "binary": pa.array(filled(lengths, lambda: randomness.randbytes(9), randomness), pa.binary()),
            "date": pa.array(filled([date(1970, 1, 1), date(1, 1, 1)], lambda: instant().date(), randomness)),
            "local_time": pa.array(filled(instants, instant, randomness), pa.timestamp("us")),
            "instant": pa.array(aware, pa.timestamp("us", tz="UTC")),
            "decimal_9": pa.array(decimals(9, 2), pa.decimal128(9, 2)),
            "decimal_18": pa.array(decimals(18, 4), pa.decimal128(18, 4)),
            "decimal_38": pa.array(decimals(38, 6), pa.decimal128(38, 6)),
        }
    )


def hashes_in_spark(spark: Any, table: pa.Table, keys: list[str]) -> list[int]:
    from pyspark.sql import functions as f

    rows = spark.createDataFrame(table).select(f.xxhash64(*keys).alias("hash")).collect()
    return [row.hash for row in rows]


def hashes_in_weir(table: pa.Table, keys: list[str]) -> list[int]:
    columns = [table.column(key).combine_chunks() for key in keys]
    return hash_keys(columns).view(np.int64).tolist()


def test_every_type_hashes_as_in_spark_alone_and_chained(spark: Any) -> None:
    from pyspark.sql import functions as f

    table = every_key_type()
    names = table.column_names
    chains = [[name] for name in names] + [[names[i], names[i - 3]] for i in range(len(names))] + [names, names[::-1]]
    frame = spark.createDataFrame(table)
    found = frame.select(*(f.xxhash64(*chain).alias(str(i)) for i, chain in enumerate(chains))).toArrow()
    for number, chain in enumerate(chains):
        assert hashes_in_weir(table, chain) == found.column(str(number)).to_pylist(), chain


def test_key_groups_are_what_spark_calls_pmod_of_the_hash(spark: Any) -> None:
    from pyspark.sql import functions as f

    table = every_key_type().select(["int64", "string"])
    hashes = hash_keys([column.combine_chunks() for column in table.columns])
    for groups in (1, 7, 128, 32_768):
        frame = spark.createDataFrame(table).select(f.pmod(f.xxhash64("int64", "string"), f.lit(groups)).alias("group"))
        assert key_groups(hashes, groups).tolist() == [row.group for row in frame.collect()]


def test_numpy_integers_and_other_layouts_of_the_same_value_hash_as_spark_reads_them(spark: Any) -> None:
    numbers = np.array([0, 1, 200, 255], np.uint8)
    as_spark_reads_it = pa.table({"key": pa.array(numbers.astype(np.int16))})
    assert hashes_in_weir(pa.table({"key": numbers}), ["key"]) == hashes_in_spark(spark, as_spark_reads_it, ["key"])
    big = np.array([0, 1, 127, 128, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], np.uint64)
    as_decimals = pa.table({"key": pa.array([Decimal(int(n)) for n in big], pa.decimal128(20, 0))})
    assert hashes_in_weir(pa.table({"key": big}), ["key"]) == hashes_in_spark(spark, as_decimals, ["key"])
