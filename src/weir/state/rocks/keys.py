"""Keys as RocksDB holds them.

Comes in: the key columns of a batch. Goes out: one byte string per row (key group, then
the columns), equal exactly when the keys are and sorted by key group; and back. What
follows a key in a longer byte string (a map's own key) can be told apart from it.

    2 bytes   key group, big-endian
    per column of one width: 1 byte (0: null) and the value, little-endian
    per column of bytes:     4 bytes length (NULL_LENGTH: null)
    the bytes of those, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.state.keys.codec import stored_type
from weir.state.keys.columns import FixedColumn, build_fixed, check_key_type, is_bytes, read_column, without_views
from weir.state.keys.hashing import hash_columns, key_groups
from weir.state.rocks.bytes import ByteStrings, build_bytes, gather, join, to_bytes_list
from weir.state.values.conversion import to_list

NULL_LENGTH = 0xFFFFFFFF
"""The length of a null among byte strings."""


class RocksKeys:
    """Translates between key columns of one schema and byte strings."""

    def __init__(self, key_schema: pa.Schema, max_parallelism: int) -> None:
        for field in key_schema:
            check_key_type(field.type, field.name)
        self.schema = pa.schema([pa.field(field.name, stored_type(field.type)) for field in key_schema])
        """The key columns of a state table."""
        self._types = [field.type for field in self.schema]
        self._max_parallelism = max_parallelism
        self._header = np.dtype([("group", ">u2"), *(part for i in range(len(self._types)) for part in self._parts(i))])
        self._bytes_columns = [i for i, kind in enumerate(self._types) if is_bytes(kind)]

    def _parts(self, i: int) -> list[tuple[Any, ...]]:
        kind = self._types[i]
        if is_bytes(kind):
            return [(f"length{i}", "<u4")]
        values = read_column(pa.array([], kind)).values  # type: ignore[union-attr]
        return [(f"valid{i}", "u1"), (f"value{i}", values.dtype, values.shape[1:])]

    def encode(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """The keys of a batch's rows."""
        first = columns[0]
        if len(columns) == 1 and pa.types.is_dictionary(first.type) and not first.null_count:
            keys = self.encode([first.dictionary])
            return [keys[index] for index in first.indices.to_pylist()]
        columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
        read = [read_column(column) for column in columns]
        header = np.zeros(len(first), self._header)
        header["group"] = key_groups(hash_columns(read, [column.type for column in columns]), self._max_parallelism)
        for i, column in enumerate(read):
            if isinstance(column, FixedColumn):
                header[f"valid{i}"] = 1 if column.valid is None else column.valid
                header[f"value{i}"] = column.values
            elif column.valid is None:
                header[f"length{i}"] = column.lengths
            else:
                header[f"length{i}"] = np.where(column.valid, column.lengths, NULL_LENGTH)
        parts = [ByteStrings.fixed(header), *(_byte_strings(columns[i]) for i in self._bytes_columns)]
        return to_bytes_list(join(parts))

    def decode(self, keys: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], list[pa.Array]]:
        """Key groups and key columns of byte strings that begin with a key."""
        data = np.frombuffer(b"".join(keys), np.uint8)
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        starts = np.cumsum(lengths) - lengths
        header = gather(data, starts, self._header.itemsize).view(self._header).ravel()
        at = starts + self._header.itemsize
        columns: list[pa.Array] = []
        for i, kind in enumerate(self._types):
            if is_bytes(kind):
                valid = header[f"length{i}"] != NULL_LENGTH
                length = np.where(valid, header[f"length{i}"], 0).astype(np.int64)
                columns.append(build_bytes(data, at, length, valid=valid, kind=kind))
                at = at + length
            else:
                values = np.ascontiguousarray(header[f"value{i}"])
                columns.append(build_fixed(values, header[f"valid{i}"] != 0, kind))
        return header["group"].astype(np.int32), columns

    def ends(self, keys: Sequence[bytes]) -> list[int]:
        """Where the key ends in each byte string that begins with one."""
        size = self._header.itemsize
        if not self._bytes_columns:
            return [size] * len(keys)
        header = np.frombuffer(b"".join([key[:size] for key in keys]), self._header)
        ends = np.full(len(keys), size, np.int64)
        for i in self._bytes_columns:
            lengths = header[f"length{i}"].astype(np.int64)
            ends += np.where(lengths == NULL_LENGTH, 0, lengths)
        found: list[int] = ends.tolist()
        return found

    def shown(self, key: bytes | None) -> Any:
        """A key as users know it."""
        if key is None:
            return None
        (found,) = self.all_shown([key])
        return found

    def all_shown(self, keys: Sequence[bytes]) -> list[Any]:
        """The same for many at once."""
        columns = [to_list(column) for column in self.decode(keys)[1]]
        return columns[0] if len(columns) == 1 else list(zip(*columns))


def _byte_strings(column: pa.Array) -> ByteStrings:
    column = without_views(column)
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    return ByteStrings.of_bytes(pc.fill_null(column.cast(pa.large_binary()), b""))
