"""Updates of stores: what ingesting the edited list of entries makes, as a version beside the ones before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError, ShapeError, SourceError, StoreError
from mgspmv.ingest.budget import MemoryBudget
from tests.support.arrays import read_arrays
from tests.support.hearing import on_phases
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink
from tests.support.stores import Crash, CrashingStore, check_same

SMALL = {
    "store__digests": {"CHUNK_ELEMENTS": 7},
    "ingest__stored": {"CHUNK_ELEMENTS": 7, "PIECE_ENTRIES": 7, "PIECE_ROWS": 5},
    "ingest__update": {"PIECE_IDS": 3},
    "ingest__external_sort": {"GROUPED_ENTRIES": 16, "BLOCK_ENTRIES": 32, "BLOCK_ROWS": 8},
}


@pytest.fixture
def small(monkeypatch):
    """Pieces, blocks and chunks of which a small matrix has many."""
    shrink(monkeypatch, **SMALL)


def arrays(edges, dtype=np.float64):
    """Arcs (source, target[, weight]) as `ingest` takes them."""
    columns = list(zip(*edges, strict=True)) or [(), ()]
    return *(np.array(column, np.int64) for column in columns[:2]), *(np.array(c, dtype) for c in columns[2:])


def read_entries(place, version=None):
    """All entries, by the names of their ends."""
    matrix = mg.open_matrix(place, version)
    found, ids = matrix.to_scipy().tocoo(), matrix.vertex_ids
    ends = zip(found.row.tolist(), found.col.tolist(), strict=True)
    values = found.data.tolist()
    return sorted(((i, j) if ids is None else (ids[i], ids[j])) + (v,) for (i, j), v in zip(ends, values, strict=True))


IDS = {"numbers": int, "int64": lambda k: 1000 * k - 3, "string": lambda k: f"v{k}"}
WEIGHTS = st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 1 / 3, 2.5])


@st.composite
def histories(draw):
    """Edges, and batches of deletions and insertions."""
    edge = st.tuples(st.integers(0, 12), st.integers(0, 12), WEIGHTS)
    batch = st.tuples(st.lists(edge, max_size=15), st.lists(edge, max_size=15)).filter(any)
    return draw(st.lists(edge, min_size=1, max_size=60)), draw(st.lists(batch, min_size=1, max_size=3))


def edit(edges, deleted, inserted):
    """The edited list."""
    gone = {edge[:2] for edge in deleted}
    return [edge for edge in edges if edge[:2] not in gone] + inserted


def mirror(edges):
    return list(chain.from_iterable([(i, j, w), (j, i, w)] if i != j else [(i, j, w)] for i, j, w in edges))


def write_list(path, edges, kind, weighted):
    """An edge list with these ids."""
    lines = (f"{IDS[kind](i)} {IDS[kind](j)}{f' {w!r}' if weighted else ''}\n" for i, j, w in edges)
    path.write_text("".join(lines))
    return path


def check_history(tmp_path, history, kind, weighted, symmetrize, **options):
    """A store that is updated is the one that is made at once, at each step."""
    edges, batches = history
    named = {i for edge in edges for i in edge[:2]}
    reading: dict[str, Any] = {"weights": weighted, "header": False, **({"ids": "string"} if kind == "string" else {})}
    if kind == "numbers":
        reading["n_vertices"] = n = 1 + max(named)
    place, path = MemoryStore(), tmp_path / "edges"
    mg.ingest(write_list(path, edges, kind, weighted), place, **reading, **options, symmetrize=symmetrize)
    edges = mirror(edges) if symmetrize else edges
    digests = [mg.open_matrix(place).info.digest]
    for deleted, inserted in batches:
        given = {
            name: write_list(tmp_path / name, batch, kind, weighted)
            for name, batch in (("delete", deleted), ("insert", inserted))
            if batch
        }
        info = mg.update(place, **given, header=False, weights=weighted, symmetrize=symmetrize).info
        edges = edit(edges, *((mirror(deleted), mirror(inserted)) if symmetrize else (deleted, inserted)))
        named |= {i for edge in inserted for i in edge[:2]}
        if kind == "numbers":
            reading["n_vertices"] = n = max(n, *(i + 1 for edge in inserted for i in edge[:2]), 0)
        else:
            (tmp_path / "ids").write_text("".join(f"{IDS[kind](i)}\n" for i in named))
            reading["vertices"] = tmp_path / "ids"
        wanted = mg.ingest(write_list(path, edges, kind, weighted), **reading, **options).info
        check_same(info, wanted)
        assert mg.verify(place) == []
        digests += [] if info.digest == digests[-1] else [info.digest]
        versions = mg.list_versions(place)
        assert [version.digest for version in versions] == digests
        assert [version.version[:7] for version in versions] == [f"v{k:06d}" for k in range(1, len(digests) + 1)]


CASES = {
    "history": histories(),
    "kind": st.sampled_from(list(IDS)),
    "weighted": st.booleans(),
    "rule": st.sampled_from(["sum", "first", "keep"]),
    "symmetrize": st.booleans(),
    "transpose": st.booleans(),
}


@pytest.mark.fuzz
@settings(max_examples=15)  # each makes several stores
@given(**CASES)
def test_the_store_is_that_of_the_edited_list(small, tmp_path, history, kind, weighted, rule, symmetrize, transpose):
    """To the bit, sums of floating point too."""
    rule = "first" if rule == "sum" and not weighted else rule
    check_history(tmp_path, history, kind, weighted, symmetrize, duplicates=rule, transpose=transpose)


@cover_pairs(memory={"much": 1 << 40, "little": 20_000}, n_columns=[25, 1000], weighted=[False, True])
def test_whatever_the_memory(small, monkeypatch, memory, n_columns, weighted):
    """By way of files, columns added up in ranges, and a batch larger than what is stored."""
    rng = np.random.default_rng(3)
    ends, values = rng.integers(0, 60, (2, 600)), (rng.random(600),) if weighted else ()
    old, new = slice(0, 200), slice(200, 600)
    gone = ends[:, old][:, :80]
    given = {"n_vertices": 60, "transpose": True, "duplicates": "keep"}
    place = MemoryStore()
    mg.ingest((*ends[:, old], *(v[old] for v in values)), place, **given)
    allow(monkeypatch, memory)
    column_bytes = memory // (12 * n_columns)
    monkeypatch.setattr(import_module("mgspmv.ingest.store_writing"), "_find_column_bytes", lambda rows: column_bytes)
    heard = []
    info = mg.update(
        place,
        insert=(*ends[:, new], *(v[new] for v in values)),
        delete=tuple(gone),
        progress=on_phases(lambda phase, *_: heard.append(phase)),
        n_vertices=60,
    ).info
    is_gone = np.isin(ends[0] * 60 + ends[1], gone[0] * 60 + gone[1]) & (np.arange(600) < 200)
    wanted = mg.ingest((*ends[:, ~is_gone], *(v[~is_gone] for v in values)), **given).info
    assert info.digest == wanted.digest
    assert mg.verify(place) == []
    assert heard.count("add up columns") == -(-60 // n_columns) - 1


def allow(monkeypatch, memory):
    monkeypatch.setattr(
        import_module("mgspmv.api.stores"), "find_budget", lambda *_, **__: MemoryBudget(memory, 2, None)
    )


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_ids_by_way_of_files(small, monkeypatch, tmp_path, kind):
    """Those of the batches, and all ids of the new version, of which some come before, between and behind the old."""
    rng = np.random.default_rng(6)
    lists = [
        [(*ends, 1.0) for ends in rng.integers(*of, (n, 2)).tolist()] for of, n in (((50, 400), 900), ((0, 600), 500))
    ]
    paths = [write_list(tmp_path / name, own, kind, False) for name, own in zip("ab", lists, strict=True)]
    gone = write_list(tmp_path / "gone", lists[0][::3] + lists[1][:50], kind, False)
    mg.ingest(paths[0], tmp_path / "s", duplicates="keep", transpose=True)
    allow(monkeypatch, 140_000)
    info = mg.update(tmp_path / "s", insert=paths[1], delete=gone).info
    places = {edge[:2] for edge in lists[0][::3] + lists[1][:50]}
    edges = [edge for edge in lists[0] if edge[:2] not in places] + lists[1]
    (tmp_path / "ids").write_text(
        "".join(f"{IDS[kind](i)}\n" for i in {i for own in lists for e in own for i in e[:2]})
    )
    allow(monkeypatch, 1 << 40)
    wanted = write_list(tmp_path / "all", edges, kind, False)
    assert info.digest == mg.ingest(wanted, duplicates="keep", vertices=tmp_path / "ids").info.digest
    assert mg.verify(tmp_path / "s") == []


PEAK = """
    import sys
    from pathlib import Path
    import mgspmv as mg
    given = {"n_vertices": 1 << 20} if len(sys.argv) == 4 else {}
    info = mg.update(sys.argv[1], insert=sys.argv[2], delete=sys.argv[3], memory="1GiB", **given).info
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(info.digest, 1024 * int(peak.split()[1]))
"""


@pytest.mark.weekly
def test_a_gibibyte_is_enough(tmp_path):
    """For 12 million entries, as many insertions, which go by way of files, and a transpose."""
    csv = pytest.importorskip("pyarrow.csv")
    import pyarrow as pa

    rng, n = np.random.default_rng(9), 1 << 20
    ends = [(rng.random((2, 12_000_000)) ** 2 * n).astype(np.int32) for _ in range(2)]
    weights = [np.round(rng.random(12_000_000), 5) for _ in range(2)]
    for name, columns in (("insert", [*ends[1], weights[1]]), ("delete", [side[::3] for side in ends[0]])):
        table = pa.table(columns, names=list("abc"[: len(columns)]))
        csv.write_csv(table, tmp_path / name, csv.WriteOptions(include_header=False, delimiter=" "))
    mg.ingest((*ends[0], weights[0]), tmp_path / "a", n_vertices=n, transpose=True)
    command = [sys.executable, "-c", textwrap.dedent(PEAK), *(tmp_path / name for name in ("a", "insert", "delete"))]
    digest, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(peak) <= 1.1 * 2**30
    places = ends[0][0] * np.int64(n) + ends[0][1]
    left = ~np.isin(places, places[::3])
    edited = (np.concatenate([a[left], b]) for a, b in zip((*ends[0], weights[0]), (*ends[1], weights[1]), strict=True))
    assert mg.ingest(tuple(edited), n_vertices=n).info.digest == digest


@pytest.mark.weekly
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_ids_within_a_gibibyte(tmp_path, kind):
    """16 million integers, or 5 million names of 40 letters, and 2 or 1 million others: 40 bytes each, or 200, do not
    fit."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa
    import pyarrow.compute

    def write(name, ends):
        columns = [pa.array(own) for own in ends]
        if kind == "string":
            columns = [pa.compute.utf8_lpad(own.cast(pa.string()), 40, "-") for own in columns]
        parquet.write_table(pa.table(columns, ["a", "b"]), tmp_path / f"{name}.parquet")
        return str(tmp_path / f"{name}.parquet")

    n, n_new = (8_000_000, 1_000_000) if kind == "int64" else (2_500_000, 500_000)
    old, new = (np.random.default_rng(k).integers(10**15, 10**16, (2, own)) for k, own in enumerate((n, n_new)))
    mg.ingest(write("old", old), tmp_path / "s")
    gone = write("gone", old[:, ::10])
    command = [sys.executable, "-c", textwrap.dedent(PEAK), tmp_path / "s", write("new", new), gone, "ids"]
    _, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    stored = mg.open_matrix(tmp_path / "s").stored
    ids = np.unique(np.concatenate([old, new], axis=1))
    assert stored.info.shape == (len(ids), len(ids))
    known = stored.read_array("vertex_ids")
    assert (known.astype(np.int64) == ids).all() if kind == "int64" else known.tolist() == [f"{k:->40}" for k in ids]
    del known
    left = np.concatenate([np.delete(old, np.s_[::10], axis=1), new], axis=1)
    assert (
        np.diff(stored.read_array("indptr")) == np.bincount(np.searchsorted(ids, left[1]), minlength=len(ids))
    ).all()
    assert int(peak) <= 1.1 * 2**30


