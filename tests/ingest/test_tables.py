"""Tables that follow each other; what a single one may hold is tested with those who read them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest import streams, tables
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.frames import open_table
from mgspmv.ingest.tables import TableSource
from tests.support.arrays import number_codes
from tests.support.shrinking import shrink


class Tables(TableSource):
    """Some Arrow tables, by name."""

    def __init__(self, tables, **options):
        super().__init__("tables", "tables", **options)
        self.tables, self.n_open = tables, 0

    def _tables(self):
        self.n_open += 1
        try:
            for name, columns in self.tables.items():
                yield open_table(pa.table(columns), name)
        finally:
            self.n_open -= 1


def test_tables_follow_each_other(monkeypatch):
    shrink(monkeypatch, ingest__tables={"PART_ROWS": 2})
    source = Tables(
        {
            "a": {"src": [5, 7, 5], "dst": [2, 2, 2], "w": [1.0, 2.0, 3.0]},
            "none": {"src": pa.array([], pa.int8()), "dst": pa.array([], pa.int64()), "w": pa.array([], pa.float64())},
            "b": {"w": [4.0], "more": ["x"], "dst": pa.array([9], pa.uint8()), "src": pa.array([5], pa.int16())},
        },
        columns=("src", "dst", "w"),
    )
    batches = list(source.batches())
    rows, cols, values = (np.concatenate([getattr(b, name) for b in batches]) for name in ("rows", "cols", "values"))
    *_, layout = number_codes(rows, cols, source.layout())
    assert [len(batch.rows) for batch in batches] == [2, 1, 1]
    assert layout.vertex_ids.tolist() == [2, 5, 7, 9]
    columns = {"source": [1, "src"], "target": [2, "dst"], "weight": [3, "w"]}
    taken = {"columns": columns, "not_read": [], "n_rows": 4}
    header = {"columns": ["src", "dst", "w"], "rows": 4}
    assert layout.provenance == {"format": "tables", "name": "tables", "header": header, "taken": taken}
    assert (rows.tolist(), cols.tolist(), values.tolist()) == ([5, 7, 5, 5], [2, 2, 2, 9], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": [1]}, "b: expected columns of sources and targets, found 1: a"),
        (
            {"a": ["x"], "b": ["y"], "w": [1.0]},
            "b: ids are string from row 0 on, but int64 at the beginning of a",
        ),
        (
            {"a": [1], "b": [2], "w": [1]},
            "b: weights are int64 from row 0 on, but float64 at the beginning of a; convert all",
        ),
        (
            {"a": [1], "b": [2]},
            "b: weights are missing from row 0 on, but float64 at the beginning of a; convert",
        ),
        ({"a": [1, 1, None], "b": [2, 2, 2], "w": [1.0, 1.0, 1.0]}, "b: row 2 has a missing value in column 'a'"),
    ],
)
def test_tables_that_are_not_alike(other, message, monkeypatch):
    shrink(monkeypatch, ingest__tables={"PART_ROWS": 2})
    source = Tables({"a": {"a": [1, 2, 3], "b": [1, 2, 3], "w": [1.5, 2.5, 3.5]}, "b": other})
    with pytest.raises(SourceError, match=f"^{message}"):
        list(source.batches())
    assert source.n_open == 0


@pytest.mark.parametrize("kind", ["parquet", pytest.param("text", marks=pytest.mark.slow)])
def test_names_that_do_not_fit_leave_the_order_of_entries_whatever_the_threads(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PART_ROWS", 125)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 2500)
    ends = (np.random.default_rng(0).random((2, 5000)) ** 2 * 1000).astype(int)
    columns = [[f"n{k:0{3 + k % 9}}" for k in own] for own in ends.tolist()] + [list(range(5000))]
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.table(columns, ["a", "b", "w"]), tmp_path / "edges")
    else:
        (tmp_path / "edges").write_text("\n".join(f"{a} {b} {w}" for a, b, w in zip(*columns, strict=True)))
    digests = set()
    for room in (MemoryBudget(1 << 40, 1, tmp_path), *[MemoryBudget(60_000, n, tmp_path) for n in (1, 5, 8, 8)]):
        monkeypatch.setattr("mgspmv.api.stores.find_budget", lambda *_, room=room: room)
        how = {"format": "parquet"} if kind == "parquet" else {"format": "edge-list"}
        digests.add(mg.ingest(str(tmp_path / "edges"), duplicates="keep", **how).info.digest)
    assert len(digests) == 1
