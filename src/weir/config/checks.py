"""Whether a setting is what it should be: numbers, truth values and ports.

Comes in: the object whose setting it is, or its value, and the setting's name. Goes out: an error
that names it, or nothing.
"""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any

from weir.errors import ConfigError


def port_range(value: str, name: str = "ports") -> range:
    """Turn "7000-7099", or one port, into the ports to choose from.

    >>> port_range("7000-7099")
    range(7000, 7100)
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", value) if isinstance(value, str) else None
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise ConfigError(f"{name}: {value!r} is not a range of ports; write '7000-7099', or one port")
    return range(first, last + 1)


def check_at_least(owner: object, name: str, least: float) -> None:
    """Refuse a setting that is not a number, or is below `least`; the error names it."""
    value: Any = getattr(owner, name)
    setting = f"{type(owner).__name__}.{name}"
    whole = isinstance(least, int)
    number = not isinstance(value, bool) and isinstance(value, Integral if whole else Real)
    if not number:
        raise ConfigError(f"{setting}: {value!r} is not a {'whole ' if whole else ''}number")
    if not value >= least:
        raise ConfigError(f"{setting}: {value} is below {least}")


def check_booleans(owner: object, *names: str) -> None:
    """Refuse a setting that is neither True nor False: "false" would be taken for True."""
    for name in names:
        if not isinstance(value := getattr(owner, name), bool):
            raise ConfigError(f"{type(owner).__name__}.{name}: {value!r} is neither True nor False")
