"""The benchmark's graphs at small sizes: their structure, their directions, their degrees."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.bench import matrices
from mgspmv.bench.graphs import (
    GRAPHS,
    HOST_PAGES,
    NEAR_HOSTS,
    REAL_GRAPHS,
    count_out_arcs,
    find_isolated,
    read_graph,
)
from mgspmv.bench.matrices import REAL
from mgspmv.ingest.generate import RmatSource
from mgspmv.model import CsrBlock

SIZE = 100_000


def make(name: str, size: int = SIZE) -> sp.csr_array:
    """In-edges of a graph with ones, the arrays as they are."""
    block = GRAPHS[name].make(np, size)
    return sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))


@pytest.mark.parametrize("name", GRAPHS)
def test_arcs_are_in_order_and_about_as_many_as_asked_for(name: str) -> None:
    block = GRAPHS[name].make(np, SIZE)
    keys = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
    steps = np.diff(keys)
    assert (steps >= 0).all() if name == "rmat27" else (steps > 0).all()
    assert (block.n_rows, block.data) == (block.n_cols, None)
    assert (block.indptr.dtype, block.indices.dtype) == (np.int64, np.int32)
    assert 0 <= block.indices.min() <= block.indices.max() < block.n_cols
    assert 0.6 * SIZE < block.nnz < 1.5 * SIZE


@pytest.mark.parametrize("name", GRAPHS)
def test_pieces_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GRAPHS[name].make(np, 20_000)
    monkeypatch.setattr(matrices, "PIECE", 999)
    pieces = GRAPHS[name].make(np, 20_000)
    assert (whole.indptr == pieces.indptr).all()
    assert (whole.indices == pieces.indices).all()


def test_each_is_of_50_million_arcs_on_a_device_but_for_the_one_beyond_31_bits() -> None:
    assert list(GRAPHS) == ["rmat22", "rmat24", "uniform24", "grid", "web", "rmat23-undirected", "rmat27"]
    for recipe in GRAPHS.values():
        assert recipe.size > 60_000_000
        assert recipe.by_name_only == (recipe.size > 2**31) == (recipe.name == "rmat27")
    assert make("web").nnz > 0.8 * SIZE  # larger ones have fewer arcs that come again


def test_rmat_is_scrambled() -> None:
    ids = np.arange(4096)
    ones = sum(ids >> bit & 1 for bit in range(12))
    for name in ("rmat22", "rmat24"):
        degrees = np.diff(make(name, 16 << 12).indptr)
        assert abs(np.corrcoef(degrees, ones)[0, 1]) < 0.1


def test_undirected_rmat_is_the_generators_both_ways() -> None:
    entries = RmatSource(8, 8).make_entries(0, 8 << 8)
    one_way = sp.csr_array((np.ones(len(entries.rows)), (entries.rows, entries.cols)), shape=(256, 256))
    wanted = one_way + one_way.T
    wanted.data[:] = 1
    made = make("rmat23-undirected", 16 << 8)
    assert abs(made - wanted).sum() == 0
    assert abs(made - made.T).sum() == 0


# --- road-like -------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_street_and_a_shortcut_for_one_vertex_in_a_hundred() -> None:
    made = make("grid", 4 * 200 * 200)
    line = sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(200, 200))
    streets = sp.csr_array(sp.kronsum(line, line))
    assert made.shape == streets.shape
    shortcuts = (made - streets).tocoo()
    shortcuts.eliminate_zeros()
    assert (shortcuts.data == 1).all()  # so that no street is missing
    sources, destinations = shortcuts.col, shortcuts.row
    assert len(set(sources)) == len(sources)
    assert 0.008 < len(sources) / 40_000 < 0.012
    assert np.abs(sources - destinations).mean() > 10_000
    assert abs(np.corrcoef(sources, destinations)[0, 1]) < 0.2


# --- web-like --------------------------------------------------------------------------------------------------------


def split_web() -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """A web of 64 hosts; for each arc how far its hosts are apart, and its destination."""
    made = make("web", 12 * 64 * HOST_PAGES)
    rows = np.repeat(np.arange(made.shape[0]), np.diff(made.indptr))
    apart = abs(rows // HOST_PAGES - made.indices // HOST_PAGES)
    return made, np.minimum(apart, 64 - apart), rows


def test_most_arcs_of_the_web_stay_in_their_host_or_near_it() -> None:
    made, apart, _ = split_web()
    assert made.shape == (64 * HOST_PAGES,) * 2
    inside, near = (apart == 0).mean(), ((apart > 0) & (apart <= NEAR_HOSTS)).mean()
    assert 0.6 < inside < 0.75
    assert 0.08 < near < 0.2
    assert inside + near < 0.87  # the others are anywhere


def test_hosts_of_the_web_are_alike_and_their_first_pages_are_linked_most() -> None:
    made, apart, rows = split_web()
    by_host = np.bincount(rows[apart == 0] // HOST_PAGES, minlength=64)
    later = by_host[1:]  # arcs from anywhere fall into the first host too
    assert by_host[0] == by_host.max()
    assert 0.9 * later.mean() < later.min() < later.max() < 1.1 * later.mean()
    by_page = np.bincount(rows[apart == 0] % HOST_PAGES, minlength=HOST_PAGES)
    assert by_page.argmax() == 0
    assert by_page[0] > 20 * by_page.mean()
    assert not np.array_equal(*(made[k : k + HOST_PAGES, k : k + HOST_PAGES].toarray() for k in (0, HOST_PAGES)))


def test_the_web_has_hubs_among_what_was_crawled_first() -> None:
    _, apart, rows = split_web()
    linked_from_afar = np.bincount(rows[apart > NEAR_HOSTS])
    assert linked_from_afar.argmax() == 0
    assert linked_from_afar[0] > 300 * linked_from_afar.mean()


# --- degrees ---------------------------------------------------------------------------------------------------------


def test_out_degrees_count_what_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    block = GRAPHS["rmat27"].make(np, 20_000)
    whole = count_out_arcs(np, block)
    assert whole.dtype == np.float64
    matrix = sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))
    assert (whole == matrix.sum(axis=0)).all()
    monkeypatch.setattr("mgspmv.bench.graphs.PIECE", 777)
    assert (count_out_arcs(np, block) == whole).all()


def test_vertices_without_arcs() -> None:
    block = CsrBlock(0, 5, np.array([0, 1, 1, 1, 2, 2]), np.array([2, 3], np.int32), None)
    weight = count_out_arcs(np, block)
    assert weight.tolist() == [0, 0, 1, 1, 0]
    assert find_isolated(np, block, weight).tolist() == [False, True, False, False, True]


# --- real ones -------------------------------------------------------------------------------------------------------


def test_an_arc_of_a_real_graph_is_in_the_row_of_its_destination(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MGSPMV_TEST_DATA", str(tmp_path))
    file = tmp_path / REAL["cnr-2000"]
    file.parent.mkdir()
    file.write_bytes(gzip.compress(b"0 2\n1 2\n2 0\n1 2\n"))
    block = read_graph(np, "cnr-2000")
    assert block.indptr.tolist() == [0, 1, 1, 3]
    assert block.indices.tolist() == [2, 0, 1]
    assert block.data is None


def test_an_edge_of_an_undirected_one_goes_both_ways_without_its_weight(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MGSPMV_TEST_DATA", str(tmp_path))
    file = tmp_path / REAL["mdual"]
    file.parent.mkdir()
    file.write_bytes(gzip.compress(b"%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 0.5\n3 1 7\n"))
    block = read_graph(np, "mdual")
    assert block.indptr.tolist() == [0, 2, 3, 4]
    assert block.indices.tolist() == [1, 2, 0, 0]
    assert block.data is None


def test_a_real_graph_that_is_not_here(monkeypatch) -> None:
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    for name in REAL_GRAPHS:
        with pytest.raises(FileNotFoundError, match=r"there is no .*\.gz in the folder that MGSPMV_TEST_DATA names"):
            read_graph(np, name)
