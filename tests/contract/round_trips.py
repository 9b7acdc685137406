"""Random rows of every type that a schema can name, with the values that formats have trouble with."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

STRINGS = [
    *("", " ", "\n", "\r\n", "\r", "\n\n", '"', '""', ",", "a,b", 'x"y', '"x', 'x"', '"\n"', "a\nb", '",\n"', "a\r"),
    *(
        "null",
        "NaN",
        "-Infinity",
        "0x10",
        "1e999",
        "true",
        "\\",
        "\\n",
        "\\u0000",
        "{}",
        "[",
        "'",
        "\t",
        "\x00",
        "a\x00b",
    ),
    *("é", "🙂", "\u2028", "\ufeff", '\ufeff"a"', "\ufeffa", "ﬀ", "#", "  both  ", ";", "|"),
]
DOUBLES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 1e22, 2.0**53 + 2]
SINGLES = [math.nan, math.inf, -math.inf, -0.0, 1.401298464324817e-45, 3.4028234663852886e38, 16777216.0]
UTC = datetime.timezone.utc
FIRST, LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)

OLD_ZONES = ("Africa/Monrovia", "Europe/Amsterdam", "Europe/Berlin", "Asia/Kolkata", "America/New_York")
"""Their clocks went by the sun once, off by minutes and seconds from UTC."""

Make = Callable[[random.Random], Any]


def integers(bits: int) -> Make:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda rng: rng.choice([low, high, 0, -1, 1, rng.randint(low, high)])


def text(rng: random.Random) -> str:
    return "".join(rng.choice(STRINGS) for _ in range(rng.choice([1, 1, 2, 4])))


def double(rng: random.Random) -> float:
    return rng.choice([*DOUBLES, rng.uniform(-1e6, 1e6), struct.unpack("<d", rng.randbytes(8))[0]])


def single(rng: random.Random) -> float:
    found: float = struct.unpack("<f", rng.randbytes(4))[0]
    return rng.choice([*SINGLES, found])


def instant(rng: random.Random) -> datetime.datetime:
    within = FIRST + datetime.timedelta(microseconds=rng.randrange(int((LAST - FIRST).total_seconds()) * 10**6))
    return rng.choice([FIRST, LAST, datetime.datetime(1970, 1, 1), datetime.datetime(1969, 12, 31, 23, 59), within])


def old(rng: random.Random) -> datetime.datetime:
    return datetime.datetime(rng.choice([1700, 1850, 1890, 1930, 1971]), 5, 1, 12, 0, 0, 1, tzinfo=UTC)


def number(digits: int, scale: int) -> Make:
    def make(rng: random.Random) -> decimal.Decimal:
        whole = rng.choice([0, 1, -1, 10**digits - 1, 1 - 10**digits, rng.randrange(10**digits)])
        return decimal.Decimal(whole).scaleb(-scale, decimal.Context(prec=60))

    return make


LEAVES: list[tuple[pa.DataType, Make]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), single),
    (pa.float64(), double),
    (pa.decimal128(5, 2), number(5, 2)),
    (pa.decimal128(38, 10), number(38, 10)),
    (pa.decimal128(38, 0), number(38, 0)),
    (pa.string(), text),
    (pa.binary(), lambda rng: rng.choice([b"", b"\x00\xff", b"\n", rng.randbytes(5)])),
    (pa.date32(), lambda rng: instant(rng).date()),
    (pa.timestamp("us", "UTC"), lambda rng: instant(rng).replace(tzinfo=UTC)),
    (pa.timestamp("us"), instant),
    (pa.null(), lambda rng: None),
]
"""What DDL can name."""

OTHERS: list[tuple[pa.DataType, Make]] = [
    (pa.uint64(), lambda rng: rng.choice([0, 2**64 - 1])),
    (pa.timestamp("ns", "UTC"), lambda rng: rng.choice([1, -1, 2**62])),
    (pa.timestamp("ms"), lambda rng: rng.choice([1, -1, 10**12])),
    (pa.timestamp("s", "Europe/Berlin"), lambda rng: rng.choice([1, -1, 10**9])),
    *((pa.timestamp("us", zone), lambda rng: old(rng)) for zone in OLD_ZONES),
    *((pa.list_(pa.timestamp("us", zone)), lambda rng: [old(rng), None]) for zone in OLD_ZONES),
    (pa.struct([("t", pa.timestamp("ms", "Africa/Monrovia"))]), lambda rng: {"t": old(rng).replace(microsecond=0)}),
    (pa.large_string(), text),
    (pa.string_view(), text),
    (pa.dictionary(pa.int32(), pa.string()), text),
    (pa.large_binary(), lambda rng: b"\x00"),
    (pa.binary(2), lambda rng: b"\n\xff"),
    (pa.large_list(pa.float64()), lambda rng: [double(rng)]),
    (pa.list_(pa.string(), 2), lambda rng: [text(rng), text(rng)]),
    (pa.time64("us"), lambda rng: datetime.time(1, 2, 3, 4)),
    (pa.time32("s"), lambda rng: datetime.time(1, 2, 3)),
    (pa.duration("us"), lambda rng: datetime.timedelta(1)),
    (pa.date64(), lambda rng: datetime.date(2020, 1, 1)),
    (pa.decimal256(50, 2), number(50, 2)),
]
"""What only pyarrow can name."""


def nested(rng: random.Random, depth: int) -> tuple[pa.DataType, Make]:
    """A type, at most so deep, and how to make values of it."""
    shape = rng.choice(["leaf", "array", "struct", "map"]) if depth else "leaf"
    if shape == "leaf":
        return rng.choice(LEAVES)
    inner, make = nested(rng, depth - 1)
    if shape == "array":
        return pa.list_(inner), lambda rng: [maybe(rng, make) for _ in range(rng.randrange(3))]
    if shape == "map":
        key = rng.choice([pa.string(), pa.string(), pa.int64()])
        made: Make = text if key == pa.string() else integers(64)
        return pa.map_(key, inner), lambda rng: {made(rng): maybe(rng, make) for _ in range(rng.randrange(3))}
    other, make_other = nested(rng, depth - 1)
    kind = pa.struct([pa.field("a", inner), pa.field('b "c', other)])
    return kind, lambda rng: {"a": maybe(rng, make), 'b "c': maybe(rng, make_other)}


def maybe(rng: random.Random, make: Make) -> Any:
    return None if rng.random() < 0.2 else make(rng)


def random_table(rng: random.Random, kinds: Sequence[tuple[pa.DataType, Make]], rows: int) -> pa.Table:
    names = rng.sample(["a", "b c", 'q"', "co,mma", "new\nline", "é", "x"], len(kinds))
    arrays = [pa.array([maybe(rng, make) for _ in range(rows)], kind) for kind, make in kinds]
    return pa.table(arrays, schema=pa.schema([pa.field(name, kind) for name, (kind, _) in zip(names, kinds)]))
