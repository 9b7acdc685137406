"""Values of any Arrow type as byte strings, and back, a whole column at a time.

Comes in: an array. Goes out: one byte string per row, which together with the type says
what the value was; never pickle. A null is the empty string. Values of one width are
their bytes, little-endian; everything else is a 1 and then

    strings, bytes   the bytes
    struct           per field: 1 byte (0: null), then the value, or 4 bytes length; the other fields' content
    list, map        4 bytes count; per element 1 byte (0: null); per element of no fixed width 4 bytes length; content
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import SchemaError
from weir.schema import format_type
from weir.state.keys.columns import Valid, build_fixed, fixed_values, is_bytes, valid_rows, without_views
from weir.state.keys.xxhash64 import Bytes, Ints
from weir.state.rocks.bytes import ByteStrings, build_bytes, from_bytes_list, gather, join, to_bytes_list, validity

_COUNT_BYTES = 4


def pack(array: pa.Array) -> list[bytes]:
    """The byte string of each value."""
    kind = array.type
    width = fixed_width(kind)
    strings = _encode(array)
    if width == 0 or width is None:
        strings = join([ByteStrings.fixed(np.ones(len(array), np.uint8)), strings])
    packed = to_bytes_list(strings)
    valid = valid_rows(array)
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            packed[row] = b""
    return packed


def unpack(packed: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """The values of byte strings that `pack` made of this type."""
    strings = from_bytes_list(packed)
    lengths = strings.lengths
    valid: Valid = lengths > 0
    if valid is not None and valid.all():
        valid = None
    if fixed_width(kind):
        return _decode(strings.data, strings.offsets[:-1], lengths=lengths, valid=valid, kind=kind)
    return _decode(strings.data, strings.offsets[:-1] + 1, lengths=np.maximum(lengths - 1, 0), valid=valid, kind=kind)


def check_value_type(kind: pa.DataType, state: str) -> None:
    """SchemaError when values of a type cannot be kept in the database."""
    try:
        pack(pa.nulls(1, kind))
        unpack([b""], kind)
    except (pa.ArrowException, SchemaError, ValueError, TypeError) as error:
        raise SchemaError(
            f"state {state!r}: the rocksdb backend cannot keep values of type {format_type(kind)} ({error})"
        ) from None


def fixed_width(kind: pa.DataType) -> int | None:
    """Bytes of each value of a type; None: it depends on the value."""
    types = pa.types
    if types.is_null(kind):
        return 0
    if types.is_boolean(kind):
        return 1
    if types.is_decimal(kind):
        return int(kind.bit_width // 8)
    if is_bytes(kind) or types.is_nested(kind):
        return None
    return int(kind.bit_width // 8)


# --- Arrays to bytes ---


def _encode(array: pa.Array) -> ByteStrings:
    """The content of each value; of a null it is empty, or zeros."""
    kind = array.type
    types = pa.types
    width = fixed_width(kind)
    if width is not None:
        return ByteStrings.fixed(_raw(array, width))
    if is_bytes(kind):
        array = without_views(array)
        if types.is_fixed_size_binary(kind):
            array = array.cast(pa.binary())
        return ByteStrings.of_bytes(pc.fill_null(array.cast(pa.large_binary()), b""))
    if types.is_struct(kind):
        return _encode_struct(array)
    if types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return _encode_list(array.cast(pa.list_(pa.field("entries", entries, nullable=False))))
    if types.is_list(kind) or types.is_large_list(kind):
        return _encode_list(array)
    if types.is_fixed_size_list(kind):
        return _encode_list(array.cast(pa.list_(kind.value_field)))
    raise SchemaError(f"no bytes for type {kind}")


def _raw(array: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Values of one width as rows of bytes."""
    if not width or not len(array):
        return np.zeros((len(array), width), np.uint8)
    if pa.types.is_boolean(array.type):
        rows: npt.NDArray[np.uint8] = fixed_values(array).reshape(-1, 1)
    else:
        buffer = array.buffers()[1]
        end = (array.offset + len(array)) * width
        rows = np.frombuffer(buffer, np.uint8, count=end)[array.offset * width :].reshape(-1, width)
    valid = valid_rows(array)
    return rows if valid is None else np.where(valid[:, None], rows, np.uint8(0))


def _encode_struct(array: pa.Array) -> ByteStrings:
    fields = array.flatten()
    header = np.zeros(len(array), _struct_header(array.type))
    rest: list[ByteStrings] = []
    for i, field in enumerate(fields):
        valid = valid_rows(field)
        header[f"valid{i}"] = 1 if valid is None else valid
        strings = _encode(field)
        width = fixed_width(field.type)
        if width is None:
            header[f"length{i}"] = strings.lengths
            rest.append(strings)
        elif width:
            header[f"value{i}"] = strings.data.reshape(-1, width)
    return join([ByteStrings.fixed(header), *rest])


