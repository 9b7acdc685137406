"""The handles of states with a list or a dictionary per key.

Comes in: what functions store and ask for. Goes out: copies of what the current key has.
They work on a `Cells` of any backend, which puts it into `data`: lists of held values, or
dictionaries of them. With a time-to-live, a list carries its own last touch and a
dictionary holds a pair for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from weir.state.declared.cursor import KeyCursor
from weir.state.declared.forms import Refusals, ValueForm, key_form, list_holds, map_holds
from weir.state.declared.handles import UNSET
from weir.state.declared.kinds import BroadcastState, ListState, MapState, OperatorListState
from weir.state.declared.untracked import untrack
from weir.state.declared.value_handles import CellData
from weir.state.values.conversion import NotOfType


class TimedList(list[Any]):
    """A list that knows when it was touched."""

    __slots__ = ("touched_ms",)

    def __init__(self, values: Iterable[Any], touched_ms: int) -> None:
        super().__init__(values)
        self.touched_ms = touched_ms

    def copy(self) -> TimedList:
        return TimedList(self, self.touched_ms)


class CellList:
    """The handle of a list state."""

    data: CellData

    def __init__(self, state: ListState | OperatorListState, cursor: KeyCursor, *, keyed: bool = True) -> None:
        self._cursor = cursor
        form = ValueForm(state.type, state.pickled)
        self._encode = form.encode
        self._decode = None if form.plain else form.decode
        self._default = [form.encode(value) for value in state.default]
        self._refuse = Refusals(state, cursor if keyed else None, list_holds(state))

    def get(self) -> list[Any]:
        held = self._read()
        if held is None:
            held = self._default
        return list(held) if self._decode is None else list(map(self._decode, held))

    def add(self, value: Any) -> None:
        self._append([value])

    def add_all(self, values: Iterable[Any]) -> None:
        self._append(values)

    def set(self, values: Iterable[Any]) -> None:
        self._write(self._encoded(values))

    def clear(self) -> None:
        self.data.forget(self._cursor.key)

    def _append(self, values: Iterable[Any]) -> None:
        encoded = self._encoded(values)
        if not encoded:
            return
        own = self._own()
        if own is None:
            self._write([*self._default, *encoded])
        else:
            own.extend(encoded)
            self.data.note(self._cursor.key)

    def _encoded(self, values: Iterable[Any]) -> list[Any]:
        try:
            if isinstance(values, (str, bytes, Mapping)):
                raise NotOfType(0, values, "expected values in a list")
            return list(map(self._encode, values))
        except NotOfType as problem:
            raise self._refuse(problem, "was given") from None

    def _read(self) -> list[Any] | None:
        return self.data[self._cursor.key]  # type: ignore[no-any-return]

    def _own(self) -> list[Any] | None:
        return self.data.own(self._cursor.key)  # type: ignore[no-any-return]

    def _write(self, held: list[Any]) -> None:
        untrack(held)
        key, data = self._cursor.key, self.data
        data[key] = held
        data.note(key)


class TimedCellList(CellList):
    """The same with a time-to-live."""

    def __init__(self, state: ListState, cursor: KeyCursor, now_ms: Callable[[], int]) -> None:
        super().__init__(state, cursor)
        assert state.ttl is not None
        self._after_ms = state.ttl.after_ms
        self._on_read = state.ttl.refresh == "read"
        self._now_ms = now_ms

    def _read(self) -> list[Any] | None:
        held = self.data[self._cursor.key]
        if held is None:
            return None
        now_ms = self._now_ms()
        if held.touched_ms + self._after_ms <= now_ms:
            self.clear()
            return None
        if self._on_read:
            self.data.own(self._cursor.key).touched_ms = now_ms
            self.data.note(self._cursor.key)
        return held  # type: ignore[no-any-return]

    def _own(self) -> list[Any] | None:
        if self._read() is None:
            return None
        own = self.data.own(self._cursor.key)
        own.touched_ms = self._now_ms()
        return own  # type: ignore[no-any-return]

    def _write(self, held: list[Any]) -> None:
        super()._write(TimedList(held, self._now_ms()))


class CellMap:
    """The handle of a map state. A key whose map is empty has none."""

    data: CellData

    def __init__(self, state: MapState | BroadcastState, cursor: KeyCursor, *, keyed: bool = True) -> None:
        self._cursor = cursor
        form = ValueForm(state.type, state.pickled)
        self._encode_value, self._decode = form.encode, form.decode
        self._key = key_form(state.key_type)
        self._default = form.encode(state.default)
        self._has_default = state.default is not None
        self._refuse = Refusals(state, cursor if keyed else None, map_holds(state, state.key_type))

    # --- What the two kinds of dictionaries have in common ---

    def get(self, key: Any, default: Any = UNSET) -> Any:
        held = self._find(key)
        if held is not UNSET:
            return self._decode(held)
        return self._decode(self._default) if default is UNSET else default

    def put(self, key: Any, value: Any) -> None:
        self._store([(self._encoded_key(key), self._encoded(value))])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._store([(self._encoded_key(key), self._encoded(value)) for key, value in entries.items()])

    def remove(self, key: Any) -> None:
        self._drop([self._encoded_key(key)])

    def contains(self, key: Any) -> bool:
        return self._find(key) is not UNSET

    def keys(self) -> list[Any]:
        return [key for key, _ in self._entries()]

    def values(self) -> list[Any]:
        return [self._decode(held) for _, held in self._entries()]

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, self._decode(held)) for key, held in self._entries()]

    def is_empty(self) -> bool:
        return not self._count()

    def clear(self) -> None:
        self.data.forget(self._cursor.key)

    def __getitem__(self, key: Any) -> Any:
        held = self._find(key)
        if held is UNSET:
            if not self._has_default:
                raise KeyError(key)
            held = self._default
        return self._decode(held)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is UNSET:
            raise KeyError(key)
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __len__(self) -> int:
        return self._count()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def _encoded(self, value: Any) -> Any:
        try:
            return self._encode_value(value)
        except NotOfType as problem:
            raise self._refuse(problem, "was given the value") from None

    def _encoded_key(self, key: Any) -> Any:
        try:
            return self._key(key)
        except NotOfType as problem:
            raise self._refuse(problem, "was given the map key") from None

    # --- What differs ---

    def _find(self, key: Any) -> Any:
        """What is held at a map key, or UNSET."""
        held = self.data[self._cursor.key]
        key = self._encoded_key(key)
        return UNSET if held is None else held.get(key, UNSET)

    def _entries(self) -> Iterable[tuple[Any, Any]]:
        held = self.data[self._cursor.key]
        return () if held is None else held.items()

    def _count(self) -> int:
        held = self.data[self._cursor.key]
        return 0 if held is None else len(held)

    def _store(self, entries: list[tuple[Any, Any]]) -> None:
        if not entries:
            return
        own = self.data.own(self._cursor.key)
        if own is None:
            self.data[self._cursor.key] = own = {}
        own.update(entries)
        self._note([key for key, _ in entries])

    def _drop(self, keys: Sequence[Any]) -> None:
        own = self.data.own(self._cursor.key)
        if own is None:
            return
        for key in keys:
            own.pop(key, None)
        self._note(keys)
        if not own:
            self.clear()

    def _note(self, keys: Iterable[Any]) -> None:
        key, note = self._cursor.key, self.data.note
        for name in keys:
            note((key, name))


class GuardedMap(CellMap):
    """A map that can be changed only while nothing is said against it."""

    refusal: str | None = None

    def __init__(self, state: MapState | BroadcastState, cursor: KeyCursor, *, keyed: bool = True) -> None:
        super().__init__(state, cursor, keyed=keyed)
        self._name = state.name

    def clear(self) -> None:
        self._check()
        super().clear()

    def _store(self, entries: list[tuple[Any, Any]]) -> None:
        self._check()
        super()._store(entries)

    def _drop(self, keys: Sequence[Any]) -> None:
        self._check()
        super()._drop(keys)

    def _check(self) -> None:
        if self.refusal is not None:
            raise TypeError(f"state {self._name!r} {self.refusal}")


class TimedCellMap(CellMap):
    """The same with a time-to-live for each entry."""

    def __init__(self, state: MapState, cursor: KeyCursor, now_ms: Callable[[], int]) -> None:
        super().__init__(state, cursor)
        assert state.ttl is not None
        self._after_ms = state.ttl.after_ms
        self._on_read = state.ttl.refresh == "read"
        self._now_ms = now_ms

    def _find(self, key: Any) -> Any:
        pair = super()._find(key)
        if pair is UNSET:
            return UNSET
        now_ms = self._now_ms()
        key = self._encoded_key(key)
        if pair[1] + self._after_ms <= now_ms:
            self._drop([key])
            return UNSET
        if self._on_read:
            self.data.own(self._cursor.key)[key] = (pair[0], now_ms)
            self._note([key])
        return pair[0]

    def _entries(self) -> Iterable[tuple[Any, Any]]:
        now_ms = self._now_ms()
        found = [(key, pair[0]) for key, pair in self._alive(now_ms).items()]
        if self._on_read and found:
            self.data.own(self._cursor.key).update((key, (held, now_ms)) for key, held in found)
            self._note([key for key, _ in found])
        return found

    def _count(self) -> int:
        return len(self._alive(self._now_ms()))

    def _alive(self, now_ms: int) -> dict[Any, Any]:
        held = self.data[self._cursor.key]
        if held is None:
            return {}
        expired = [key for key, pair in held.items() if pair[1] + self._after_ms <= now_ms]
        if not expired:
            return held  # type: ignore[no-any-return]
        self._drop(expired)
        return self.data[self._cursor.key] or {}

    def _store(self, entries: list[tuple[Any, Any]]) -> None:
        now_ms = self._now_ms()
        super()._store([(key, (held, now_ms)) for key, held in entries])