RULES = {
    "sum": [(0, 1, 7.0), (1, 2, 2.0)],
    "first": [(0, 1, 3.0), (1, 2, 2.0)],
    "keep": [(0, 1, 3.0), (0, 1, 4.0), (1, 2, 2.0)],
}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_inserted_where_there_is_an_entry(rule):
    mg.ingest(sp.coo_array(([3.0, 2.0], ([0, 1], [1, 2])), shape=(2, 3)), place := MemoryStore(), duplicates=rule)
    block = mg.update(place, insert=sp.coo_array(([4.0], ([0], [1])), shape=(2, 3))).stored.read_block(0, 2, np.float64)
    rows = np.repeat([0, 1], np.diff(block.indptr)).tolist()
    assert list(zip(rows, block.indices.tolist(), block.data.tolist(), strict=True)) == RULES[rule]
    mg.update(place, delete=sp.coo_array(([9.0], ([0], [1])), shape=(2, 3)))
    assert read_entries(place) == [(1, 2, 2.0)]


@pytest.mark.parametrize("rule", [*RULES, "error"])
def test_what_is_deleted_and_inserted_is_replaced(rule):
    mg.ingest(arrays([(0, 1, 3.0), (1, 2, 2.0)]), place := MemoryStore(), duplicates=rule)
    mg.update(place, insert=arrays([(0, 1, 5.0), (0, 2, 1.0)]), delete=arrays([(0, 1)]))
    assert read_entries(place) == [(1, 0, 5.0), (2, 0, 1.0), (2, 1, 2.0)]


