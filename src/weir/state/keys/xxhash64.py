"""XXH64 as Spark SQL computes it, over whole NumPy columns.

Comes in: a column of 4-byte or 8-byte words or of byte strings, and a seed per row
(or one for all). Goes out: one uint64 per row. Knows nothing of Arrow or nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[np.uint64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Seed: TypeAlias = "np.uint64 | Words"

PADDING_BYTES = 8
"""Bytes that must follow the last byte string, so that whole words can be read at any of its bytes."""

_BLOCK_ROWS = 8_192

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_LOW_32 = np.uint64(0xFFFFFFFF)
_LOW_8 = np.uint64(0xFF)


def hash_ints(words: Words, seed: Seed) -> Words:
    """Hash 4-byte values, given as words whose upper half is zero."""
    return _in_blocks(_hash_int_block, words, seed)


def hash_longs(words: Words, seed: Seed) -> Words:
    """Hash 8-byte values."""
    return _in_blocks(_hash_long_block, words, seed)


def hash_bytes(starts: Ints, lengths: Ints, *, data: Bytes, seed: Seed) -> Words:
    """Hash the byte strings `data[start : start + length]`; PADDING_BYTES more bytes must follow the last."""
    words: Words = np.ndarray((len(data) - 7,), np.uint64, data, strides=(1,))
    with np.errstate(over="ignore"):
        hashes, offsets = _hash_stripes(starts, lengths, words=words, seed=seed)
        hashes += lengths.view(np.uint64)
        remaining = lengths & 31
        for done in range(0, int(remaining.max(initial=0)) & ~7, 8):
            rows = _rows_where(remaining >= done + 8)
            hashes[rows] = _add_word(hashes[rows], words[offsets[rows] + done])
        _hash_tails(hashes, offsets + (remaining & 24), remaining & 7, words=words)
        return _avalanche(hashes)


def unaligned_words(data: Bytes) -> Words:
    """The eight bytes from every byte on, without a copy."""
    return np.ndarray((max(len(data) - 7, 0),), np.uint64, data, strides=(1,))


def _in_blocks(hash_block: Callable[[Words, Words, Seed], None], words: Words, seed: Seed) -> Words:
    """Hash block by block, so that what is in between never leaves the processor's cache."""
    hashes = np.empty(len(words), np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, len(words), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            hash_block(words[rows], hashes[rows], seed[rows] if isinstance(seed, np.ndarray) else seed)
    return hashes


def _hash_int_block(words: Words, hashes: Words, seed: Seed) -> None:
    np.multiply(words, _PRIME_1, out=hashes)
    hashes ^= seed + _PRIME_5 + np.uint64(4)
    _rotate(hashes, 23)
    hashes *= _PRIME_2
    hashes += _PRIME_3
    _avalanche(hashes)


def _hash_long_block(words: Words, hashes: Words, seed: Seed) -> None:
    np.multiply(words, _PRIME_2, out=hashes)
    _rotate(hashes, 31)
    hashes *= _PRIME_1
    hashes ^= seed + _PRIME_5 + np.uint64(8)
    _rotate(hashes, 27)
    hashes *= _PRIME_1
    hashes += _PRIME_4
    _avalanche(hashes)


def _hash_stripes(starts: Ints, lengths: Ints, *, words: Words, seed: Seed) -> tuple[Words, Ints]:
    """The hash of all whole 32-byte stripes of each string, and where its rest begins."""
    hashes = np.empty(len(starts), np.uint64)
    hashes[:] = seed + _PRIME_5
    rows = np.flatnonzero(lengths >= 32)
    if not len(rows):
        return hashes, starts
    own_seed = seed[rows] if isinstance(seed, np.ndarray) else np.full(len(rows), seed)
    lanes = [own_seed + _PRIME_1 + _PRIME_2, own_seed + _PRIME_2, own_seed.copy(), own_seed - _PRIME_1]
    stripes, offsets = lengths[rows] >> 5, starts[rows]
    for stripe in range(int(stripes.max())):
        active = _rows_where(stripes > stripe)
        for number, lane in enumerate(lanes):
            mixed = lane[active] + words[offsets[active] + (32 * stripe + 8 * number)] * _PRIME_2
            lane[active] = _rotate(mixed, 31) * _PRIME_1
    total = sum((_rotate(lane.copy(), turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)), np.uint64(0))
    for lane in lanes:
        total ^= _rotate(lane * _PRIME_2, 31) * _PRIME_1
        total *= _PRIME_1
        total += _PRIME_4
    hashes[rows] = total
    rests = starts.copy()
    rests[rows] += stripes << 5
    return hashes, rests


def _hash_tails(hashes: Words, offsets: Ints, lengths: Ints, *, words: Words) -> None:
    """Add the last 0 to 7 bytes of each string, in place."""
    tails = words[offsets]
    rows = _rows_where(lengths >= 4)
    mixed = hashes[rows] ^ ((tails[rows] & _LOW_32) * _PRIME_1)
    hashes[rows] = _rotate(mixed, 23) * _PRIME_2 + _PRIME_3
    tails[rows] >>= np.uint64(32)
    lengths = lengths & 3
    for done in range(int(lengths.max(initial=0))):
        rows = _rows_where(lengths > done)
        mixed = hashes[rows] ^ (((tails[rows] >> np.uint64(8 * done)) & _LOW_8) * _PRIME_5)
        hashes[rows] = _rotate(mixed, 11) * _PRIME_1


def _add_word(hashes: Words, words: Words) -> Words:
    mixed = hashes ^ (_rotate(words * _PRIME_2, 31) * _PRIME_1)
    return _rotate(mixed, 27) * _PRIME_1 + _PRIME_4


def _rows_where(mask: npt.NDArray[np.bool_]) -> Ints | slice:
    """The rows to work on: all of them without a copy where the mask allows it."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _rotate(words: Words, bits: int) -> Words:
    """Rotate left, in place."""
    upper = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= upper
    return words


def _avalanche(hashes: Words) -> Words:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME_3
    hashes ^= hashes >> np.uint64(32)
    return hashes
