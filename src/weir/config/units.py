"""What users write for a time or a size ("5s", 10, "64MB"), and what it comes to.

Comes in: the text, number or timedelta. Goes out: whole milliseconds or bytes, or an error
that names the setting. `Milliseconds` and `Bytes` read a setting once, when it is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from weir.errors import ConfigError

Duration: TypeAlias = "str | int | float | timedelta"
"""A string with a unit ("250ms", "5s", "2m", "1h", "1d"), a timedelta, or seconds."""

Size: TypeAlias = "str | int"
"""A string with a unit ("64KB", "512MB", "2GB") or a number of bytes."""


_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_NUMBER_MAX = 1 << 63
"""No duration and no size is as large as this."""
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"


BARE_SECONDS_MAX = 60
"""A number without a unit is so many seconds; a larger one was often meant as milliseconds, and is refused."""


def duration_ms(value: Duration, name: str = "duration") -> int:
    """Turn a duration into whole milliseconds.

    >>> duration_ms("250ms"), duration_ms("1.5s"), duration_ms(2)
    (250, 1500, 2000)
    """
    if isinstance(value, timedelta):
        ms = value.total_seconds() * 1_000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        ms = value * 1_000 if abs(value) < _NUMBER_MAX else math.inf
    elif isinstance(value, str) and (match := re.fullmatch(rf"\s*{_NUMBER}\s*(ms|s|m|h|d)\s*", value)):
        ms = float(match[1]) * _DURATION_MS[match[2]]
    else:
        ms = math.nan
    if not math.isfinite(ms):
        raise ConfigError(
            f"{name}: {value!r} is not a duration; write '250ms', '5s', '2m', '1h', a timedelta or seconds"
        )
    if ms < 0:
        raise ConfigError(f"{name}: {value!r} is negative")
    if isinstance(value, (int, float)) and value > BARE_SECONDS_MAX:
        hint = f"write '{value}ms' or '{value}s', whichever is meant"
        raise ConfigError(f"{name}: {value!r} would be {value:,} seconds, as numbers without a unit are; {hint}")
    return round(ms)


def size_bytes(value: Size, name: str = "size") -> int:
    """Turn a size into bytes.

    >>> size_bytes("64KB"), size_bytes(10)
    (65536, 10)
    """
    bytes = math.nan
    if isinstance(value, int) and not isinstance(value, bool):
        bytes = value
    elif isinstance(value, str) and (match := re.fullmatch(rf"\s*{_NUMBER}\s*([KMGT]?B)\s*", value.upper())):
        bytes = float(match[1]) * _SIZE_BYTES[match[2]]
    if 0 <= bytes < _NUMBER_MAX:
        return round(bytes)
    raise ConfigError(f"{name}: {value!r} is not a size; write '64KB', '512MB', '2GB' or a number of bytes")


class _Parsed:
    """What one setting comes to, as an attribute beside it. On the class: what its default comes to."""

    parse: ClassVar[Callable[[Any, str], int]]

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> int:
        value = getattr(owner if instance is None else instance, self._setting)
        parsed = type(self).parse(value, f"{owner.__name__}.{self._setting}")
        if instance is not None:
            # Where Python looks before it asks here again; a frozen dataclass has no other way to keep it.
            instance.__dict__[self._name] = parsed
        return parsed


class Milliseconds(_Parsed):
    """A duration setting in whole milliseconds: `timeout_ms = Milliseconds("timeout")`."""

    parse = staticmethod(duration_ms)


class Bytes(_Parsed):
    """A size setting in bytes: `memory_max_bytes = Bytes("memory_max")`."""

    parse = staticmethod(size_bytes)


def parse_units(settings: object) -> None:
    """Read all times and sizes of what is being made, and refuse it with the first that is none."""
    for name, value in vars(type(settings)).items():
        if isinstance(value, _Parsed):
            getattr(settings, name)
