"""The maps of one state, between the handles and a database that has an entry for each of theirs.

Comes in: what handles do with the map of a key. Goes out: single reads, scans of one map,
and one write for all that a batch changed. A map is never read as a whole unless asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from weir.state.declared.changed import IGNORED
from weir.state.declared.cursor import Key
from weir.state.declared.forms import key_form
from weir.state.rocks.cells import CHANGED_KEYS_MAX, HeldCodec
from weir.state.rocks.database import Database
from weir.state.rocks.values import pack, unpack
from weir.state.values.conversion import to_list

_GONE: Any = object()
"""In the place of an entry that was removed, or is not there."""

_FORMATS = {
    pa.int8(): "<b",
    pa.int16(): "<h",
    pa.int32(): "<i",
    pa.int64(): "<q",
    pa.float64(): "<d",
}


class RocksMaps:
    """The maps of one state by key. `self[key]` is the map of a key, whether or not it has entries."""

    note = IGNORED
    """What was changed is put here."""

    def __init__(self, database: Database, codec: HeldCodec, map_key: pa.DataType) -> None:
        self.default = None
        self._database = database
        self._codec = codec
        self._kind = map_key
        self._pack_key = _packer(map_key)
        self._canonical = key_form(map_key)
        self._changed: dict[Key, dict[Any, Any]] = {}
        self._count = 0
        self._read: dict[Key, dict[Any, Any]] = {}
        """Entries that this batch has looked at already."""

    def __getitem__(self, key: Key) -> RocksMap:
        return RocksMap(self, key)

    def __setitem__(self, key: Key, entries: dict[Any, Any]) -> None:
        self.forget(key)
        self.put(key, entries.items())

    def own(self, key: Key) -> RocksMap:
        return RocksMap(self, key)

    def forget(self, key: Key) -> None:
        self.put(key, [(inner, _GONE) for inner in self.entries(key)])

    def find(self, key: Key, inner: Any) -> Any:
        """What is held at a map key, or _GONE."""
        changed = self._changed.get(key)
        if changed is not None and inner in changed:
            return changed[inner]
        known = self._read.setdefault(key, {})
        if inner not in known:
            packed = self._database.get(key + self._pack_key(inner))
            known[inner] = _GONE if packed is None else self._codec.unpack([packed])[0]
        return known[inner]

    def entries(self, key: Key) -> dict[Any, Any]:
        """All entries of a key's map."""
        end = len(key)
        stored = list(self._database.scan(key))
        found: dict[Any, Any] = {}
        if stored:
            inner = to_list(unpack([entry[end:] for entry, _ in stored], self._kind))
            # Only floats have values that are read back as others: NaN is one of many.
            names = map(self._canonical, inner) if pa.types.is_floating(self._kind) else inner
            found.update(zip(names, self._codec.unpack([value for _, value in stored])))
        found.update(self._changed.get(key, {}))
        return {inner: held for inner, held in found.items() if held is not _GONE}

    def put(self, key: Key, entries: Iterable[tuple[Any, Any]]) -> None:
        """Note changes; _GONE: removed."""
        changed = self._changed.setdefault(key, {})
        before = len(changed)
        changed.update(entries)
        self._count += len(changed) - before
        if self._count > CHANGED_KEYS_MAX:
            self.write()

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Nobody knows which entries will be wanted."""

    def write(self) -> None:
        """Put what was changed into the database."""
        self._read.clear()
        if not self._changed:
            return
        keys = [key for key, entries in self._changed.items() for _ in entries]
        inner = pack(pa.array([k for entries in self._changed.values() for k in entries], self._kind))
        held = [value for entries in self._changed.values() for value in entries.values()]
        names = list(map(bytes.__add__, keys, inner))
        there = [i for i, value in enumerate(held) if value is not _GONE]
        packed = self._codec.pack([held[i] for i in there]) if there else []
        gone = [name for name, value in zip(names, held) if value is _GONE]
        self._database.write([(names[i], value) for i, value in zip(there, packed)], gone)
        self._changed.clear()
        self._count = 0

    def attach(self, database: Database) -> None:
        self._changed.clear()
        self._read.clear()
        self._count = 0
        self._database = database


class RocksMap:
    """The map of one key, as handles use a dictionary. Always true: whether it is empty is costly to know."""

    __slots__ = ("_key", "_maps")

    def __init__(self, maps: RocksMaps, key: Key) -> None:
        self._maps = maps
        self._key = key

    def get(self, inner: Any, default: Any = None) -> Any:
        held = self._maps.find(self._key, inner)
        return default if held is _GONE else held

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._maps.entries(self._key).items()

    def update(self, entries: Iterable[tuple[Any, Any]]) -> None:
        self._maps.put(self._key, entries)

    def pop(self, inner: Any, default: Any = None) -> None:
        self._maps.put(self._key, [(inner, _GONE)])

    def __setitem__(self, inner: Any, held: Any) -> None:
        self._maps.put(self._key, [(inner, held)])

    def __len__(self) -> int:
        return len(self._maps.entries(self._key))

    def __bool__(self) -> bool:
        return True


def _packer(kind: pa.DataType) -> Callable[[Any], bytes]:
    """`pack` for one value, quickly where the type allows it."""
    if kind in _FORMATS:
        return struct.Struct(_FORMATS[kind]).pack
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value: b"\x01" + value.encode()
    return lambda value: pack(pa.array([value], kind))[0]
