"""Windows of event time: which panes a row belongs to, and which windows panes make up.

Comes in: times in microseconds. Goes out: the start of each row's pane, and windows as
(start, end). A pane is the longest stretch that no window cuts: windows that overlap share
panes. Pure.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weir.errors import PlanError

Times = npt.NDArray[np.int64]


class TimeWindows(ABC):
    """Windows whose bounds do not depend on the rows. Panes are as long as no window cuts them."""

    @property
    @abstractmethod
    def overlaps(self) -> bool:
        """Whether a row is in several windows; if not, a pane is a window."""

    @property
    @abstractmethod
    def windows_per_pane(self) -> int:
        """In how many windows a pane is at most."""

    @property
    @abstractmethod
    def step_us(self) -> int:
        """Panes begin at multiples of this from each other."""

    @property
    @abstractmethod
    def pane_us_max(self) -> int:
        """No pane is longer."""

    @property
    @abstractmethod
    def span_us(self) -> int:
        """No window is longer."""

    @abstractmethod
    def panes(self, times_us: Times) -> Times:
        """The start of each row's pane."""

    @abstractmethod
    def each_start(self, panes: Times) -> Iterator[Times]:
        """The starts of the last windows that hold panes, then of those before, and so on; where windows are not a
        whole number of slides, the last of all may be of windows that end before the pane."""

    @abstractmethod
    def ends(self, starts: Times) -> Times:
        """The ends of windows that begin so."""

    @abstractmethod
    def pane_starts(self, window_start_us: int) -> Sequence[int]:
        """The panes of a window."""

    def pane_of(self, time_us: int) -> int:
        return int(self.panes(np.array([time_us]))[0])

    def windows(self, pane_us: int) -> Iterator[tuple[int, int]]:
        """The windows that hold a pane, the earliest first."""
        for start in np.sort(self.starts(np.array([pane_us]))):
            yield int(start), int(self.ends(np.array([start]))[0])

    def starts(self, panes: Times) -> Times:
        """The starts of all windows that hold any of these panes, some more than once."""
        if not self.overlaps:
            return panes
        return np.concatenate([starts[panes < self.ends(starts)] for starts in self.each_start(panes)])

    def last_ends(self, panes: Times) -> Times:
        """As `last_end`, of many."""
        return self.ends(next(self.each_start(panes)))

    def last_end(self, pane_us: int) -> int:
        """The end of the last window that holds a pane: behind it nobody needs the pane."""
        return int(self.last_ends(np.array([pane_us]))[0])


@dataclass(frozen=True)
class AlignedWindows(TimeWindows):
    """Windows of one size that begin every `slide_us`, at `offset_us` from 1970. Tumbling: slide and size are equal."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.size_us <= 0:
            raise PlanError("a window's size must be above zero")
        if self.slide_us <= 0:
            raise PlanError("sliding windows must begin every so often: their slide must be above zero")
        if self.slide_us > self.size_us:
            raise PlanError(
                f"windows of {self.size_us / 1e6:g} s every {self.slide_us / 1e6:g} s would leave rows out; "
                "filter them out before, or take a slide of at most the size"
            )

    @property
    def pane_us(self) -> int:
        return math.gcd(self.size_us, self.slide_us)

    @property
    def step_us(self) -> int:
        return self.pane_us

    @property
    def pane_us_max(self) -> int:
        return self.pane_us

    @property
    def span_us(self) -> int:
        return self.size_us

    @property
    def overlaps(self) -> bool:
        return self.slide_us < self.size_us

    @property
    def windows_per_pane(self) -> int:
        return -(-self.size_us // self.slide_us)

    def panes(self, times_us: Times) -> Times:
        if self.offset_us:
            times_us = times_us - self.offset_us
        starts = times_us - times_us % self.pane_us
        return starts + self.offset_us if self.offset_us else starts

    def pane_of(self, time_us: int) -> int:
        return time_us - (time_us - self.offset_us) % self.pane_us

    def windows(self, pane_us: int) -> Iterator[tuple[int, int]]:
        last = pane_us - (pane_us - self.offset_us) % self.slide_us
        count = (self.size_us - (pane_us - last) - 1) // self.slide_us + 1
        first = last - (count - 1) * self.slide_us
        for start in range(first, last + 1, self.slide_us):
            yield start, start + self.size_us

    def each_start(self, panes: Times) -> Iterator[Times]:
        last = panes - (panes - self.offset_us) % self.slide_us
        for back_us in range(0, self.size_us, self.slide_us):
            yield last - back_us

    def ends(self, starts: Times) -> Times:
        return starts + self.size_us

    def pane_starts(self, window_start_us: int) -> range:
        return range(window_start_us, window_start_us + self.size_us, self.pane_us)

    def last_end(self, pane_us: int) -> int:
        last = pane_us - (pane_us - self.offset_us) % self.slide_us
        return last + self.size_us


@dataclass(frozen=True)
class SessionWindows:
    """Windows that last as long as rows of a key come less than `gap_us` apart: from the first row to the last, and the
    gap."""

    gap_us: int

    def __post_init__(self) -> None:
        if self.gap_us <= 0:
            raise PlanError("the gap that ends a session must be above zero")


@dataclass(frozen=True)
class CountWindows:
    """The last `size` rows of a key, whenever `every` more have come. Size None: all rows so far."""

    size: int | None
    every: int

    def __post_init__(self) -> None:
        for what, number in (("its size", self.size), ("every", self.every)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise PlanError(f"count_window: {what} is {number!r}; it must be a whole number of at least 1")
        if self.size is not None and self.every > self.size:
            raise PlanError(f"count_window: {self.size} rows every {self.every} would leave rows out")


@dataclass(frozen=True)
class GlobalWindows:
    """One window for all rows of a key; it never ends, so that a trigger says when it comes out."""


Windows: TypeAlias = "TimeWindows | SessionWindows | CountWindows | GlobalWindows"
