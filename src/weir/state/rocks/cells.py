"""The values of one state, between the handles and a database.

Comes in: the keys of a batch, and what handles do. Goes out: one read for all keys of a
batch, one write for all that it changed. A `RocksCells` obeys the law of cells: what lies
in the dictionary itself is what was changed and is not written yet; `clean` is what is in
the database, as far as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from weir.state.declared.changed import IGNORED
from weir.state.declared.container_handles import TimedList
from weir.state.declared.cursor import Key
from weir.state.declared.tables import Shape
from weir.state.rocks.database import Database
from weir.state.rocks.snapshot import STAMP_BYTES
from weir.state.rocks.values import pack, unpack
from weir.state.values.conversion import to_list

RETAINED_KEYS_MAX = 16_384
RETAINED_BYTES_MAX = 16 << 20
"""How much is remembered of the batches before, as bytes in the database: enough for a few keys that come often."""

FIRST_READ_KEYS = 64
"""Keys of a batch that are read before anything is known of how large their values are."""

CHANGED_KEYS_MAX = 65_536
"""Changes that wait for the end of a batch; more than these are written at once."""


class HeldCodec:
    """What cells hold of one state, as byte strings and back, a column at a time."""

    def __init__(self, shape: Shape, decode: Callable[[pa.Array], list[Any]] = to_list) -> None:
        self.kind = shape.column_type
        self.stamped = shape.ttl is not None
        self._timed_list = self.stamped and shape.form == "list"
        self._decode = decode

    def pack(self, held: Sequence[Any]) -> list[bytes]:
        if not self.stamped:
            return pack(pa.array(held, self.kind))
        stamps = [value.touched_ms for value in held] if self._timed_list else [touched for _, touched in held]
        values = held if self._timed_list else [value for value, _ in held]
        packed = zip(pack(pa.array(stamps, pa.int64())), pack(pa.array(values, self.kind)))
        return [stamp + value for stamp, value in packed]

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        if not self.stamped:
            return self._values(packed)
        stamps = to_list(unpack([value[:STAMP_BYTES] for value in packed], pa.int64()))
        values = self._values([value[STAMP_BYTES:] for value in packed])
        return list(map(TimedList, values, stamps)) if self._timed_list else list(zip(values, stamps))

    def _values(self, packed: Sequence[bytes]) -> list[Any]:
        return self._decode(unpack(packed, self.kind))


class RocksCells(dict[Key, Any]):
    """The values of one state by key. `self[key]` is `default` where there is none."""

    __slots__ = ("_codec", "_database", "_retained_bytes", "clean", "default", "gone")

    note = IGNORED
    """What was changed lies in the dictionary itself."""

    def __init__(self, database: Database, codec: HeldCodec, default: Any) -> None:
        super().__init__()
        self._database = database
        self._codec = codec
        self.default = default
        self.clean: dict[Key, Any] = {}
        self.gone: set[Key] = set()
        """Keys that were forgotten; one that lies in the dictionary itself is back."""
        self._retained_bytes = 0

    def __missing__(self, key: Key) -> Any:
        clean = self.clean
        if key not in clean:
            if self._retained_bytes > RETAINED_BYTES_MAX:
                self._let_go()
            self._fetch([key])
        return clean[key]

    def own(self, key: Key) -> Any:
        held = self.get(key)
        if held is None:
            held = self[key]
            if held is not None:
                self[key] = held = held.copy()
        return held

    def forget(self, key: Key) -> None:
        self.pop(key, None)
        self.clean[key] = self.default
        self.gone.add(key)

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Read what is not known yet, as far as there is room for it; the rest is read when it is asked for."""
        if self._retained_bytes > RETAINED_BYTES_MAX or len(self.clean) > RETAINED_KEYS_MAX:
            self._let_go()
        # In the order in which they lie in the database: so its indexes and filters stay in the core's cache.
        missing = sorted(set(keys).difference(self.clean, self))
        done, count = 0, FIRST_READ_KEYS
        while done < len(missing) and self._retained_bytes <= RETAINED_BYTES_MAX:
            before_bytes = self._retained_bytes
            self._fetch(missing[done : done + count])
            done += count
            # As many as there should be room for, should they be as large as these.
            each_bytes = (self._retained_bytes - before_bytes) // count + 1
            count = max(FIRST_READ_KEYS, (RETAINED_BYTES_MAX - self._retained_bytes) // each_bytes)

    def _let_go(self) -> None:
        self.write()
        self.clean.clear()
        self._retained_bytes = 0

    def _fetch(self, keys: list[Key]) -> None:
        if len(self) + len(self.gone) > CHANGED_KEYS_MAX:
            self.write()
        found = self._database.get_many(keys)
        there = [value for value in found if value is not None]
        self._retained_bytes += sum(map(len, keys)) + sum(map(len, there))
        if len(there) == len(keys):
            self.clean.update(zip(keys, self._codec.unpack(there)))
            return
        self.clean.update(zip(keys, repeat(self.default)))
        if there:
            known = [key for key, value in zip(keys, found) if value is not None]
            self.clean.update(zip(known, self._codec.unpack(there)))

    def write(self) -> None:
        """Put what was changed into the database."""
        if not self and not self.gone:
            return
        keys = sorted(self)
        packed = self._codec.pack(list(map(self.__getitem__, keys))) if keys else []
        self.gone.difference_update(self)
        self._database.write(zip(keys, packed), self.gone)
        self._retained_bytes += sum(map(len, keys)) + sum(map(len, packed))
        self.clean.update(self)
        self.clear()
        self.gone.clear()

    def reset(self) -> None:
        """Forget what is known: the database is another one."""
        self.clear()
        self.clean.clear()
        self.gone.clear()
        self._retained_bytes = 0

    def attach(self, database: Database) -> None:
        self.reset()
        self._database = database
