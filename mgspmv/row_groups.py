"""Parquet files whose row groups are encoded by several threads.

pyarrow encodes one row group after the other. Here each is encoded as a file in memory, and the bytes are the same:

    tables  --encode, by several threads-->  files of one row group  --join-->  pages of all | metadata | PAR1

The metadata of the first file is that of the whole, once it lists the row groups of all, with their new offsets. It is
a struct in the compact protocol of Thrift.

Source: Apache Parquet, `parquet.thrift` and the layout of files; Apache Thrift, `thrift-compact-protocol.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Length of the metadata, and `MAGIC`."""

_BINARY, _LIST, _SET, _STRUCT, _DOUBLE, _BYTE, _TRUE, _FALSE = 8, 9, 10, 12, 7, 3, 1, 2
_I16, _I32, _I64 = 4, 5, 6

# numbers of fields in parquet.thrift
_FILE_ROWS, _FILE_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_COLUMN_METADATA, _COLUMN_OFFSETS = 3, (2, 4, 6)
_METADATA_OFFSETS = (9, 10, 11, 14)

Struct = dict[int, tuple[int, Any]]
"""Type and value of each field, by its number. Values of lists are the type of the elements and these; those of structs
are structs, or their bytes when they are written."""


def write_row_groups(file: IO[bytes], schema: Any, tables: Iterable[Any], threads: int, **options: Any) -> None:
    """Write tables of Arrow as a Parquet file, each as a row group; the bytes do not depend on the threads.

    Parameters
    ----------
    schema : of the file; the tables have its fields
    tables : one for each thread is held, and one more
    options : of `pyarrow.parquet.ParquetWriter`
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def encode(table: Any) -> Any:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema, **options) as writer:
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=max(1, table.num_rows))
        return sink.getvalue()

    joined = _Joined(file)
    ahead: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(threads, "mgspmv-encode") as pool:
        for table in tables:
            ahead.append(pool.submit(encode, table))
            if len(ahead) > threads:
                joined.add(ahead.popleft().result())
        ahead = ahead or deque([pool.submit(encode, schema.empty_table())])
        while ahead:
            joined.add(ahead.popleft().result())
    joined.finish()


class _Joined:
    """Files of one row group each, joined to one file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, len(MAGIC)
        self._metadata: Struct = {}
        self._groups: list[bytes] = []  # written, as structs take ten times the memory
        file.write(MAGIC)

    def add(self, encoded: Any) -> None:
        """Append a file, a buffer of Arrow."""
        data = memoryview(encoded)
        n = int.from_bytes(data[-TAIL_BYTES : -len(MAGIC)], "little")
        pages, footer = data[len(MAGIC) : -TAIL_BYTES - n], data[-TAIL_BYTES - n : -TAIL_BYTES]
        metadata, _ = read_struct(footer.tobytes())
        _, own = metadata[_FILE_GROUPS][1]
        for group in own:
            _move(group, self._at - len(MAGIC))
            if _GROUP_ORDINAL in group:
                group[_GROUP_ORDINAL] = _I16, len(self._groups)
            self._groups.append(write_struct(group))
        n_rows = metadata[_FILE_ROWS][1] + (self._metadata[_FILE_ROWS][1] if self._metadata else 0)
        self._metadata = (self._metadata or metadata) | {_FILE_ROWS: (_I64, n_rows)}
        self._file.write(pages)
        self._at += len(pages)

    def finish(self) -> None:
        footer = write_struct(self._metadata | {_FILE_GROUPS: (_LIST, (_STRUCT, self._groups))})
        self._file.write(footer + len(footer).to_bytes(TAIL_BYTES - len(MAGIC), "little") + MAGIC)


def _move(group: Struct, n_bytes: int) -> None:
    """Add this to the offsets of a row group; 0 stands for none."""

    def move(fields: Struct, numbers: Iterable[int]) -> None:
        for number in numbers:
            kind, offset = fields.get(number, (_I64, 0))
            if offset:
                fields[number] = kind, offset + n_bytes

    move(group, (_GROUP_OFFSET,))
    for column in group[_GROUP_COLUMNS][1][1]:
        move(column, _COLUMN_OFFSETS)
        move(column[_COLUMN_METADATA][1], _METADATA_OFFSETS)


# --- the compact protocol of Thrift -----------------------------------------------------------------------------------


def read_struct(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """Read a struct from byte `at` on; return it and its end."""
    fields: Struct = {}
    number = 0
    while header := data[at]:
        at += 1
        kind, step = header & 15, header >> 4
        if step:
            number += step
        else:
            number, at = _read_integer(data, at)
        value, at = (kind == _TRUE, at) if kind in (_TRUE, _FALSE) else _read_value(data, at, kind)
        fields[number] = kind, value
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRUCT:
        return read_struct(data, at)
    if kind in (_LIST, _SET):
        n, element = data[at] >> 4, data[at] & 15
        at += 1
        if n == 15:
            n, at = _read_length(data, at)
        values = []
        for _ in range(n):
            value, at = _read_value(data, at, element)
            values.append(value)
        return (element, values), at
    if kind == _BINARY:
        n, at = _read_length(data, at)
        return data[at : at + n], at + n
    if kind in (_DOUBLE, _BYTE, _TRUE, _FALSE):  # truth values are bytes in lists
        n = 8 if kind == _DOUBLE else 1
        return data[at : at + n], at + n
    if kind not in (_I16, _I32, _I64):
        raise ValueError(f"unknown type {kind} in the metadata of Parquet")
    return _read_integer(data, at)


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_length(data, at)
    return value >> 1 ^ -(value & 1), at


def write_struct(fields: Struct) -> bytes:
    """Return the bytes of a struct, whose fields ascend."""
    parts, last = [], 0
    for number, (kind, value) in sorted(fields.items()):
        if number - last < 16:
            parts.append(bytes([(number - last) << 4 | kind]))
        else:
            parts.append(bytes([kind]) + _write_integer(number))
        if kind not in (_TRUE, _FALSE):
            parts.append(_write_value(kind, value))
        last = number
    return b"".join([*parts, b"\0"])


def _write_value(kind: int, value: Any) -> bytes:
    if kind == _STRUCT:
        return value if isinstance(value, bytes) else write_struct(value)
    if kind in (_LIST, _SET):
        element, values = value
        n = len(values)
        head = bytes([n << 4 | element]) if n < 15 else bytes([15 << 4 | element]) + _write_length(n)
        return head + b"".join(_write_value(element, own) for own in values)
    if kind == _BINARY:
        return _write_length(len(value)) + bytes(value)
    if kind in (_DOUBLE, _BYTE, _TRUE, _FALSE):
        return bytes(value)
    return _write_integer(value)


def _write_length(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _write_integer(value: int) -> bytes:
    return _write_length(value << 1 if value >= 0 else (-value << 1) - 1)