@pytest.mark.parametrize(
    ("edges", "named"), [([(0, 1), (2, 0)], r"\(0, 1\)"), ([(5, 6), (5, 6)], r"\(5, 6\)")], ids=["there", "twice"]
)
def test_what_may_not_be_there_twice(edges, named, tmp_path):
    before = mg.ingest(arrays([(0, 1), (1, 2)]), tmp_path / "a", duplicates="error").info
    with pytest.raises(SourceError, match=rf"2 arcs in arrays: the entry {named} to insert exists already, and the"):
        mg.update(tmp_path / "a", insert=arrays(edges))
    assert mg.open_matrix(tmp_path / "a").info == before
    assert len(os.listdir(tmp_path / "a" / "versions")) == 2


def test_sums_beyond_int64():
    mg.ingest(arrays([(0, 1, 2**62)], np.int64), place := MemoryStore())
    with pytest.raises(SourceError, match="the sum of duplicate entries does not fit into int64; ingest with"):
        mg.update(place, insert=arrays([(0, 1, 2**62)], np.int64))


def test_loops():
    mg.ingest(arrays([(0, 0), (0, 1), (1, 1)]), place := MemoryStore())
    mg.update(place, insert=arrays([(2, 2), (2, 1)]), self_loops="drop", delete=arrays([(1, 1)]))
    assert [entry[:2] for entry in read_entries(place)] == [(0, 0), (1, 0), (1, 2)]
    with pytest.raises(SourceError, match="vertex 2 has a self loop and self_loops='error'"):
        mg.update(place, insert=arrays([(2, 2)]), self_loops="error")


