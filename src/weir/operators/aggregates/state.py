"""Keys and their accumulators: the state that both halves of a keyed aggregate work on.

Comes in: batches of rows, or of accumulators. Goes out: the slots that they touched,
and batches of accumulators, final values or state rows. Emits nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from weir.errors import DataError
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.chosen import ARRIVAL
from weir.operators.aggregates.frames import distinct
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.slot_store import SlotStore, store_for
from weir.operators.base import OperatorContext
from weir.operators.user_code import operator_label, user_code_error
from weir.state.columns.growing import grown
from weir.state.columns.kernels import Rule
from weir.state.columns.slots import SlotChanges
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState, RestoredState
from weir.state.keys.columns import fixed_values
from weir.state.keys.hashing import hash_keys
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

BATCH_ROWS_MAX = 65_536
"""Most rows of a batch that goes out, and of a piece of a state table."""


class Accumulators:
    """The accumulators of every aggregate, by slot."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext, *, shows_every_row: bool = False) -> None:
        """`shows_every_row`: what each row comes to is a result, so that sums must fit after each."""
        self._context = context
        self._aggregates = list(layout.aggregates.values())
        self._kernels = [
            aggregate.kernel(layout.input_schema, output) for output, aggregate in layout.aggregates.items()
        ]
        self._widths = [len(fields) for fields in layout.accumulators.values()]
        self._are_numbered = bool(layout.arrivals)
        for kernel in self._kernels if shows_every_row else ():
            kernel.show_every_row()

    def make_room(self, count: int) -> None:
        """There will be about so many slots."""
        for kernel in self._kernels:
            kernel.make_room(count)

    def can_combine(self, batch: pa.RecordBatch) -> bool:
        """Whether rows of the user may be merged before they are sent on: if not, whoever gets their sums could not
        tell what they were in between."""
        with blamed(self._context):
            adding = [(*of, k) for of, k in zip(self._reading(batch), self._kernels, strict=True) if k.adds_numbers]
            return all(kernel.can_combine(aggregate.lift(part)) for aggregate, part, kernel in adding)

    def add_rows(self, batch: pa.RecordBatch, slots: Ints, *, count: int) -> None:
        """Merge rows of the user; there are `count` slots by now."""
        with blamed(self._context):
            for (aggregate, part), kernel in zip(self._reading(batch), self._kernels, strict=True):
                touched, arrays = aggregate.lift_grouped(part, slots)
                kernel.merge(touched, arrays, count=count)

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The accumulators of each row of the user by itself, those of all aggregates side by side."""
        with blamed(self._context):
            return [array for aggregate, part in self._reading(batch) for array in aggregate.lift(part)]

    def _reading(self, batch: pa.RecordBatch) -> list[tuple[Aggregate, pa.RecordBatch]]:
        """What each aggregate reads: the numbers of rows are there for those that ask for them."""
        plain = batch.drop_columns([ARRIVAL]) if self._are_numbered else batch
        return [(aggregate, batch if aggregate.reads_arrival else plain) for aggregate in self._aggregates]

    def merge(self, columns: Sequence[pa.Array], slots: Ints, *, count: int) -> None:
        """Merge accumulators, those of all aggregates side by side; there are `count` slots by now."""
        with blamed(self._context):
            for kernel, arrays in zip(self._kernels, _pieces(columns, self._widths), strict=True):
                kernel.merge(slots, arrays, count=count)

    def read(self, slots: Ints) -> list[pa.Array]:
        """The accumulators of these slots, those of all aggregates side by side."""
        with blamed(self._context):
            return [array for kernel in self._kernels for array in kernel.read(slots)]

    def pour(self, slots: Ints, target: Accumulators, into: Ints, *, count: int) -> None:
        """Merge slots into those of others of the same layout; there are `count` of those by now."""
        with blamed(self._context):
            for kernel, other in zip(self._kernels, target._kernels, strict=True):
                kernel.pour(slots, other, into, count=count)

    def read_of(self, number: int, slots: Ints) -> pa.Array:
        """Of these slots one accumulator, by its place side by side; the others may be what they like."""
        starts = np.cumsum([0, *self._widths])
        of = int(np.searchsorted(starts, number, side="right")) - 1
        return self._kernels[of].read(slots)[number - int(starts[of])]

    def values(self, slots: Ints) -> list[pa.Array]:
        """The final values of these slots, by aggregate."""
        with blamed(self._context):
            return [a.final(k.read(slots)) for a, k in zip(self._aggregates, self._kernels, strict=True)]

    def values_of(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The final values of accumulators, those of all aggregates side by side."""
        with blamed(self._context):
            return [a.final(of) for a, of in zip(self._aggregates, _pieces(columns, self._widths), strict=True)]

    @property
    def size_bytes(self) -> int:
        """What they take in memory, about."""
        return sum(kernel.size_bytes for kernel in self._kernels)

    @property
    def rules(self) -> list[Rule] | None:
        """How each accumulator is merged, side by side; None: some by more than a rule."""
        found = [kernel.rules for kernel in self._kernels]
        return None if None in found else [rule for rules in found for rule in rules or ()]

    def clear(self) -> None:
        for kernel in self._kernels:
            kernel.clear()