def _struct_header(kind: pa.DataType) -> np.dtype[Any]:
    parts: list[tuple[Any, ...]] = []
    for i in range(kind.num_fields):
        width = fixed_width(kind.field(i).type)
        parts.append((f"valid{i}", "u1"))
        if width is None:
            parts.append((f"length{i}", "<u4"))
        elif width:
            parts.append((f"value{i}", "u1", (width,)))
    return np.dtype(parts)


def _encode_list(array: pa.Array) -> ByteStrings:
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), np.int64)
    elements = array.flatten()
    ends = np.zeros(len(array) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    valid = valid_rows(elements)
    flags = np.ones(len(elements), np.uint8) if valid is None else valid.astype(np.uint8)
    strings = _encode(elements)
    parts = [ByteStrings.fixed(counts.astype("<u4")), ByteStrings(flags, ends)]
    if fixed_width(elements.type) is None:
        lengths = strings.lengths.astype("<u4").view(np.uint8)
        parts.append(ByteStrings(lengths, ends * _COUNT_BYTES))
    parts.append(ByteStrings(strings.data, strings.offsets[ends]))
    return join(parts)


# --- Bytes to arrays ---


def _decode(data: Bytes, starts: Ints, *, lengths: Ints, valid: Valid, kind: pa.DataType) -> pa.Array:
    """The values whose content begins at `starts`; nothing is read below nulls."""
    types = pa.types
    width = fixed_width(kind)
    if valid is not None:
        starts, lengths = np.where(valid, starts, 0), np.where(valid, lengths, 0)
    if width is not None:
        return _decode_fixed(_rows(data, starts, width, valid), valid, kind)
    if is_bytes(kind):
        return build_bytes(data, starts, lengths, valid=valid, kind=kind)
    if types.is_struct(kind):
        return _decode_struct(data, starts, valid, kind)
    if types.is_fixed_size_list(kind):
        return _decode_list(data, starts, valid, pa.list_(kind.value_field)).cast(kind)
    return _decode_list(data, starts, valid, kind)


def _rows(data: Bytes, starts: Ints, width: int, valid: Valid) -> Bytes:
    """Rows of `width` bytes; zeros below nulls."""
    if valid is None:
        return gather(data, starts, width)
    rows = np.zeros((len(starts), width), np.uint8)
    rows[valid] = gather(data, starts[valid], width)
    return rows


def _decode_fixed(rows: Bytes, valid: Valid, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(rows))
    if pa.types.is_boolean(kind):
        return build_fixed(np.ascontiguousarray(rows[:, 0]), valid, kind)
    bitmap, null_count = validity(valid)
    return pa.Array.from_buffers(kind, len(rows), [bitmap, pa.py_buffer(np.ascontiguousarray(rows))], null_count)


def _decode_struct(data: Bytes, starts: Ints, valid: Valid, kind: pa.DataType) -> pa.Array:
    dtype = _struct_header(kind)
    header = np.zeros(len(starts), dtype)
    if dtype.itemsize:
        header = _rows(data, starts, dtype.itemsize, valid).view(dtype).ravel()
    at = starts + dtype.itemsize
    fields: list[pa.Array] = []
    for i in range(kind.num_fields):
        inner = kind.field(i).type
        present = header[f"valid{i}"] != 0
        width = fixed_width(inner)
        if width is None:
            lengths = header[f"length{i}"].astype(np.int64)
            fields.append(_decode(data, at, lengths=lengths, valid=present, kind=inner))
            at = at + lengths
        else:
            rows = header[f"value{i}"] if width else np.zeros((len(starts), 0), np.uint8)
            fields.append(_decode_fixed(np.ascontiguousarray(rows), present, inner))
    bitmap, null_count = validity(valid)
    return pa.Array.from_buffers(kind, len(starts), [bitmap], null_count, children=fields)


def _decode_list(data: Bytes, starts: Ints, valid: Valid, kind: pa.DataType) -> pa.Array:
    counts = _rows(data, starts, _COUNT_BYTES, valid).view("<u4").ravel().astype(np.int64)
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    inner = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    width = fixed_width(inner)
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    flags = data[np.repeat(starts + _COUNT_BYTES, counts) + within] != 0
    at = starts + _COUNT_BYTES + counts
    if width is None:
        written = gather(data, np.repeat(at, counts) + _COUNT_BYTES * within, _COUNT_BYTES)
        lengths = written.view("<u4").ravel().astype(np.int64)
        at = at + _COUNT_BYTES * counts
        before = np.cumsum(lengths) - lengths
        # Content begins anew in each row.
        has = counts > 0
        first = np.zeros(len(starts), np.int64)
        first[has] = before[ends[:-1][has]]
        begin = np.repeat(at - first, counts) + before
    else:
        lengths = np.full(len(within), width, np.int64)
        begin = np.repeat(at, counts) + width * within
    elements = _decode(data, begin, lengths=lengths, valid=None if flags.all() else flags, kind=inner)
    bitmap, null_count = validity(valid)
    offsets = ends if pa.types.is_large_list(kind) else ends.astype(np.int32)
    return pa.Array.from_buffers(kind, len(starts), [bitmap, pa.py_buffer(offsets)], null_count, children=[elements])
