"""Which row numbers come next, over interleaved splits: arithmetic only.

Split s of S holds the numbers s, S+s, 2S+s …; its round r is the number r·S+s. The
splits that are furthest behind advance together, so that the numbers come in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_NEVER = np.iinfo(np.int64).max


class Strides:
    """The numbers of some of the splits, in order from where each split stands."""

    def __init__(self, splits: int, count: int | None, rounds: Mapping[int, int]) -> None:
        self._splits = splits
        self._own = np.array(sorted(rounds), dtype=np.int64)
        self._rounds = np.array([rounds[split] for split in sorted(rounds)], dtype=np.int64)
        ends = np.full(len(self._own), _NEVER) if count is None else (count - self._own + splits - 1) // splits
        self._ends = np.maximum(ends, 0)
        self._begin_stage()

    @property
    def finished(self) -> bool:
        return self._stage_left == 0

    def rounds(self) -> dict[int, int]:
        """How many numbers of each split have been taken."""
        rounds = self._rounds.copy()
        width = len(self._active)
        if width:
            whole, extra = divmod(self._taken, width)
            rounds[self._active] += whole
            rounds[self._active[:extra]] += 1
        return dict(zip(self._own.tolist(), rounds.tolist(), strict=True))

    def take(self, count_max: int) -> npt.NDArray[np.int64]:
        """The next numbers, in ascending order; empty when there are none left."""
        count = min(count_max, self._stage_left)
        if count <= 0:
            return np.empty(0, dtype=np.int64)
        numbers = self._numbers(self._taken, count)
        self._taken += count
        self._stage_left -= count
        if self._stage_left == 0:
            self._end_stage()
        return numbers

    def _numbers(self, start: int, count: int) -> npt.NDArray[np.int64]:
        width = len(self._active)
        base = self._round * self._splits
        if self._step:
            # Evenly spaced, also from one round to the next: the common case.
            first = base + int(self._own[self._active[0]]) + start * self._step
            return np.arange(first, first + count * self._step, self._step, dtype=np.int64)
        first_round, skip = divmod(start, width)
        rounds = (skip + count + width - 1) // width
        starts = base + np.arange(first_round, first_round + rounds, dtype=np.int64) * self._splits
        return (starts[:, None] + self._own[self._active][None, :]).ravel()[skip : skip + count]

    # A stage: the same splits advance together until they meet a split that is ahead of them, or the end.

    def _begin_stage(self) -> None:
        self._taken = 0
        unfinished = self._rounds < self._ends
        if not unfinished.any():
            self._active: npt.NDArray[np.intp] = np.empty(0, dtype=np.int64)
            self._stage_left = 0
            return
        self._round = int(self._rounds[unfinished].min())
        self._active = np.flatnonzero(unfinished & (self._rounds == self._round))
        ahead = self._rounds[unfinished & (self._rounds > self._round)]
        limit = int(min(self._ends[self._active].min(), ahead.min() if len(ahead) else _NEVER))
        self._stage_left = (limit - self._round) * len(self._active)
        self._step = self._even_step()

    def _even_step(self) -> int:
        """The distance between two numbers, when it is the same everywhere; otherwise 0."""
        own = self._own[self._active]
        step = int(own[1] - own[0]) if len(own) > 1 else self._splits
        closes = int(own[0]) + self._splits - int(own[-1]) == step
        return step if closes and (np.diff(own) == step).all() else 0

    def _end_stage(self) -> None:
        self._rounds[self._active] += self._taken // len(self._active)
        self._begin_stage()
