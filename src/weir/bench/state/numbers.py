"""Row numbers of the state benchmarks: mixed, permuted, and which of them a source had given.

Comes in: numbers and positions. Goes out: numbers. NumPy only, no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from weir.connectors.generator import SPLITS

Numbers = npt.NDArray[np.int64]

CHUNK_ROUNDS = 1 << 14
"""Rounds of all splits that are looked at together: two million rows."""


def mixed(numbers: Numbers) -> npt.NDArray[np.uint64]:
    """64 bits of each number that have nothing to do with its neighbours'."""
    bits = numbers.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(29)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    return bits


def drawn(numbers: Numbers, below: int) -> Numbers:
    """For each number another one below `below`, at random."""
    found: Numbers = ((mixed(numbers) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).view(np.int64)
    return found


def shuffled(numbers: Numbers, count: int) -> Numbers:
    """The remainders of the numbers by `count`, in another order: of any `count` in a row each comes once."""
    return (numbers % count) * _coprime(count) % count


def _coprime(count: int) -> int:
    """A factor that shares no divisor with the count visits each remainder once."""
    factor = int(count * 0.618) | 1
    while np.gcd(factor, count) != 1:
        factor += 2
    return factor


class Given:
    """The numbers that a generator had given when it stood where its positions say."""

    def __init__(self, rounds: Mapping[int, int]) -> None:
        self._rounds = np.zeros(SPLITS, np.int64)
        for split, done in rounds.items():
            self._rounds[split] = done

    def __len__(self) -> int:
        return int(self._rounds.sum())

    def __contains__(self, number: int) -> bool:
        return bool(self.has(np.array([number]))[0])

    def has(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Of each, whether it was given; none below zero ever is."""
        found: npt.NDArray[np.bool_] = (numbers >= 0) & (self._rounds[numbers % SPLITS] > numbers // SPLITS)
        return found

    def chunks(self) -> Iterator[Numbers]:
        """All of them, in pieces."""
        most = int(self._rounds.max(initial=0))
        for first in range(0, most, CHUNK_ROUNDS):
            rounds = np.arange(first, min(first + CHUNK_ROUNDS, most), dtype=np.int64)
            numbers = (rounds[:, None] * SPLITS + np.arange(SPLITS)[None, :]).ravel()
            yield numbers[self.has(numbers)]
