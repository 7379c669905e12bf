"""Names that are put away in files come back in order, numbered as they are in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.names import SpilledNames, number_names, rank_ids
from mgspmv.ingest.open import open_source
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.store_writing import store_source
from mgspmv.ingest.vertices import OccurringNames
from mgspmv.model import CooBatch, IngestOptions
from mgspmv.store.read import open_store
from tests.support.shrinking import shrink

PLENTY = 1 << 40
any_names = st.lists(st.text(max_size=3), unique=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pages and buckets of which a few names make many."""
    sorter = {"N_BUCKETS": 4, "GROUPED_ENTRIES": 20, "BLOCK_ENTRIES": 7, "BLOCK_ROWS": 8}
    shrink(monkeypatch, ingest__names={"PAGE_NAMES": 3, "MERGED_PAGES": 2}, ingest__external_sort=sorter)


@given(st.lists(st.one_of(any_names, st.lists(st.text("a\0é", max_size=20), unique=True)), max_size=5))
def test_runs_are_merged(runs):
    spilled = SpilledNames(None)
    codes = []
    for names in runs:
        own = np.random.default_rng(1).permutation(len(names))
        spilled.add(pa.array(sorted(names), pa.string()), spilled.n_codes + own[np.argsort(np.array(names, object))])
        codes += [name for _, name in sorted(zip(own.tolist(), names, strict=True))]
    assert spilled.n_codes == len(codes)
    assert [spilled.find(code) for code in range(len(codes))] == codes
    merged, places = [], {}
    for names, own, where in spilled.merge():
        places |= {int(code): len(merged) + int(place) for code, place in zip(own, where, strict=True)}
        merged += names.to_pylist()
    assert merged == sorted(set(codes))
    assert {code: merged[place] for code, place in places.items()} == dict(enumerate(codes))
    spilled.close()


@pytest.mark.parametrize(("memory", "threads"), [(PLENTY, 1), (10_000, 3)])
def test_entries_are_numbered(memory, threads):
    rng = np.random.default_rng(1)
    names = [f"v{k}" for k in (rng.random((2, 900)) ** 2 * 200).astype(int).ravel()]
    vertices = OccurringNames(MemoryBudget(8000))
    with EntrySorter(memory, threads) as held:
        for k in range(0, 900, 30):
            rows, cols = vertices.encode(pa.array(names[k : k + 30]), pa.array(names[900 + k : 930 + k]))
            held.add(CooBatch(rows, cols, np.arange(k, k + 30)))
        spilled = vertices.finish().names
        assert len(spilled._runs) > 3
        numbered, known = number_names(held, spilled, lambda: EntrySorter(memory, threads), None)
        assert known[:].tolist() == sorted(set(names))
        with numbered:
            blocks = list(numbered.blocks((len(known), len(known))))
    found = []
    for b in blocks:
        rows = b.row_offset + np.repeat(np.arange(b.n_rows), np.diff(b.indptr))
        found += zip(known[:][rows], known[:][b.indices], b.data.tolist(), strict=True)
    assert found == sorted(zip(names[:900], names[900:], range(900), strict=True))
    known.close()


def test_equal_names_in_one_batch_have_one_code():
    """Also where the batch fills the memory, or self loops would not be found."""
    vertices = OccurringNames(MemoryBudget(1))
    for k in range(5):
        rows, cols = vertices.encode(pa.array([f"a{k}", "b"]), pa.array([f"a{k}", "b"]))
        assert rows.tolist() == cols.tolist()
        assert sorted(rows.tolist()) == [2 * k, 2 * k + 1]


@pytest.mark.parametrize(
    ("suffix", "kind", "memory"), [("txt", "graph", 1 << 17), ("parquet", "matrix", 1 << 17), ("txt", "matrix", PLENTY)]
)
def test_the_store_is_that_of_names_in_memory(tmp_path, suffix, kind, memory):
    rng = np.random.default_rng(2)
    ends = [f"vertex {k}" for k in (rng.random((2, 2000)) ** 2 * 900).astype(int).ravel()]
    table = pa.table({"src": ends[:2000], "dst": ends[2000:], "weight": rng.integers(1, 9, 2000)})
    if suffix == "txt":
        (tmp_path / "e.txt").write_text(
            "".join(f"{a}\t{b}\t{w}\n" for a, b, w in zip(*table.to_pydict().values(), strict=True))
        )
    else:
        pa.parquet.write_table(table, tmp_path / "e.parquet")
    options = IngestOptions(kind=kind, dtype="float64", self_loops="drop", symmetrize=True)
    wanted = mg.ingest(tmp_path / f"e.{suffix}", tmp_path / "a.zarr", **{**vars(options), "order": "none"}).info
    source = open_source(tmp_path / f"e.{suffix}", id_room=MemoryBudget(1 << 15))
    room = MemoryBudget(memory, 2, None)
    store_source(source, tmp_path / "b.zarr", options, lambda p: p, lambda *_: None, room, base=None)
    found = open_store(tmp_path / "b.zarr")
    assert found.info.digest == wanted.digest
    assert found.info.vertex_ids == "string"
    assert mg.verify(tmp_path / "b.zarr") == []


def test_messages_name_them(tmp_path):
    (tmp_path / "e.txt").write_text("a b\nb c\nc c\na b\n")
    for options, message in (
        ({"self_loops": "error"}, "vertex c has a self loop"),
        ({"duplicates": "error", "kind": "matrix"}, r"the entry \(a, b\) occurs more than once"),
    ):
        source = EdgeListSource(tmp_path / "e.txt", batch_bytes=4, id_room=MemoryBudget(1))
        room, given = MemoryBudget(PLENTY, 2, None), IngestOptions(**options)
        with pytest.raises(SourceError, match=message):
            store_source(source, tmp_path / "a.zarr", given, lambda p: p, lambda *_: None, room, base=None)
    assert not (tmp_path / "a.zarr").exists()


def test_integers_are_ranked():
    for spread in (1, 3, 1000, 2**50):
        ids = np.random.default_rng(5).integers(-50, 50, 300) * spread
        own, places = rank_ids(pa.array(ids))
        wanted, where = np.unique(ids, return_inverse=True)
        assert own.to_pylist() == wanted.tolist(), spread
        assert places.tolist() == where.tolist(), spread


def test_names_are_ranked_in_the_order_of_their_characters():
    names = ["b", "ä", "a", "", "b", "𝄞", "\ue000", "a"]
    own, places = rank_ids(pa.array(names, pa.large_string()))
    assert own.to_pylist() == sorted(set(names))
    assert [own[k].as_py() for k in places] == names
