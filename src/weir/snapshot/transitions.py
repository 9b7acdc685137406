"""What the tables of the machines are made of: alignment, coordinator, and the driver's regions.

Plain data. scripts/draw_machines.py draws docs/machines.md from the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transition:
    """What is done about an event in a phase, and the phases that it may lead to."""

    act: Callable[..., Any]
    to: tuple[type[Any], ...]
