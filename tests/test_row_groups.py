"""Parquet files whose row groups are encoded by several threads: the bytes of pyarrow's own writer."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.row_groups import read_struct, write_row_groups, write_struct

OPTIONS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "as ranks are written": {
        "compression": {"id": "none", "rank": "none", "name": "snappy"},
        "use_dictionary": ["name"],
        "column_encoding": {"id": "DELTA_BINARY_PACKED"},
        "write_page_checksum": True,
    },
    "zstd, small pages, index": {"compression": "zstd", "data_page_size": 100, "version": "2.6"},
    "bloom": {"store_decimal_as_integer": True, "write_statistics": False},
}


def make_tables(lengths, seed=0):
    rng = np.random.default_rng(seed)
    for n in lengths:
        names = pa.array([f"v{k}" for k in rng.integers(0, 30, n)], pa.large_string())
        yield pa.table({"id": rng.integers(-(2**62), 2**62, n), "rank": rng.random(n, np.float32), "name": names})


def write_with_pyarrow(schema, tables, options):
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=max(1, table.num_rows))
    return sink.getvalue()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", [[5], [0], [300, 1, 200], [40] * 40, []], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_bytes_are_those_of_one_thread(options, lengths, threads):
    schema = next(make_tables([1])).schema.with_metadata({b"mgspmv": b"{}" * 500})
    sink = io.BytesIO()
    write_row_groups(sink, schema, make_tables(lengths), threads, **options)
    assert sink.getvalue() == write_with_pyarrow(schema, make_tables(lengths or [0]), options)


def test_other_programs_read_it():
    polars = pytest.importorskip("polars")
    tables = list(make_tables([1000, 1, 2000]))
    sink = io.BytesIO()
    write_row_groups(sink, tables[0].schema, iter(tables), 2, **OPTIONS["as ranks are written"])
    wanted = pa.concat_tables(tables)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()), page_checksum_verification=True)
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [1000, 1, 2000]
    assert file.read().equals(wanted)
    assert polars.read_parquet(sink.getvalue()).to_dicts() == wanted.to_pylist()


def test_an_error_of_a_thread_is_raised():
    first, second = make_tables([3, 3])
    with pytest.raises(ValueError, match="schema"):
        write_row_groups(io.BytesIO(), first.schema, [first, second.drop_columns("rank")], 2)


def test_structs_of_any_types_come_back():
    fields = {
        1: (1, True),
        2: (2, False),
        3: (6, -(2**63)),
        40: (5, 2**31 - 1),
        41: (7, b"12345678"),
        42: (9, (1, [b"\1", b"\2"])),
        43: (9, (12, [{7: (8, b"x" * 300)}] * 20)),
        44: (3, b"\5"),
        45: (10, (6, list(range(-40, 40)))),
    }
    written = write_struct(fields)
    assert read_struct(written) == (fields, len(written))
    with pytest.raises(ValueError, match="unknown type 11"):
        read_struct(b"\x1b\x00\x00")
