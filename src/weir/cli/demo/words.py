"""The demo's text: lines of words from a skewed vocabulary, each made from its number alone.

Comes in: line numbers. Goes out: lines as Arrow strings, and how often each word
truly occurs, counted from the word numbers without looking at any text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

WORDS_PER_LINE = 10
VOCABULARY = 4_000
SKEW = 1.05
"""The word of rank r is drawn in proportion to 1 / r**SKEW, as in natural languages."""

COUNT_CHUNK_LINES = 200_000

Numbers = npt.NDArray[np.int64]

_ONSETS = "b d f g k l m n p r s t v z br dr gr kl pl st tr".split()
_VOWELS = "a e i o u ai ei ou".split()


def vocabulary() -> pa.StringArray:
    """Pronounceable words, all different, the most frequent and shortest first."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    base = len(syllables)
    words = list(syllables)
    number = 0
    while len(words) < VOCABULARY:
        first, second = divmod(number * 7_919 % (base * base), base)
        words.append(syllables[first] + syllables[second])
        number += 1
    return pa.array(dict.fromkeys(words), pa.string())


class MakeLines:
    """Makes lines from their numbers; a picklable function for the generator."""

    def __init__(self) -> None:
        self._words = vocabulary()
        weights = 1.0 / np.arange(1, len(self._words) + 1) ** SKEW
        self._thresholds = np.cumsum(weights) / weights.sum()

    def __call__(self, numbers: Numbers) -> dict[str, pa.Array]:
        ids = self.word_ids(numbers)
        offsets = np.arange(0, len(ids) + 1, WORDS_PER_LINE, dtype=np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), self._words.take(pa.array(ids)))
        return {"line": pc.binary_join(lists, " ")}

    def word_ids(self, numbers: Numbers) -> Numbers:
        """Which words stand in these lines, line after line."""
        places = (numbers[:, None] * WORDS_PER_LINE + np.arange(WORDS_PER_LINE)).ravel()
        ids = np.searchsorted(self._thresholds, fractions(places), side="right")
        return np.minimum(ids, len(self._words) - 1).astype(np.int64)

    def true_counts(self, lines: int) -> dict[str, int]:
        """How often each word occurs in the first `lines` lines."""
        counts = np.zeros(len(self._words), dtype=np.int64)
        for start in range(0, lines, COUNT_CHUNK_LINES):
            numbers = np.arange(start, min(start + COUNT_CHUNK_LINES, lines), dtype=np.int64)
            counts += np.bincount(self.word_ids(numbers), minlength=len(counts))
        return {word: int(n) for word, n in zip(self._words.to_pylist(), counts) if n}


def fractions(places: Numbers) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each place, as if drawn at random (splitmix64)."""
    mixed = places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
