"""The C library's allocator: Arrow uses it too, and it is kept from holding on to what it does not need.

A task's rows cross threads: gRPC's threads allocate what the loop frees. Left alone,
glibc gives each thread an arena of its own, and freed pieces stay in them. Arrow's own
allocator gives pages back at once and gets huge ones anew, which the kernel must clear:
half of the time that a snapshot took. Comes in: nothing. Goes out: fewer arenas, and free
pages back to the system now and then. Where the C library is another one, nothing happens.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

ARENAS_MAX = 2
TRIM_INTERVAL_MS = 10_000.0

_M_ARENA_MAX = -8


class Allocator:
    """The allocator of this process."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        limit = getattr(library, "mallopt", None)
        self._trimmed_ms = 0.0
        if limit is not None and self._trim is not None:
            limit(_M_ARENA_MAX, ARENAS_MAX)
            pa.set_memory_pool(pa.system_memory_pool())

    def tidy(self, now_ms: float) -> None:
        """Give free pages back, if that has not been done for a while; takes about a millisecond."""
        if self._trim is None or now_ms - self._trimmed_ms < TRIM_INTERVAL_MS:
            return
        self._trimmed_ms = now_ms
        self._trim(0)
