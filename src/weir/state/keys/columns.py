"""Key columns as NumPy sees them, and back.

Comes in: an Arrow array of any type that a key may have. Goes out: its values in a
canonical form (one bit pattern per key: one NaN, one zero), as fixed-width values or
as byte strings. Knows nothing of hashes or slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import SchemaError
from weir.state.keys.xxhash64 import PADDING_BYTES, Bytes, Ints

Valid: TypeAlias = "npt.NDArray[np.bool_] | None"
"""Which rows are not null; None: all."""

DECIMAL_LONG_DIGITS_MAX = 18
"""Up to this precision Spark keeps a decimal's unscaled value in a long."""


@dataclass(frozen=True)
class FixedColumn:
    """Values of one width: integers, or the bit patterns of floats; two words each for wide decimals."""

    values: npt.NDArray[Any]
    valid: Valid


@dataclass(frozen=True)
class BytesColumn:
    """Byte strings `data[start : start + length]`; PADDING_BYTES more bytes follow the last. Null rows are empty."""

    starts: Ints
    lengths: Ints
    data: Bytes
    valid: Valid


KeyColumn: TypeAlias = "FixedColumn | BytesColumn"


def check_key_type(data_type: pa.DataType, column_name: str) -> None:
    """Raise SchemaError when rows cannot be keyed by a column of this type."""
    data_type = plain_type(data_type)
    if is_bytes(data_type) or _is_fixed(data_type) or pa.types.is_null(data_type):
        return
    advice = "key by a column of numbers, strings, bytes, dates, timestamps, booleans or decimals instead"
    if pa.types.is_struct(data_type):
        advice = "select the fields that make up the key as columns of their own"
    raise SchemaError(f"key column {column_name!r}: rows cannot be keyed by type {data_type}; {advice}")


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type that a key column has behind the keyed operator: dictionaries are decoded."""
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def is_bytes(data_type: pa.DataType) -> bool:
    """Whether keys of this type are byte strings rather than values of one width."""
    types = pa.types
    return any(
        test(data_type)
        for test in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        )
    )


def is_view(data_type: pa.DataType) -> bool:
    """Whether this is one of Arrow's view types, which it can neither filter nor gather."""
    return bool(pa.types.is_string_view(data_type) or pa.types.is_binary_view(data_type))


def without_views(array: pa.Array) -> pa.Array:
    """The same values in a layout that Arrow can gather."""
    if not is_view(array.type):
        return array
    return array.cast(pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary())


def _is_fixed(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_decimal(data_type):
        return not types.is_decimal256(data_type)
    return bool(
        types.is_boolean(data_type)
        or types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_date(data_type)
        or types.is_timestamp(data_type)
        or types.is_duration(data_type)
    )


def read_column(array: pa.Array) -> KeyColumn:
    """The canonical values of a key column."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return FixedColumn(np.zeros(len(array), np.int8), np.zeros(len(array), np.bool_))
    if is_bytes(array.type):
        return _read_bytes(array)
    values = fixed_values(array)
    if pa.types.is_floating(array.type):
        values = _canonical_floats(values)
    if pa.types.is_decimal128(array.type) and array.type.precision <= DECIMAL_LONG_DIGITS_MAX:
        values = np.ascontiguousarray(values[:, 0])
    valid = valid_rows(array)
    if valid is not None:
        # What lies below a null is arbitrary, and must not make two nulls differ.
        values = np.where(valid if values.ndim == 1 else valid[:, None], values, np.zeros(1, values.dtype))
    return FixedColumn(values, valid)


def valid_rows(array: pa.Array) -> Valid:
    """Which rows of an array are not null; None when none is."""
    if not array.null_count:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def fixed_values(array: pa.Array) -> npt.NDArray[Any]:
    """The values of a fixed-width array without a copy (booleans as uint8); below nulls they are arbitrary."""
    if pa.types.is_boolean(array.type):
        return _unpack_bits(array)
    buffer = array.buffers()[1]
    dtype = numpy_type(array.type)
    if pa.types.is_decimal128(array.type):
        words = (
            np.frombuffer(buffer, np.int64, count=2 * (array.offset + len(array))) if buffer else np.empty(0, np.int64)
        )
        return words.reshape(-1, 2)[array.offset :]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=array.offset + len(array))[array.offset :]


def numpy_type(data_type: pa.DataType) -> np.dtype[Any]:
    """How the values of a fixed-width Arrow type lie in memory."""
    types = pa.types
    if types.is_boolean(data_type):
        return np.dtype(np.uint8)
    # Not by to_pandas_dtype, which wants pandas to be there.
    kind = "u" if types.is_unsigned_integer(data_type) else "f" if types.is_floating(data_type) else "i"
    return np.dtype(f"{kind}{min(data_type.bit_width // 8, 8)}")


def build_fixed(values: npt.NDArray[Any], valid: Valid, data_type: pa.DataType) -> pa.Array:
    """The opposite of `fixed_values`: an Arrow array over these values, without a copy where that is possible."""
    length = len(values)
    if pa.types.is_null(data_type):
        return pa.nulls(length)
    bitmap, null_count = None, 0
    if valid is not None:
        null_count = length - int(np.count_nonzero(valid))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if null_count else None
    if pa.types.is_boolean(data_type):
        values = np.packbits(values.view(np.bool_), bitorder="little")
    elif pa.types.is_decimal128(data_type) and values.ndim == 1:
        values = np.column_stack((values, values >> 63))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(data_type, length, [bitmap, data], null_count)


def _unpack_bits(array: pa.Array) -> npt.NDArray[np.uint8]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.uint8)
    end = array.offset + len(array)
    packed = np.frombuffer(buffer, np.uint8, count=(end + 7) // 8)
    return np.unpackbits(packed, count=end, bitorder="little")[array.offset :]


def _canonical_floats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bit patterns of floats with one zero and one NaN."""
    canonical = values + values.dtype.type(0)  # turns -0.0 into 0.0
    missing = np.isnan(canonical)
    if missing.any():
        canonical[missing] = np.nan
    bits: npt.NDArray[Any] = canonical.view(f"i{values.dtype.itemsize}")
    return bits


def _read_bytes(array: pa.Array) -> BytesColumn:
    types = pa.types
    array = without_views(array)
    if types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    dtype = np.int64 if types.is_large_string(array.type) or types.is_large_binary(array.type) else np.int32
    valid = valid_rows(array)
    _, offsets_buffer, data_buffer = array.buffers()
    if offsets_buffer is None or not len(array):
        nothing = np.zeros(len(array), np.int64)
        return BytesColumn(nothing, nothing.copy(), np.zeros(PADDING_BYTES, np.uint8), valid)
    raw = np.frombuffer(offsets_buffer, dtype, count=array.offset + len(array) + 1)[array.offset :]
    offsets = raw.astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + PADDING_BYTES, np.uint8)
    if data_buffer is not None and last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8, count=last)[first:]
    offsets -= first
    starts, lengths = offsets[:-1], np.diff(offsets)
    if valid is not None:
        lengths[~valid] = 0
    return BytesColumn(starts, lengths, data, valid)
