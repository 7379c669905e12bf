"""Vertices with any ids are numbered in their order, by way of files or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.ingest.entries import sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import number_ids
from mgspmv.ingest.open import open_source
from mgspmv.ingest.scratch import MemoryBudget
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
    shrink(
        monkeypatch, ingest__external_sort=sorter, ingest__numbering={"PIECE_IDS": 8}, ingest__names={"PAGE_NAMES": 8}
    )


def check(rows, cols, memory, threads=2):
    """Entries with these ids come out by the ids' places among all."""
    values = np.arange(len(rows), dtype=np.float64)
    with EntrySorter(memory, threads) as held:
        for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 9)):
            held.add(CooBatch(rows[part], cols[part], values[part]))
        by_row, ids = number_ids(held, lambda: EntrySorter(memory, threads), None)
        known = np.unique(np.concatenate([rows, cols]))
        assert ids[:].tolist() == known.tolist()
        found, end = [], 0
        with by_row:
            for block in by_row.blocks((len(known), len(known))):
                assert block.row_offset >= end or block.row_offset == end - 1
                end = block.row_offset + block.n_rows
                own = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) + block.row_offset
                found += zip(own.tolist(), block.indices.tolist(), block.data.tolist(), strict=True)
        ids.close()
    numbers = [np.searchsorted(known, ends) for ends in (rows, cols)]
    order = np.lexsort((numbers[1], numbers[0]))
    assert found == list(zip(*(a[order].tolist() for a in (*numbers, values)), strict=True))


some_ids = st.one_of(
    st.integers(0, 9),
    st.integers(-(1 << 40), 1 << 40),
    st.integers(LEAST, GREATEST),
    st.sampled_from([LEAST, GREATEST]),
)


@given(st.lists(st.tuples(some_ids, some_ids), min_size=1, max_size=60), st.sampled_from([PLENTY, 40_000]))
def test_any_ids(edges, memory):
    rows, cols = np.array(edges, np.int64).T
    check(rows, cols, memory)


@cover_pairs(memory=[PLENTY, 40_000, 20_000], spread=[1, 1 << 20, 1 << 52], threads=[1, 3])
def test_many_ids(small, memory, spread, threads):
    """Most entries have few of the ids, and some ids are only rows, or only columns."""
    rng = np.random.default_rng(1)
    rows, cols = ((rng.random((2, 3000)) ** 3 * 1000).astype(np.int64) - 500) * spread
    check(rows, np.where(cols % 3 == 0, cols, cols + 1), memory, threads)


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
