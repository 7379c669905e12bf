"""Vertices with any ids are numbered in their order, by way of files or not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest import numbering, streams, tables, vertices
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.entries import sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.frames import source_from_arrays
from mgspmv.ingest.numbering import (
    JOINED_BYTES,
    IdTable,
    OccurringIds,
    are_numbers,
    encode_ids,
    join_ids,
    number_block,
    number_entries,
    rank_ids,
)
from mgspmv.ingest.open import open_source
from mgspmv.ingest.source import Layout
from mgspmv.ingest.store_writing import store_source
from mgspmv.ingest.tokens import INT64_MAX
from mgspmv.model import CooBatch, IngestOptions
from mgspmv.store.read import open_store
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
PLENTY = 1 << 40


@pytest.fixture
def small(monkeypatch):
    """Buckets, groups and pieces of which a few entries make many."""
    sorter = {"N_BUCKETS": 4, "GROUPED_ENTRIES": 20, "BLOCK_ENTRIES": 7, "BLOCK_ROWS": 8}
    shrink(monkeypatch, ingest__external_sort=sorter, ingest__numbering={"PAGE_NAMES": 8})


def check(rows, cols, memory, threads=2, id_memory=None):
    """Entries with these ids come out by the ids' places among all."""
    values = np.arange(len(rows), dtype=np.float64)
    with EntrySorter(memory, threads) as held:
        for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 9)):
            held.add(CooBatch(rows[part], cols[part], values[part]))
        layout, room = Layout((0, 0), are_ids=True), MemoryBudget(id_memory or memory // 4)
        extent = int(min(rows.min(), cols.min())), int(max(rows.max(), cols.max()))
        by_row, layout = number_entries(held, layout, extent, lambda: EntrySorter(memory, threads), room)
        known = np.unique(np.concatenate([rows, cols]))
        assert layout.shape == (len(known), len(known))
        ids = known if layout.vertex_ids is None else layout.vertex_ids
        assert ids[:].tolist() == known.tolist()
        found, end = [], 0
        with by_row:
            n = len(known) if layout.positions is None else len(layout.positions)
            for block in by_row.blocks((n, n)):
                block = block if layout.positions is None else number_block(block, layout)
                assert block.row_offset >= end or block.row_offset == end - 1
                end = block.row_offset + block.n_rows
                own = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) + block.row_offset
                found += zip(own.tolist(), block.indices.tolist(), block.data.tolist(), strict=True)
    numbers = [np.searchsorted(known, ends) for ends in (rows, cols)]
    order = np.lexsort((numbers[1], numbers[0]))
    assert found == list(zip(*(a[order].tolist() for a in (*numbers, values)), strict=True))


some_ids = st.one_of(
    st.integers(0, 9),
    st.integers(-(1 << 40), 1 << 40),
    st.integers(LEAST, GREATEST),
    st.sampled_from([LEAST, GREATEST]),
)


@given(
    st.lists(st.tuples(some_ids, some_ids), min_size=1, max_size=60),
    st.sampled_from([(PLENTY, PLENTY), (40_000, 10_000), (40_000, 500)]),
)
def test_any_ids(edges, memory):
    rows, cols = np.array(edges, np.int64).T
    check(rows, cols, memory[0], id_memory=memory[1])


@cover_pairs(memory=[PLENTY, 40_000, 20_000], id_memory=[PLENTY, 5000], spread=[1, 1 << 20, 1 << 52], threads=[1, 3])
def test_many_ids(small, memory, id_memory, spread, threads):
    """Most entries have few of the ids, and some ids are only rows, or only columns."""
    rng = np.random.default_rng(1)
    rows, cols = ((rng.random((2, 3000)) ** 3 * 1000).astype(np.int64) - 500) * spread
    check(rows, np.where(cols % 3 == 0, cols, cols + 1), memory, threads, id_memory)