class KeyedAccumulators:
    """The accumulators of every key that was ever seen."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext) -> None:
        self._layout = layout
        self._index = KeyIndex(layout.key_schema)
        self._accumulators = Accumulators(layout, context, shows_every_row=True)
        self._changes = SlotChanges(
            layout.stored,
            keys=len(layout.keys),
            max_parallelism=context.max_parallelism,
            read=self._accumulators.read,
        )
        self._store = store_for(layout.stored, keys=len(layout.keys), context=context)
        """With one, the slots are only those of keys that were used of late."""
        self._known = 0
        """Slots whose keys were looked up there."""

    def __len__(self) -> int:
        return len(self._index)

    def add_rows(self, batch: pa.RecordBatch) -> Ints:
        """Merge rows of the user; returns the slot of each."""
        slots = self._index.slots([batch.column(key) for key in self._layout.keys])
        if self._store is not None:
            self._merge_stored(self._store, slots, self._accumulators.lift(batch))
            return slots
        with self._changes.changing(slots, len(self._index)):
            self._accumulators.add_rows(batch, slots, count=len(self._index))
        return slots

    def merge_sent(self, batch: pa.RecordBatch) -> Ints:
        """Merge what the first half has sent; returns the slot of each row."""
        if self._layout.hash_column is None:
            return self._merge(batch.columns)
        *columns, hashes = batch.columns
        return self._merge(columns, fixed_values(hashes))

    def _merge(self, columns: Sequence[pa.Array], hashes: Words | None = None) -> Ints:
        """Merge keys and accumulators; returns the slot of each."""
        width = len(self._layout.keys)
        slots = self._index.slots(columns[:width], hashes)
        if self._store is not None:
            self._merge_stored(self._store, slots, columns[width:])
            return slots
        with self._changes.changing(slots, len(self._index)):
            self._accumulators.merge(columns[width:], slots, count=len(self._index))
        return slots

    def values(self, slots: Ints, keys: Sequence[pa.Array | None]) -> pa.RecordBatch:
        """Keys and final values of these slots. `keys`: their key columns, or None for those to be looked up."""
        stored = self._index.freeze().columns
        known = [of.build(slots) if given is None else given for of, given in zip(stored, keys, strict=True)]
        return pa.RecordBatch.from_arrays([*known, *self._accumulators.values(slots)], schema=self._layout.output)

    def freeze(self) -> FrozenState:
        """The state as it is now; copies nothing."""
        if self._store is not None:
            self._store.write(self._stored)
            return self._store.freeze()
        return self._changes.freeze(self._index.freeze())

    def restore(self, state: RestoredState) -> None:
        """Take over tables of the stored schema."""
        if self._store is not None:
            self._store.restore(state)
            return
        for table in state.tables():
            for batch in table.drop_columns([KEY_GROUP_COLUMN]).to_batches(max_chunksize=BATCH_ROWS_MAX):
                self._merge(batch.columns)
        self._changes.restored(state)

    def settle(self) -> None:
        """Nobody holds slots now: make room, if it is needed."""
        store = self._store
        if store is None:
            return
        full = store.is_full(len(self._index))
        if full or store.must_write:
            store.write(self._stored)
        if full:
            self._index.clear()
            self._accumulators.clear()
            self._known = 0

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _merge_stored(self, store: SlotStore, slots: Ints, columns: Sequence[pa.Array]) -> None:
        count, merged, rows = len(self._index), slots, columns
        if count > self._known:
            # What the database has of new keys comes first, in the same call: kernels take new slots to be empty.
            fresh = np.arange(self._known, count)
            found, loaded = store.load(self._index.keys(fresh))
            merged = np.concatenate((fresh[found], slots))
            rows = [pa.concat_arrays([old, new]) for old, new in zip(loaded, columns, strict=True)]
            self._known = count
        self._accumulators.merge(rows, merged, count=count)
        store.changed(slots, count)

    def _stored(self, slots: Ints) -> tuple[list[pa.Array], list[pa.Array]]:
        return self._index.keys(slots), self._accumulators.read(slots)


class PassingState:
    """The accumulators of the keys that were seen since the last `take`; the keys themselves are remembered longer."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext) -> None:
        self._layout = layout
        self._index = KeyIndex(layout.key_schema)
        self._accumulators = Accumulators(layout, context, shows_every_row=True)
        self._local: npt.NDArray[np.int32] = np.empty(0, np.int32)
        """Number of a slot of the index among those seen since the last `take`, or -1."""
        self._touched: list[Ints] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def remembered(self) -> int:
        """Keys that take up room."""
        return len(self._index)

    def combine(self, batch: pa.RecordBatch) -> bool:
        """Merge rows of the user, unless the second half has to see them one by one: whether they are merged."""
        if not self._accumulators.can_combine(batch):
            return False
        local = self._renumbered(self._index.slots([batch.column(key) for key in self._layout.keys]))
        self._accumulators.add_rows(batch, local, count=self._count)
        return True

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keys and accumulators of each row by itself."""
        keys = self._layout.keys_of(batch)
        hashes = [] if self._layout.hash_column is None else [pa.array(hash_keys(keys))]
        columns = [*keys, *self._accumulators.lift(batch), *hashes]
        return pa.RecordBatch.from_arrays(columns, schema=self._layout.sent)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Keys and accumulators, and forget them."""
        touched, start = np.concatenate(self._touched or [np.empty(0, np.int64)]), 0
        for slots in in_batches(touched):
            arrays = self._accumulators.read(np.arange(start, start + len(slots)))
            hashes = [] if self._layout.hash_column is None else [pa.array(self._index.hashes[slots])]
            yield pa.RecordBatch.from_arrays([*self._index.keys(slots), *arrays, *hashes], schema=self._layout.sent)
            start += len(slots)
        self._accumulators.clear()
        self._local[touched] = -1
        self._touched, self._count = [], 0

    def forget_keys(self) -> None:
        """Free the room of the keys; only after `take`."""
        self._index.clear()
        self._local = np.empty(0, np.int32)

    def _renumbered(self, slots: Ints) -> Ints:
        self._local = grown(self._local, len(self._index), -1)
        local = self._local.take(slots, mode="clip")
        fresh = np.flatnonzero(local < 0)
        if len(fresh):
            touched = distinct(slots[fresh], len(self._index))
            self._local[touched] = np.arange(self._count, self._count + len(touched))
            self._touched.append(touched)
            self._count += len(touched)
            local[fresh] = self._local[slots[fresh]]
        return local.astype(np.int64)


@contextmanager
def blamed(context: OperatorContext) -> Iterator[None]:
    """Errors of expressions and of the data, with the operator's name."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{operator_label(context)}: {error.message}") from None
    except pl.exceptions.PolarsError as error:
        raise user_code_error(error, context, doing="an aggregate") from None


def in_batches(slots: Ints) -> Iterator[Ints]:
    """Pieces of at most BATCH_ROWS_MAX."""
    for start in range(0, len(slots), BATCH_ROWS_MAX):
        yield slots[start : start + BATCH_ROWS_MAX]


def _pieces(columns: Sequence[pa.Array], widths: Sequence[int]) -> Iterator[Sequence[pa.Array]]:
    start = 0
    for width in widths:
        yield columns[start : start + width]
        start += width