def test_a_stochastic_matrix_stays_one():
    mg.ingest(sp.coo_array(([0.5, 0.5, 1.0], ([0, 1, 0], [0, 0, 1]))), place := MemoryStore(), kind="stochastic")
    half = sp.coo_array(([0.25, 0.75], ([0, 1], [1, 1])), shape=(2, 2))
    with pytest.raises(SourceError, match="column 1 sums to 2"):
        mg.update(place, insert=half)
    mg.update(place, insert=half, delete=sp.coo_array(([1], ([0], [1])), shape=(2, 2)))
    assert read_entries(place) == [(0, 0, 0.5), (0, 1, 0.25), (1, 0, 0.5), (1, 1, 0.75)]


@pytest.mark.parametrize(
    ("shape", "kind", "grown"), [((2, 3), "matrix", (4, 3)), ((4, 4), "graph", (4, 4)), ((4, 5), "matrix", (4, 5))]
)
def test_a_matrix_grows_to_that_of_the_source(tmp_path, shape, kind, grown):
    """Rows and columns are counted from 1 in the file, and an arc i -> j of a graph is entry (j, i)."""
    mg.ingest(sp.coo_array(([1.0], ([0], [1])), shape=shape), place := MemoryStore(), kind=kind)
    scipy.io.mmwrite(
        tmp_path / "a.mtx", sp.coo_array(([2.0], ([3], [0])), shape=(4, 3) if kind == "matrix" else (4, 4))
    )
    info = mg.update(place, insert=tmp_path / "a.mtx").info
    assert info.shape == grown
    assert read_entries(place) == ([(0, 1, 1.0), (3, 0, 2.0)] if kind == "matrix" else [(0, 3, 2.0), (1, 0, 1.0)])


def test_columns_that_need_64_bits_now():
    """And a deletion outside of those that there are."""
    wide = [sp.coo_array(([1.0, 2.0], ([0, 1], [5, n - 1])), shape=(2, n)) for n in (2**31 - 1, 2**40, 2**50)]
    A = mg.ingest(wide[0])
    assert A.info.index_dtype == "int32"
    info = mg.update(A, insert=wide[1], delete=wide[2]).info
    assert (info.shape, info.index_dtype) == ((2, 2**40), "int64")
    wanted = sp.coo_array(([1.0, 2.0, 2.0], ([0, 1, 1], [5, 2**31 - 2, 2**40 - 1])), shape=(2, 2**40))
    assert info.digest == mg.ingest(wanted).info.digest
    assert info.provenance["updates"][0]["missing"] == 1


