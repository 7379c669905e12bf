"""Types in which values and ids are read and stored. All sources and options follow these rules.

| values | stored |
|---|---|
| bool and integers | int64; one beyond it is an error |
| float16, float32 | float32 |
| float64 | float64 |
| integers with `dtype="float64"` | float64, uint64 beyond int64 too |
| whole numbers with `dtype="int64"`, such as weights in text | int64; floats from 2^53 on are an error |
| complex numbers, long doubles, objects | an error |

Ids are integers, or strings, see `find_kind`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from mgspmv.display.frames import unwrap_numbers
from mgspmv.errors import SourceError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXACT_INTEGERS = 2**53
"""Integers below this absolute value are exact as float64, and no other number is rounded to them."""


def choose_value_dtype(dtype: np.dtype[Any], source: str) -> np.dtype[Any]:
    """Return the dtype in which a source yields its values: int64, uint64, float32 or float64.

    Raises
    ------
    SourceError : values that are not real, or wider than 64 bits
    """
    if dtype.kind == "c":
        raise SourceError(
            f"complex values ({dtype}) are not supported; ingest .real, .imag or their absolute values", source=source
        )
    if dtype.kind in "iu":
        return np.dtype(np.uint64 if dtype.kind == "u" and dtype.itemsize == 8 else np.int64)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    raise SourceError(f"values of dtype {dtype} are not supported; pass .astype('float64')", source=source)


def convert_values(values: np.ndarray, dtype: str | None, source: str) -> np.ndarray:
    """Return values in the dtype that they are stored in.

    Parameters
    ----------
    dtype : `int64`, `float32` or `float64`; None for that of the source

    Raises
    ------
    SourceError : an integer that does not fit into int64, unless dtype is `float64`; a number too large for float32; a
        float that is not an integer below 2^53, for int64
    """
    if dtype == "int64" and values.dtype.kind == "f":
        unfit = ~((values == np.rint(values)) & (np.abs(values) < EXACT_INTEGERS))
        if unfit.any():
            said = f"the value {values[unfit][0]!s} is not an integer between -2^53 and 2^53"
            raise SourceError(f'{said}, as dtype="int64" needs; pass dtype="float64"', source=source)
    if values.dtype.kind in "bui" and dtype != "float64":
        if values.dtype == np.uint64 and len(values) and (greatest := int(values.max())) > INT64_MAX:
            said = f"the value {greatest} does not fit into int64"
            raise SourceError(f'{said}; ingest with dtype="float64", which rounds it', source=source)
        values = values.astype(np.int64, copy=False)
    if dtype is None:
        return values if values.dtype in (np.int64, np.float32, np.float64) else values.astype(np.float64)
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, copy=False)
    except FloatingPointError as error:
        greatest = np.abs(values[np.isfinite(values)]).max()
        raise SourceError(
            f"the value {greatest:g} does not fit into {dtype}; ingest with dtype='float64'", source=source
        ) from error


def infinite_error(kind: str, n_infinite: int, source: str) -> SourceError:
    """Return the error of values that are NaN or infinite where they are weights."""
    return SourceError(
        f"a {kind} needs finite weights, {n_infinite} are NaN or infinite; clean the source, or pass weights=False",
        source=source,
    )


# --- ids in Arrow arrays ----------------------------------------------------------------------------------------------


def find_kind(of: Any) -> Literal["integer", "number", "string"] | None:
    """Return what an Arrow type holds, None for neither ids nor numbers; UUIDs and their bytes are strings."""
    if pa.types.is_integer(of) or pa.types.is_null(of):  # missing values are rejected before, so a null column is empty
        return "integer"
    if pa.types.is_decimal(of):
        return "integer" if of.scale == 0 else "number"
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of) or _is_uuid(of):
        return "string"
    return "number" if pa.types.is_floating(of) or pa.types.is_boolean(of) else None


def _is_uuid(of: Any) -> bool:
    """Return whether a type is one of UUIDs: Arrow's extension type, or 16 bytes, as older programs write them."""
    return getattr(of, "extension_name", "") == "arrow.uuid" or of == pa.binary(16)


def decode(ids: Any) -> Any:
    """Decode ids of Arrow if they are dictionary-encoded, so that missing values of the dictionary are found."""
    if not pa.types.is_dictionary(ids.type):
        return ids
    values = ids.dictionary
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    elif pa.types.is_string_view(values.type):  # `take` does not support it
        values = values.cast(pa.large_string())
    return values.take(ids.indices)


def to_integers(ids: Any) -> np.ndarray:
    """Return integers of Arrow, decimals without decimal places among them, as a NumPy array; none is missing."""
    ids = ids.cast(pa.int64()) if pa.types.is_decimal(ids.type) else ids
    return unwrap_numbers(ids)


def to_strings(ids: Any) -> Any:
    """Return names of Arrow as large strings, for UUIDs the text of `str(uuid.UUID(bytes=...))`; none is missing."""
    if not _is_uuid(ids.type):
        return ids.cast(pa.large_string())
    import pyarrow.compute as pc

    storage = ids if ids.type == pa.binary(16) else ids.storage
    data = np.frombuffer(storage.buffers()[1] or b"", np.uint8, 16 * len(storage), 16 * storage.offset)
    groups = np.frombuffer(data.tobytes().hex().encode(), "S8,S4,S4,S4,S12")  # the hyphens are between these digits
    columns = [
        pa.array(np.ascontiguousarray(groups[name])).cast(pa.large_string()) for name in groups.dtype.names or ()
    ]
    return pc.binary_join_element_wise(*columns, pa.scalar("-", pa.large_string()))
