"""The C library's allocator: Arrow uses it too, and it is kept from holding on to what it does not need.

A task's rows cross threads: gRPC's threads allocate what the loop frees. Left alone,
glibc gives each thread an arena of its own, and freed pieces stay in them. Arrow's own
allocator gives pages back at once and gets huge ones anew, which the kernel must clear:
half of the time that a snapshot took. Comes in: nothing. Goes out: fewer arenas, and free
pages back to the system now and then, sooner where there are many. Where the C library is another one, nothing happens.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

ARENAS_MAX = 2
TRIM_INTERVAL_MS = 10_000.0
FREE_BYTES_MAX = 64 << 20
"""Where so much was freed since the last time, it goes back at the next heartbeat: pieces of large state come and go by
as much."""

_M_ARENA_MAX = -8


class _Mallinfo(ctypes.Structure):
    """What `mallinfo2` says, of which only the free bytes are of use."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")]
    _fields_ += [(name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


class Allocator:
    """The allocator of this process."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        limit = getattr(library, "mallopt", None)
        self._info = getattr(library, "mallinfo2", None)  # since 2.33
        if self._info is not None:
            self._info.restype = _Mallinfo
        self._trimmed_ms = 0.0
        self._given_back = 0
        """Bytes that have gone back already: what is free between others counts as free for as long as they stay."""
        if limit is not None and self._trim is not None:
            limit(_M_ARENA_MAX, ARENAS_MAX)
            pa.set_memory_pool(pa.system_memory_pool())

    def tidy(self, now_ms: float) -> None:
        """Give free pages back, if that has not been done for a while, or there are many; takes about a millisecond,
        and a tenth of one for each megabyte."""
        if self._trim is None:
            return
        free_bytes = self._free_bytes()
        self._given_back = min(self._given_back, free_bytes)
        if now_ms - self._trimmed_ms < TRIM_INTERVAL_MS and free_bytes - self._given_back < FREE_BYTES_MAX:
            return
        self._trimmed_ms = now_ms
        self._trim(0)
        self._given_back = self._free_bytes()

    def _free_bytes(self) -> int:
        return 0 if self._info is None else int(self._info().fordblks)