def test_numbers_make_the_matrix_larger():
    mg.ingest(arrays([(0, 1), (1, 2)]), place := MemoryStore())
    info = mg.update(place, insert=arrays([(7, 2)]), delete=arrays([(100, 1)])).info
    assert (info.shape, info.vertex_ids) == ((8, 8), None)
    assert mg.update(place, insert=arrays([(0, 2)]), n_vertices=11).info.shape == (11, 11)
    assert mg.update(place, insert=arrays([(0, 5)]), n_vertices=9).info.shape == (11, 11)
    assert [entry[:2] for entry in read_entries(place)] == [(1, 0), (2, 0), (2, 1), (2, 7), (5, 0)]


def test_ids_that_become_numbers_and_stay_them():
    """As `ingest` stores ids 0..n-1 without ids; what comes then is a number."""
    mg.ingest(arrays([(1, 3), (3, 2)]), place := MemoryStore())
    assert mg.open_matrix(place).info.vertex_ids == "int64"
    assert mg.update(place, insert=arrays([(0, 1)])).info.vertex_ids is None
    assert [entry[:2] for entry in read_entries(place)] == [(1, 0), (2, 3), (3, 1)]
    assert [entry[:2] for entry in read_entries(place, 1)] == [(2, 3), (3, 1)]


def test_vertices_without_edges(tmp_path):
    (tmp_path / "a").write_text("b d\n")
    (tmp_path / "ids").write_text("d\nc\na\n")
    mg.ingest(tmp_path / "a", place := MemoryStore(), header=False)
    (tmp_path / "c").write_text("d c\n")
    info = mg.update(place, insert=tmp_path / "c", vertices=tmp_path / "ids").info
    assert (info.shape, info.nnz) == ((4, 4), 2)
    assert mg.open_matrix(place).vertex_ids.tolist() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("ids", ["none", "int64", "string"])
def test_a_graph_without_edges_at_first_and_in_the_end(tmp_path, ids):
    name = {"none": "{}", "int64": "-{}", "string": "v{}"}[ids]
    (tmp_path / "all").write_text("".join(f"{name.format(k)}\n" for k in range(3)))
    (tmp_path / "none").write_text("# nothing\n")
    (tmp_path / "some").write_text(f"{name.format(1)} {name.format(2)}\n")
    first = mg.ingest(tmp_path / "none", place := MemoryStore(), vertices=tmp_path / "all", format="edge-list").info
    assert mg.update(place, insert=tmp_path / "some").info.nnz == 1
    last = mg.update(place, delete=tmp_path / "some").info
    assert (last.nnz, last.digest) == (0, first.digest)
    assert mg.update(place, insert=((), ()) if ids != "string" else tmp_path / "some").info.shape == (3, 3)
    assert mg.verify(place) == []


