"""What one state holds by key, and how it is frozen without copying it.

Comes in: values by key. Goes out: the same, and views of how they were at a barrier.
A freeze puts a fresh dictionary on top of the ones before, which do not change until the
view's reader has copied what they refer to (some 30 ns a key), or has released it. Then
the layers are merged, a few entries with each batch of rows.

The law of a `Cells`: what lies in the dictionary itself is its own and may be changed in
place (a list, say); what lies below may not, but must be copied up first (`own`). Whoever
changes a value notes the row (`note`): only those go into the next snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, islice
from typing import Any, TypeAlias

from weir.snapshot.parts import StatePart
from weir.state.declared.changed import IGNORED, ChangedRows, Since
from weir.state.declared.cursor import Key
from weir.state.declared.untracked import untrack

NOTHING: Any = object()
"""Where a key has no value."""

MERGE_ENTRIES_LEAST = 1_024
MERGE_ENTRIES_PER_KEY = 2
"""Entries that are merged with each batch: more than its keys, since each of those may add one."""

PIECE_KEYS = 5_000
"""Keys that become one table: more would hold up the stream, which shares the interpreter, fewer cost more in all."""

STEP_KEYS = 1_000
"""Keys that are copied at once. The loop cannot have the interpreter back before that is done."""

Piece: TypeAlias = tuple[list[Key], list[Any]]
"""Some keys and their values."""


class Cells(dict[Key, Any]):
    """The values of one state by key, the topmost layer. `self[key]` is `default` where there is none."""

    __slots__ = ("below", "default", "gone", "note")

    def __init__(self, default: Any, below: tuple[Cells, ...] = ()) -> None:
        super().__init__()
        self.default = default
        self.note = IGNORED
        """Called with what was changed: a key, or a key and a map key."""
        self.below = below
        """Older layers, the newest first."""
        self.gone: set[Key] = set()
        """Keys that were forgotten, though a layer below has them; one that lies in the dictionary itself is back."""

    def __missing__(self, key: Key) -> Any:
        if self.below and key not in self.gone:
            for layer in self.below:
                found = layer.get(key, NOTHING)
                if found is not NOTHING:
                    return found
                if key in layer.gone:
                    break
        return self.default

    def own(self, key: Key) -> Any:
        """The list or dictionary at a key, to be changed in place; None where there is none."""
        held = self.get(key)
        if held is None:
            held = self[key]
            if held is not None:
                self[key] = held = held.copy()
                untrack(held)
        return held

    def forget(self, key: Key) -> None:
        self.drop(key)
        self.note(key)

    def drop(self, key: Key) -> None:
        """The same without a note."""
        self.pop(key, None)
        if self.below:
            self.gone.add(key)


class MapCells(Cells):
    """Cells with a dictionary at each key, whose entries are rows of their own."""

    __slots__ = ()

    def forget(self, key: Key) -> None:
        held = self[key]
        self.drop(key)
        for name in held or ():
            self.note((key, name))


class CellsView:
    """All values as they were at a barrier. May be read by another thread until it is released."""

    def __init__(self, layers: tuple[Cells, ...], release: Callable[[CellsView], None]) -> None:
        self._layers = layers
        """The newest first."""
        self._release = release
        self._copy: list[Piece] | None = None
        self.since: Since | None = None
        """What may be built on, and which rows changed since; None: all of them are written."""
        self.number = 0
        """Of this freeze, for whoever confirms it."""
        self.expired: list[Key] = []
        """Keys that the reader found to have expired; noted here for the owner."""

    @property
    def pinned(self) -> int:
        """How many layers, from the oldest, this view still needs."""
        return len(self._layers)

    @property
    def is_copied(self) -> bool:
        """Whether `copy` was called, so that nothing else may be left."""
        return self._copy is not None

    def pieces(self) -> Iterator[Piece]:
        """Every key once, with its value."""
        layers = self._layers
        for depth, layer in enumerate(layers):
            newer = layers[:depth]
            keys, values = iter(layer), iter(layer.values())
            while piece := _take(keys):
                held = _take(values)
                if newer:
                    kept = [not _is_in(newer, key) for key in piece]
                    piece, held = list(compress(piece, kept)), list(compress(held, kept))
                yield piece, held

    def find(self, key: Key) -> Any:
        """The value of one key, or NOTHING."""
        for layer in self._layers:
            found = layer.get(key, NOTHING)
            if found is not NOTHING or key in layer.gone:
                return found
        return NOTHING

    def copy(self, *, in_place: bool) -> Sequence[Piece]:
        """The pieces, made by the first call. Unless values may be changed `in_place`, the layers are merged from then
        on. That must be soon, so this does not pause: a layer on top that grew large would hold up the stream whenever
        Python makes more room for it."""
        if self._copy is None:
            copy: list[Piece] = []
            for piece in self.pieces():
                for column in piece:
                    untrack(column)
                copy.append(piece)
            self._copy = copy
            if not in_place:
                self.let_go()
        return self._copy

    def let_go(self) -> None:
        """No more will be read, but for what was copied."""
        self._layers = ()

    def discard(self, breathe: Callable[[], None]) -> None:
        """Let go of the copy, piece by piece: it may be all that still holds values that were replaced since."""
        while self._copy:
            del self._copy[-1]
            breathe()

    def release(self) -> None:
        self._copy = None
        self._release(self)


def _take(entries: Iterator[Any]) -> list[Any]:
    taken: list[Any] = []
    while room := min(STEP_KEYS, PIECE_KEYS - len(taken)):
        before = len(taken)
        taken += islice(entries, room)
        if len(taken) == before:
            break
    return taken


def _is_in(layers: Sequence[Cells], key: Key) -> bool:
    return any(key in layer or key in layer.gone for layer in layers)


class Layers:
    """The layers of one state. `live`, the topmost, is also handed to `attach` whenever it is another one."""

    def __init__(
        self,
        default: Any,
        attach: Callable[[Cells], None],
        kind: type[Cells] = Cells,
        changes: ChangedRows | None = None,
    ) -> None:
        """`changes`: notes what changed, so that later snapshots need not write everything."""
        self.live = kind(default)
        untrack(self.live)
        self._kind = kind
        self._attach = attach
        self._changes = changes
        self._frozen: list[Cells] = []
        """The oldest first."""
        self._views: list[CellsView] = []
        self._expired: deque[Key] = deque()
        attach(self.live)

    def freeze(self) -> CellsView:
        """Everything as it is now. Takes no longer for more entries."""
        if self.live or self.live.gone or not self._frozen:
            self._frozen.append(self.live)
            self._put_on_top(self._kind(self.live.default))
        view = CellsView(tuple(reversed(self._frozen)), self._released)
        self._views.append(view)
        if self._changes is not None:
            view.number, view.since = self._changes.freeze(self._entries)
            self.live.note = self._changes.note
        return view

    @property
    def _entries(self) -> int:
        """About how many there are: those that are in several layers count again."""
        return len(self.live) + sum(map(len, self._frozen))

    def restored(self, part: StatePart) -> None:
        """What there is now is exactly what this part of a checkpoint holds."""
        if self._changes is not None:
            self._changes.restored(part)
            self.live.note = self._changes.note

    def confirmed(self, view: CellsView, part: StatePart) -> None:
        """A completed checkpoint holds the part that was written of a view."""
        if self._changes is not None:
            self._changes.confirmed(view.number, part)

    def _released(self, view: CellsView) -> None:
        self._views.remove(view)
        self._expired.extend(view.expired)

    def tidy(self, keys_count: int, drop_expired: Callable[[Key], None]) -> None:
        """Merge some entries back and drop some that have expired; called with each batch of `keys_count` rows."""
        # Since the last time, containers may have been put in.
        untrack(self.live)
        if self._changes is not None:
            self._changes.tidy(self._entries)
            self.live.note = self._changes.note
        if not (self._frozen or self._expired):
            return
        budget = MERGE_ENTRIES_LEAST + MERGE_ENTRIES_PER_KEY * keys_count
        for _ in range(min(budget, len(self._expired))):
            drop_expired(self._expired.popleft())
        while budget > 0 and len(self._frozen) > self._pinned:
            below = self._frozen[-1]
            budget -= self._merge(budget)
            untrack(below)

    @property
    def _pinned(self) -> int:
        """How many layers, from the oldest, some view still needs."""
        return max((view.pinned for view in self._views), default=0)

    def _merge(self, budget: int) -> int:
        """Move entries from the topmost layer into the one below, which takes its place once all are there."""
        live, below = self.live, self._frozen[-1]
        done = self._bury(live, below, budget)
        if live.gone:
            return done
        if len(live) <= budget - done:
            done += len(live)
            below.update(live)
            self._frozen.pop()
            self._put_on_top(below)
            return done + 1
        popitem = live.popitem
        for _ in range(budget - done):
            key, value = popitem()
            below[key] = value
        return budget

    def _bury(self, live: Cells, below: Cells, budget: int) -> int:
        count = min(budget, len(live.gone))
        for _ in range(count):
            # One that is back in the layer itself comes to the one below with the other entries.
            below.drop(live.gone.pop())
        return count

    def _put_on_top(self, live: Cells) -> None:
        untrack(live)
        live.below = tuple(reversed(self._frozen))
        live.note = IGNORED if self._changes is None else self._changes.note
        self.live = live
        self._attach(live)

    def clear(self) -> None:
        self._frozen.clear()
        self._expired.clear()
        self._put_on_top(self._kind(self.live.default))
