"""Which keys may be in a segment, without a look at it: a Bloom filter over the order of its rows.

Comes in: hashes. Goes out: whether each may be among those that it was made of; one in some
hundred others is said to be. Two bytes a key. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Words

_KEYS_PER_WORD = 4
_BITS = (0, 6, 12)
"""Where in a hash the numbers of a key's bits are; above is that of its word."""

_WORD_SHIFT = np.uint64(18)
_SIX_BITS = np.uint64(63)


@dataclass(frozen=True)
class Sought:
    """Hashes that many filters are asked for."""

    places: Words
    bits: Words

    @staticmethod
    def of(hashes: Words) -> Sought:
        return Sought(hashes >> _WORD_SHIFT, _bits(hashes))

    def slice(self, start: int, stop: int) -> Sought:
        """Some of them, which follow each other."""
        return Sought(self.places[start:stop], self.bits[start:stop])


class KeyFilter:
    """Of some hashes, whose lower bits are as good as random.

    >>> sought = Sought.of(np.array([1 << 40, 77 << 18], np.uint64))
    >>> KeyFilter(np.array([1 << 40], np.uint64)).may_have(sought).tolist()
    [True, False]
    """

    def __init__(self, hashes: Words) -> None:
        size = 1 << max(len(hashes) // _KEYS_PER_WORD, 1).bit_length()
        self._mask = np.uint64(size - 1)
        self._words = np.zeros(size, np.uint64)
        own = Sought.of(hashes)
        np.bitwise_or.at(self._words, own.places & self._mask, own.bits)

    def may_have(self, sought: Sought) -> Mask:
        """Whether each of these may be one of them."""
        found: Mask = self._words[sought.places & self._mask] & sought.bits == sought.bits
        return found


def _bits(hashes: Words) -> Words:
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _BITS:
        bits |= np.uint64(1) << ((hashes >> np.uint64(shift)) & _SIX_BITS)
    return bits