LABELS = {
    "names for numbers": (
        [(0, 1)],
        "a b\nb c\n",
        r"the ids are strings, but the store has integers; pass ids of the same",
    ),
    "names for integers": (
        [(5, 9)],
        "a b\nb c\n",
        r"the ids are strings, but the store has integers; pass ids of the same",
    ),
    "numbers below 0": ([(0, 1)], "0 -5\n", r"the ids of the store are 0..1; the id -5 is negative"),
    "numbers that are ids": (
        [(0, 1)],
        "0 99999999999\n",
        r"the ids of the store are 0..1, and 99999999999 would extend them to 0..99999999999; pass n_vertices=10000000",
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_ids_that_are_not_those_of_the_store(tmp_path, name):
    edges, text, message = LABELS[name]
    mg.ingest(arrays(edges), place := MemoryStore())
    (tmp_path / "list").write_text(text)
    with pytest.raises(SourceError, match=f"list: {message}"):
        mg.update(place, insert=tmp_path / "list")


def test_edges_of_a_matrix_and_a_matrix_of_vertices():
    mg.ingest(sp.coo_array(([1.0], ([0], [1])), shape=(2, 3)), rectangle := MemoryStore())
    with pytest.raises(
        SourceError, match="a store with a square matrix, but it has 2 rows and 3 columns; pass a matrix"
    ):
        mg.update(rectangle, delete=arrays([(0, 1)]))
    mg.ingest(arrays([(5, 9)]), named := MemoryStore())
    with pytest.raises(SourceError, match=r"the vertices of the store have ids \(int64\), but this is a matrix"):
        mg.update(named, delete=sp.eye_array(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_weights_become_those_of_the_store(dtype):
    for inserted in (np.int64, np.float32, np.float64):
        mg.ingest(arrays([(0, 1, 3)], dtype), place := MemoryStore())
        if dtype == np.int64 and inserted != np.int64:
            with pytest.raises(
                SourceError, match=r"have weights of float.*, but the store has weights of int64; pass them as"
            ):
                mg.update(place, insert=arrays([(1, 0, 2)], inserted))
        else:
            assert mg.update(place, insert=arrays([(1, 0, 2)], inserted)).info.dtype == np.dtype(dtype).name
            assert read_entries(place) == [(0, 1, 2), (1, 0, 3)], inserted


def test_weights_where_there_are_none():
    mg.ingest(arrays([(0, 1)]), place := MemoryStore())
    with pytest.raises(SourceError, match=r"have weights, but the store has none; pass weights=False to"):
        mg.update(place, insert=arrays([(1, 0, 2.0)]))
    assert mg.update(place, insert=arrays([(1, 0, 2.0)]), weights=False).info.nnz == 2
    assert mg.update(place, delete=arrays([(1, 0, np.nan)])).info.nnz == 1


def test_no_weights_where_there_are_some():
    mg.ingest(arrays([(0, 1, 2.0)]), place := MemoryStore())
    for insert, options in ((arrays([(1, 0)]), {}), (arrays([(1, 0, 3.0)]), {"weights": False})):
        with pytest.raises(SourceError, match="have no weights, but the store has weights of float64; add a weight"):
            mg.update(place, insert=insert, **options)
    assert mg.update(place, insert=((), ())).info.nnz == 1


def test_options_of_insertions_that_deletions_do_not_need(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    mg.ingest(arrays([(0, 1, 2.0), (1, 2, 3.0)]), place := MemoryStore())
    parquet.write_table(pa.table({"a": [0], "b": [2], "w": [1.5]}), tmp_path / "i.parquet")
    parquet.write_table(pa.table({"b": [1], "a": [0]}), tmp_path / "d.parquet")
    mg.update(
        place, insert=tmp_path / "i.parquet", delete=tmp_path / "d.parquet", columns=("a", "b", "w"), weights=True
    )
    assert read_entries(place) == [(2, 0, 1.5), (2, 1, 3.0)]


@pytest.mark.parametrize("order", ["none", "degree"])
def test_deletions_that_are_not_there(order):
    mg.ingest(arrays([(5, 6), (6, 9), (9, 6)]), place := MemoryStore(), order=order)
    gone = arrays([(6, 9), (6, 7), (6, 7), (9, 5), (4, 4)])
    info = mg.update(place, delete=gone).info
    made = info.provenance["updates"][-1]
    assert (made["inserted"], made["deleted"], made["missing"]) == (0, 1, 3)
    assert info.shape == (3, 3)
    mg.update(place, delete=arrays([(5, 6)]))
    assert [entry[:2] for entry in read_entries(place)] == [(6, 9)]


def test_an_entry_outside_a_matrix_is_not_there(tmp_path):
    mg.ingest(sp.eye_array(3), place := MemoryStore())
    other = sp.coo_array(([1.0, 1.0], ([4, 1], [8, 1])), shape=(5, 9))
    info = mg.update(place, delete=other).info
    assert (info.shape, info.nnz, info.provenance["updates"][-1]["missing"]) == ((3, 3), 2, 1)


@pytest.mark.parametrize(("order", "kind"), [("rcm", "numbers"), ("degree", "int64"), ("dealt", "string")])
def test_an_order_stays_and_new_vertices_come_last(small, tmp_path, kind, order):
    rng = np.random.default_rng(4)
    edges = [(*ends, float(w)) for w, ends in enumerate(rng.integers(3, 20, (90, 2)).tolist())]
    more = [(*ends, 0.5) for ends in rng.integers(0, 25, (20, 2)).tolist()]
    lists = [
        write_list(tmp_path / name, own, kind, True) for name, own in zip("abc", (edges, more, edges[:30]), strict=True)
    ]
    options = {"transpose": True, "n_vertices": 25} if kind == "numbers" else {"transpose": True}
    mg.ingest(lists[0], tmp_path / "plain", **options)
    old = mg.ingest(lists[0], tmp_path / "ordered", order=order, **options)
    infos = [mg.update(tmp_path / name, insert=lists[1], delete=lists[2]).info for name in ("plain", "ordered")]
    assert mg.verify(tmp_path / "ordered") == []
    new = mg.open_matrix(tmp_path / "ordered")
    assert infos[1].order == order
    n = old.shape[0]
    names = [matrix.order if matrix.vertex_ids is None else matrix.vertex_ids[matrix.order] for matrix in (old, new)]
    assert names[1][:n].tolist() == names[0].tolist()
    assert (new.to_scipy() != mg.open_matrix(tmp_path / "plain").to_scipy()).nnz == 0
    assert mg.reorder(tmp_path / "ordered", method="none").info.digest == infos[0].digest


def test_an_order_is_of_a_square_matrix():
    mg.ingest(sp.eye_array(3), place := MemoryStore(), order="rcm")
    with pytest.raises(ShapeError, match="an order applies to rows and columns alike, so the matrix must be square"):
        mg.update(place, insert=sp.coo_array(([1.0], ([0], [4])), shape=(3, 5)))


def test_a_row_of_many_pieces_and_rows_far_apart(small):
    """One row of 100 entries, in pieces of 7, and entries of which the next is many blocks of rows behind."""
    rows = np.concatenate([np.zeros(100, np.int64), [3, 100, 101, 300]])
    cols = np.concatenate([np.arange(100), [3, 7, 7, 299]])
    edges = sp.coo_array((np.ones(104), (rows, cols)), shape=(301, 301))
    mg.ingest(edges, place := MemoryStore(), duplicates="keep")
    more = sp.coo_array((np.full(3, 2.0), ([0, 200, 299], [50, 1, 299])), shape=(301, 301))
    gone = sp.coo_array((np.ones(3), ([0, 0, 101], [49, 99, 7])), shape=(301, 301))
    mg.update(place, insert=more, delete=gone)
    wanted = edges.tolil()
    wanted[0, 49] = wanted[0, 99] = wanted[101, 7] = 0
    wanted = wanted.tocsr() + more.tocsr()
    assert (mg.open_matrix(place).to_scipy() != wanted).nnz == 0
    assert mg.verify(place) == []


def test_many_entries_at_one_place(small):
    """In a multigraph they are in several pieces; those of other places before and behind them stay."""
    for n in (1, 6, 7, 8, 50):
        edges = [(0, 1, 0.5)] * 3 + [(1, 1, float(k)) for k in range(n)] + [(2, 1, 0.5)] * 3
        mg.ingest(arrays(edges), place := MemoryStore(), duplicates="keep", n_vertices=3)
        mg.update(place, insert=arrays([(1, 1, -1.0), (1, 1, -2.0)]))
        assert read_entries(place) == sorted((j, i, w) for i, j, w in [*edges, (1, 1, -1.0), (1, 1, -2.0)]), n
        assert mg.open_matrix(place).stored.read_array("data").tolist()[3 : 5 + n] == [*range(n), -1.0, -2.0], n
        info = mg.update(place, delete=arrays([(1, 1)])).info
        assert info.provenance["updates"][-1]["deleted"] == n + 2
        assert [entry[2] for entry in read_entries(place)] == [0.5] * 6, n


def make_store(place, n=3):
    """A graph of n versions, of 1, 2, ... arcs."""
    options = {"n_vertices": n + 1}
    infos = [mg.ingest(arrays([(0, 1)]), place, **options, transpose=True).info]
    return infos + [mg.update(place, insert=arrays([(0, k)]), **options).info for k in range(2, n + 1)]


def test_workers_open_the_version_that_was_opened(tmp_path, in_process):
    client = in_process(2)
    make_store(tmp_path / "a", 2)
    old = mg.open_matrix(tmp_path / "a")
    with old.distribute(client) as before:
        mg.update(tmp_path / "a", insert=arrays([(1, 2)]), n_vertices=3)
        assert (before @ np.ones(3)).tolist() == [0, 1, 1]
        assert mg.pagerank(before).values.tolist() == mg.pagerank(old).values.tolist()
    with old.distribute(client) as after, mg.open_matrix(tmp_path / "a").distribute(client) as current:
        assert (after @ np.ones(3)).tolist() == [0, 1, 1]
        assert (current @ np.ones(3)).tolist() == [0, 1, 2]
    mg.drop_versions(tmp_path / "a", keep=1)
    with pytest.raises(StoreError, match=r"v000002-.* are missing; open it again"):
        old.distribute(client)


def test_provenance(tmp_path):
    (tmp_path / "a").write_text("1 2\n")
    (tmp_path / "b").write_text("2 3\n")
    (tmp_path / "c").write_text("3 1\n")
    infos = [mg.ingest(tmp_path / "a", tmp_path / "s").info]
    infos += [mg.update(tmp_path / "s", insert=tmp_path / "b", symmetrize=True, threads=1).info]
    infos += [mg.update(tmp_path / "s", delete=tmp_path / "a", insert=tmp_path / "c", ids="int").info]
    made = infos[2].provenance
    assert {name: made[name] for name in infos[0].provenance} == infos[0].provenance
    first, second = made["updates"]
    assert infos[1].provenance["updates"] == [first]
    assert first["source"]["insert"]["name"] == str(tmp_path / "b")
    assert "delete" not in first["source"]
    assert first["options"]["symmetrize"] is True
    assert [first[name] for name in ("inserted", "deleted", "missing")] == [2, 0, 0]
    assert [second[name] for name in ("inserted", "deleted", "missing")] == [1, 1, 0]
    assert second["source"].keys() == {"insert", "delete"}
    assert second["options"]["ids"] == "int"
    assert second["base"] == {"version": infos[1].version, "digest": infos[1].digest}
    assert second["program"].startswith("mgspmv ")
    assert infos[2].created >= second["created"]


REFUSED = {
    "nothing": ({}, "nothing to insert or delete; pass insert="),
    "no version": ({"insert": arrays([(0, 1)]), "keep": 0}, "keep must be at least 1, not 0; the current"),
    "no number": ({"insert": arrays([(0, 1)]), "keep": "all"}, "keep must be at least 1, not 'all'"),
    "threads": ({"insert": arrays([(0, 1)]), "threads": 0}, "threads"),
    "little memory": ({"insert": arrays([(0, 1)]), "memory": "1MB"}, "memory must be at least 1GiB"),
    "a typing error": ({"insert": arrays([(0, 1)]), "delimeter": ","}, "did you mean 'delimiter'"),
    "what is none": ({"insert": 7}, "cannot read an object of type builtins.int"),
    "loops": ({"insert": arrays([(0, 1)]), "self_loops": "maybe"}, "self_loops must be one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_make_no_sense(name):
    options, message = REFUSED[name]
    mg.ingest(arrays([(0, 1)]), place := MemoryStore())
    with pytest.raises(OptionError, match=message):
        mg.update(place, **options)
    assert len(mg.list_versions(place)) == 1


@pytest.mark.parametrize(
    ("keep", "stays_down"),
    [
        (None, True),
        (2, False),
        pytest.param(None, False, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
)
def test_a_crash_at_any_write_leaves_whole_versions(keep, stays_down):
    """The versions before or those after, each of them whole; and the next write takes away what is left."""
    make_store(place := MemoryStore(), 2)
    content = dict(place._store_dict)
    before = [info.digest for info in mg.list_versions(place)]
    change = {"insert": arrays([(2, 1)]), "delete": arrays([(0, 1)]), "n_vertices": 3, "keep": keep}
    mg.update(place, **change)
    after = [info.digest for info in mg.list_versions(place)]
    seen = set()
    for at in range(1, 200):
        place = MemoryStore(dict(content))
        crashing = CrashingStore(place, at=at, stays_down=stays_down)
        try:
            mg.update(crashing, **change)
        except (Crash, StoreError):
            found = mg.list_versions(place)
            assert [info.digest for info in found] in (before, after)
            seen.add(tuple(info.digest for info in found))
            assert mg.verify(place) == []
            assert all(read_arrays(mg.open_matrix(place, info.version).stored) is not None for info in found)
            mg.update(place, insert=arrays([(1, 1)]), n_vertices=3, keep=1)
            assert {key.split("/")[1] for key in place._store_dict if key.startswith("versions/v")} == {
                mg.open_matrix(place).info.version
            }
        else:
            assert [info.digest for info in mg.list_versions(place)] == after
            if ("set", "crash") not in crashing.calls:  # else it could not clean up
                break
    assert 13 < at < 199
    assert seen == {tuple(before)}
