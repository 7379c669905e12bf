"""Parquet tables of edges: the same graphs as the same edges in a text, and refusals that name the row."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.open import open_source
from mgspmv.ingest.tables import ParquetSource
from tests.support.arrays import read_numbered
from tests.support.shrinking import shrink

EDGES = ([5, 5, 7, 2, 7], [7, 2, 5, 7, 7], [1.5, 2.0, 0.25, 3.0, 4.0])


@pytest.fixture(autouse=True, params=[1 << 14, 0])
def least_group(request, monkeypatch):
    """Least rows of row groups that threads read one by one: more than here, or none."""
    shrink(monkeypatch, ingest__tables={"LEAST_GROUP": request.param})


def write(path, *columns, names=("src", "dst", "weight"), **options):
    table = pa.table(list(columns), names=list(names[: len(columns)]))
    pq.write_table(table, path, **options)
    return path


def read(path, **options):
    return read_numbered(ParquetSource(path, **options))


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_the_store_is_that_of_the_text(tmp_path, compression):
    """In several row groups and batches."""
    rng = np.random.default_rng(0)
    ends = rng.integers(-(10**12), 10**12, 300)[rng.integers(0, 300, (2, 5000))]
    weights = rng.random(5000)
    path = write(tmp_path / "e.parquet", *ends, weights, row_group_size=700, compression=compression)
    text = "".join(f"{a} {b} {w!r}\n" for a, b, w in zip(*ends.tolist(), weights.tolist(), strict=True))
    (tmp_path / "e.txt").write_text(text)
    infos = [mg.ingest(name, duplicates="keep").info for name in (path, tmp_path / "e.txt")]
    assert infos[0].digest == infos[1].digest
    source = infos[0].provenance["source"]
    assert source["format"] == "parquet"
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source["bytes"] == path.stat().st_size
    assert source["header"] == {"columns": ["src", "dst", "weight"], "rows": 5000, "row_groups": 8}


def test_the_number_of_vertices_may_be_given(tmp_path):
    path = write(tmp_path / "e.parquet", *EDGES[:2])
    rows, _, _, layout = read(path, n_vertices=9)
    assert (rows, layout.shape, layout.vertex_ids) == (EDGES[0], (9, 9), None)
    with pytest.raises(
        SourceError, match=r"e.parquet: row 2: expected an id from 0 to 6 \(n_vertices=7\) in column 'src', found 7"
    ):
        read(path, n_vertices=7)


def test_vertices_may_be_listed(tmp_path):
    (tmp_path / "v").write_text("9\n7\n5\n2\n")
    rows, _, _, layout = read(write(tmp_path / "e.parquet", *EDGES[:2]), vertices=tmp_path / "v")
    assert (rows, layout.vertex_ids.tolist()) == ([1, 1, 2, 0, 2], [2, 5, 7, 9])
    (tmp_path / "v").write_text("7\n5\n")
    with pytest.raises(SourceError, match=r"row 3: 2 in column 'src' is not in the list of vertices; add it there"):
        read(write(tmp_path / "e.parquet", [5, 5, 7, 2], [7, 7, 7, 7]), vertices=tmp_path / "v")


TABLES = {
    "one column": (([1, 2],), {}, r"expected columns of sources and targets, found 1: src"),
    "no weights": (([1], [2]), {"weights": True}, r"expected a column of weights, found the columns src, dst"),
    "truth as ids": (([1], [True]), {}, r"expected ids in column 'dst' to be integers or strings, found bool"),
    "nearly such a column": (([1], [2]), {"columns": ("srcs", "dst")}, r"did you mean 'src'\?"),
    "nothing as id": (([1, 2, None], [1, 2, 3]), {}, r"row 2 has a missing value in column 'src'; drop such rows, or"),
    "an id beyond int64": (([1, 2**63], [2, 3]), {}, r"row 1: expected a 64-bit integer .* found 92233"),
    "an id below 0": (([1, 0], [2, -3]), {"n_vertices": 5}, r"row 1: expected an id from 0 to 4 \(n_vert.* found -3"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit(tmp_path, name):
    columns, options, message = TABLES[name]
    columns = [pa.array(c, pa.uint64()) if 2**63 in c else c for c in columns]
    path = write(tmp_path / "e.parquet", *columns, names=("src", "dst", "weight", "more"))
    with pytest.raises(SourceError, match=rf"e.parquet.*{message}"):
        read(path, **options)


def test_files_that_are_cut_short(tmp_path):
    path = write(tmp_path / "e.parquet", *EDGES)
    whole = path.read_bytes()
    for n_bytes in (0, 3, 40, 300, -1):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(SourceError, match=r"e.parquet: not a Parquet file, or damaged or cut short"):
            read(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["a"]}, r"columns must be .* names, or numbers from 1, .* not 1: \['a'\]"),
        (
            {"columns": ["a", "b"], "weights": True},
            r"weights=True requires a third column in columns=\('a', 'b'\)",
        ),
        ({"n_vertices": -1}, "n_vertices must be an integer of at least 0"),
        ({"n_vertices": 1, "vertices": "v"}, "n_vertices= and vertices= both define the vertices"),
        ({"weights": None}, "weights must be one of"),
        ({"delimiter": ","}, "delimiter= applies to an edge list, but this source is read as parquet"),
    ],
)
def test_options(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        open_source(write(tmp_path / "e.parquet", *EDGES), **options)


def test_memory_does_not_grow_with_the_row_group(tmp_path, monkeypatch):
    """Of a row group of 48 MB no more is held than some batches and buffers."""
    rng = np.random.default_rng(3)
    path = write(tmp_path / "e.parquet", *rng.integers(0, 2**60, (3, 2_000_000)), row_group_size=2_000_000)
    shrink(monkeypatch, ingest__tables={"BATCH_ROWS": 1 << 14})
    held = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() - held for _ in ParquetSource(path).batches())
    assert peak < 12 << 20


def test_numbers_are_read_and_written_without_pandas(tmp_path):
    path = write(tmp_path / "e.parquet", *EDGES)
    program = "import sys, mgspmv as mg; mg.pagerank(sys.argv[1]).save(sys.argv[2]); assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, path, tmp_path / "ranks.parquet"], check=True)


def test_large_row_groups_are_read_whole_for_a_device(tmp_path, monkeypatch):
    path = write(tmp_path / "e.parquet", *np.arange(80_000).reshape(2, -1), row_group_size=20_000)
    shrink(monkeypatch, ingest__tables={"GROUP_BYTES": 200_000, "PART_ROWS": 500})
    lengths = []
    for is_for_device in (False, True):
        source = ParquetSource(path, threads=2)
        source.has_large_batches = is_for_device
        lengths.append([len(batch.rows) for batch in source.batches() if len(batch.rows)])
    assert lengths == [[500] * 80, [20_000] * 2]