@given(st.lists(st.lists(some_ids, max_size=20), max_size=9), st.sampled_from([0, 16, 1 << 20]))
def test_ids_are_joined_and_found(parts, pending):
    """However few wait at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "PENDING_BYTES", pending)
        known = join_ids(map(np.unique, (np.array(part, np.int64) for part in parts)), PLENTY)
    assert known.tolist() == sorted({id for part in parts for id in part})
    if len(known):
        given = np.random.default_rng(1).permutation(known)
        assert known[IdTable(known).take(given)].tolist() == given.tolist()


def test_ids_that_do_not_fit_are_not_joined():
    parts = [np.arange(k, k + 10) for k in range(0, 100, 5)]
    assert len(join_ids(parts, 105 * JOINED_BYTES)) == 105
    assert join_ids(parts, 104 * JOINED_BYTES) is None


@pytest.mark.parametrize("memory", [PLENTY, 20_000])
def test_one_id_far_from_all_others(small, memory):
    """All others are in one bucket."""
    rng = np.random.default_rng(2)
    rows, cols = rng.integers(0, 300, (2, 2000))
    rows[5], cols[7] = GREATEST, LEAST
    check(rows, cols, memory)


@pytest.mark.parametrize("memory", [PLENTY, 20_000])
@pytest.mark.parametrize("side", ["row", "column"])
def test_one_id_with_most_entries(small, memory, side):
    rng = np.random.default_rng(3)
    ends = np.full(2000, 1 << 50), rng.integers(0, 1 << 60, 2000)
    check(*(ends if side == "row" else ends[::-1]), memory)


@cover_pairs(ids=["far", "signed", "numbers", "listed"], kind=["graph", "matrix"], weighted=[True, False])
def test_ingesting(tmp_path, kind, ids, weighted):
    """As the same edges with the numbers of their vertices."""
    rng = np.random.default_rng(4)
    known = {
        "far": np.sort(rng.choice(1 << 62, 400, replace=False)),
        "signed": np.sort(rng.integers(LEAST, GREATEST, 400)),
        "numbers": np.arange(400),
        "listed": np.arange(400) * 3 + 1,
    }[ids]
    src, dst = rng.integers(0, 400, (2, 5000))
    src[:400] = np.arange(400)
    weight = rng.integers(1, 9, 5000)
    text = zip(known[src].tolist(), known[dst].tolist(), weight.tolist(), strict=True)
    (tmp_path / "a.txt").write_text("".join(f"{i} {j} {w}\n" if weighted else f"{i} {j}\n" for i, j, w in text))
    if ids == "numbers":  # more than there is memory for
        source = open_source(tmp_path / "a.txt", id_room=MemoryBudget(1000))
        with sort_source(source, IngestOptions(kind=kind), lambda *_: None) as matrix:
            assert matrix.layout.vertex_ids is None
            rows = [b.row_offset + np.repeat(np.arange(b.n_rows), np.diff(b.indptr)) for b in matrix.blocks()]
        assert len(np.concatenate(rows)) == len({*zip(src.tolist(), dst.tolist(), strict=True)})
        return
    mg.ingest(tmp_path / "a.txt", tmp_path / "a.zarr", kind=kind)
    arcs = (src, dst, weight.astype(float)) if weighted else (src, dst)
    mg.ingest(arcs, tmp_path / "b.zarr", kind=kind, n_vertices=400)
    found, wanted = (open_store(tmp_path / name) for name in ("a.zarr", "b.zarr"))
    assert found.read_array("vertex_ids").tolist() == known.tolist()
    for name in ("indptr", "indices", *(["data"] if weighted else [])):
        assert found.read_array(name).tolist() == wanted.read_array(name).tolist()
    assert mg.verify(tmp_path / "a.zarr") == []


@pytest.mark.parametrize("order", ["none", "degree"])
def test_ids_and_an_order(tmp_path, order):
    rng = np.random.default_rng(5)
    (tmp_path / "a.txt").write_text("".join(f"{i} {j}\n" for i, j in (rng.integers(0, 50, (300, 2)) << 55).tolist()))
    mg.ingest(tmp_path / "a.txt", tmp_path / "a.zarr", order=order)
    assert (open_store(tmp_path / "a.zarr").read_array("vertex_ids") % (1 << 55) == 0).all()
    assert mg.verify(tmp_path / "a.zarr") == []


# --- ids that are sorted before they are numbered --------------------------------------------------------------------

GAPS = {
    "gaps": lambda rng, n: np.sort(rng.choice(3 * n, n, replace=False)),
    "one gap": lambda rng, n: np.arange(n) + 700 * (np.arange(n) > n // 2),
    "all far from 0": lambda rng, n: np.arange(n) + 5000,
}


def ingest_arcs(arcs, options, memory, place, **own):
    """The store of arcs, and how often entries were spilled."""
    n_spilled, spill = [], EntrySorter._spill
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EntrySorter, "_spill", lambda sorter: (n_spilled.append(1), spill(sorter)))
        source, room = source_from_arrays(*arcs, **own), MemoryBudget(memory, 2, None)
        store_source(source, place, options, lambda p: p, lambda *_: None, room, base=None)
    return open_store(place), len(n_spilled)


@cover_pairs(
    ids=GAPS,
    kind=["graph", "matrix", "stochastic"],
    memory={"in memory": PLENTY, "by files": 160_000},
    transpose=[True, False],
    order=["none", "degree"],
    loops=["keep", "drop"],
    duplicates=["sum", "first", "keep"],
    hub=[False, True],
)
def test_ids_with_gaps(small, tmp_path, monkeypatch, ids, kind, memory, transpose, order, loops, duplicates, hub):
    """As the same arcs with the numbers of their vertices; most arcs of a hub are in one row, or in one column."""
    monkeypatch.setattr(tables, "PART_ROWS", 300)
    rng = np.random.default_rng(6)
    known = ids(rng, 500)
    src, dst = (rng.random((2, 6000)) ** 2 * 500).astype(int)
    src[:500] = np.arange(500)
    if hub:
        src[1000:3000] = dst[3000:5000] = 250
    ends, kept = src if kind == "graph" else dst, src != dst if loops == "drop" else np.full(6000, True)
    weight = rng.integers(1, 9, 6000).astype(float)
    if kind == "stochastic":
        duplicates = "sum"
        weight = weight / np.bincount(ends, weight * kept, 500).clip(1)[ends]
    options = IngestOptions(kind, duplicates=duplicates, self_loops=loops, order=order, transpose=transpose)
    found, n_spilled = ingest_arcs((known[src], known[dst], weight), options, memory, tmp_path / "a.zarr")
    wanted, _ = ingest_arcs((src, dst, weight), options, PLENTY, tmp_path / "b.zarr", n_vertices=500)
    assert found.read_array("vertex_ids").tolist() == known.tolist()
    names = [name for name in found.group.array_keys() if name != "vertex_ids"]
    for name in [*names, *(["transpose/indptr", "transpose/indices", "transpose/data"] if transpose else [])]:
        assert found.read_array(name).tobytes() == wanted.read_array(name).tobytes(), name
    assert (n_spilled > 0) == (memory < PLENTY)
    assert mg.verify(tmp_path / "a.zarr") == []


@pytest.mark.parametrize("memory", [PLENTY, 100_000])
@pytest.mark.parametrize("kind", ["graph", "matrix"])
def test_messages_name_ids_with_gaps(small, kind, memory):
    ids = np.arange(1000) * 2 + 1
    src, dst = np.append(ids, 77), np.append(ids[::-1], 1923)
    for arcs, options, message in (
        ((src, dst), {"duplicates": "error"}, r"the entry \(77, 1923\) occurs more than once"),
        ((src, dst), {"duplicates": "error", "order": "degree"}, r"the entry \(77, 1923\) occurs more than once"),
        ((ids, np.where(ids == 55, 55, 1)), {"self_loops": "error"}, "vertex 1 has a self loop"),
        ((src, dst, np.full(1001, INT64_MAX)), {"duplicates": "sum"}, "the sum of duplicate entries does not fit"),
    ):
        with pytest.raises(SourceError, match=message):
            ingest_arcs(arcs, IngestOptions(kind, **options), memory, MemoryStore())


@pytest.mark.parametrize(
    ("ids", "are_small"), [(range(40), True), ([3, 7, 200_000], True), ([-1, 5], False), ([5, 1 << 40], False)]
)
def test_small_ids_are_marked(ids, are_small):
    given, known = EntrySorter(PLENTY, 3), np.array(ids)
    rows = np.random.default_rng(1).permutation(np.resize(known, 1000))
    for part in np.split(rows, 10):
        given.add(CooBatch(part, part[::-1], None))
    layout, extent = Layout((0, 0), are_ids=True), (int(known.min()), int(known.max()))
    _, layout = encode_ids(given, layout, extent, None, ANY_ROOM)
    assert layout.ascend == (are_small and not are_numbers(known))
    assert layout.shape == (len(known),) * 2
    if layout.ascend:
        assert layout.vertex_ids.tolist() == known.tolist()
        assert layout.positions[known].tolist() == list(range(len(known)))
        assert (layout.positions == -1).sum() == len(layout.positions) - len(known)
    given.close()


def test_ids_are_not_sorted_again(monkeypatch):
    """If they are small, their entries are in no other sorter before they are written."""
    monkeypatch.setattr(numbering, "look_up_entries", None)
    ids = np.arange(100) * 3
    with sort_source(source_from_arrays(ids, ids[::-1]), IngestOptions(), lambda *_: None) as found:
        assert found.shape == (100, 100)
        assert np.concatenate([block.indices for block in found.blocks()]).tolist() == list(range(99, -1, -1))


# --- names -----------------------------------------------------------------------------------------------------------

any_names = st.lists(st.text(max_size=3), unique=True)


@pytest.fixture
def small_pages(small, monkeypatch):
    shrink(monkeypatch, ingest__numbering={"PAGE_NAMES": 3, "MERGED_PAGES": 2})


@given(st.lists(st.one_of(any_names, st.lists(st.text("a\0é", max_size=20), unique=True)), max_size=5))
def test_runs_are_merged(small_pages, runs):
    """Each batch is a run."""
    numbering, codes = OccurringIds(pa.large_string(), MemoryBudget(-1)), {}
    for names in runs:
        codes |= dict(zip(numbering.encode(pa.array(names, pa.string()))[0].tolist(), names, strict=True))
    layout = numbering.finish()
    assert layout.vertex_ids[:].tolist() == sorted({name for names in runs for name in names})
    numbers = layout.positions.take(np.array(list(codes), np.int64)).tolist()
    assert [layout.vertex_ids[number] for number in numbers] == list(codes.values())


@pytest.mark.parametrize(("memory", "threads"), [(PLENTY, 1), (10_000, 3)])
def test_entries_are_numbered(small_pages, memory, threads):
    rng = np.random.default_rng(1)
    names = [f"v{k}" for k in (rng.random((2, 900)) ** 2 * 200).astype(int).ravel()]
    numbering = OccurringIds(pa.large_string(), MemoryBudget(8000))
    with EntrySorter(memory, threads) as held:
        for k in range(0, 900, 30):
            rows, cols = numbering.encode(pa.array(names[k : k + 30]), pa.array(names[900 + k : 930 + k]))
            held.add(CooBatch(rows, cols, np.arange(k, k + 30)))
        assert len(numbering._runs) > 3
        numbered, layout = number_entries(
            held, numbering.finish(), (0, 0), lambda: EntrySorter(memory, threads), ANY_ROOM
        )
        known = layout.vertex_ids
        assert known[:].tolist() == sorted(set(names))
        with numbered:
            blocks = list(numbered.blocks((len(known), len(known))))
    found = []
    for b in blocks:
        rows = b.row_offset + np.repeat(np.arange(b.n_rows), np.diff(b.indptr))
        found += zip(known[:][rows], known[:][b.indices], b.data.tolist(), strict=True)
    assert found == sorted(zip(names[:900], names[900:], range(900), strict=True))
    known.close()


def test_equal_names_in_one_batch_have_one_code(small_pages):
    """Also where the batch fills the memory, or self loops would not be found."""
    numbering = OccurringIds(pa.large_string(), MemoryBudget(1))
    for k in range(5):
        rows, cols = numbering.encode(pa.array([f"a{k}", "b"]), pa.array([f"a{k}", "b"]))
        assert rows.tolist() == cols.tolist()
        assert sorted(rows.tolist()) == [2 * k, 2 * k + 1]


@pytest.mark.parametrize(
    ("suffix", "kind", "memory"), [("txt", "graph", 1 << 17), ("parquet", "matrix", 1 << 17), ("txt", "matrix", PLENTY)]
)
def test_the_store_is_that_of_names_in_memory(small_pages, tmp_path, suffix, kind, memory):
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


@pytest.mark.parametrize("memory", [1, PLENTY])
def test_listed_names_are_vertices_whatever_the_memory(small_pages, tmp_path, monkeypatch, memory):
    (tmp_path / "e.txt").write_text("".join(f"v{k % 7} v{k % 5}\n" for k in range(50)))
    names = [f"v{k}" for k in (8, 3, 0, 1, 2, 4, 5, 6)]
    (tmp_path / "e.v").write_text("\n".join(names))
    monkeypatch.setattr(streams, "CHUNK_BYTES", 20)
    own = {"id_room": MemoryBudget(memory), "vertices": tmp_path / "e.v"}
    monkeypatch.setattr(vertices, "_check_room", lambda *_: None)
    with sort_source(EdgeListSource(tmp_path / "e.txt", **own), IngestOptions(), lambda *_: None) as found:
        assert found.vertex_ids[:].tolist() == sorted(names)
        assert found.layout.shape == (8, 8)
        assert sum(block.nnz for block in found.blocks()) == 35
    (tmp_path / "e.v").write_text("\n".join(names[:-1]))
    with (
        pytest.raises(SourceError, match=r"e.txt: 'v6' is not in the list of vertices; add it there or remove its"),
        sort_source(EdgeListSource(tmp_path / "e.txt", **own), IngestOptions(), lambda *_: None),
    ):
        pass


def test_messages_name_them(small_pages, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 4)
    (tmp_path / "e.txt").write_text("a b\nb c\nc c\na b\n")
    for options, message in (
        ({"self_loops": "error"}, "vertex c has a self loop"),
        ({"duplicates": "error", "kind": "matrix"}, r"the entry \(a, b\) occurs more than once"),
    ):
        source = EdgeListSource(tmp_path / "e.txt", id_room=MemoryBudget(1))
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
