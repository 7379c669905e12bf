"""The benchmark's reference ranks beside published ones and a linear system, and what comparing with them says."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import rank_checks
from benchmarks.graphs import count_out_arcs
from benchmarks.rank_checks import compare_ranks, iterate_ranks
from mgspmv.model import CsrBlock
from tests.support.reference_data import shared_data


def make_block(in_edges: sp.csr_array) -> CsrBlock:
    in_edges.sort_indices()
    return CsrBlock(0, in_edges.shape[1], in_edges.indptr.astype(np.int64), in_edges.indices, None)


def iterate(block: CsrBlock, n_iterations: int) -> np.ndarray:
    weight = count_out_arcs(np, block)
    return iterate_ranks(np, block, weight, np.ones(block.n_rows, bool), n_iterations)


def test_ten_iterations_are_those_that_were_published(monkeypatch) -> None:
    monkeypatch.setattr(rank_checks, "PIECE", 1000)
    with gzip.open(shared_data("graphs/p2p-31.e.gz"), "rt") as file:
        edges = np.loadtxt(file)[:, :2].astype(int)
    with gzip.open(shared_data("graphs/p2p-31-PR.gz"), "rt") as file:
        ids, wanted = np.loadtxt(file).T
    order = np.argsort(ids)
    ends = np.searchsorted(ids[order], edges)
    arcs = sp.csr_array((np.ones(2 * len(ends)), np.concatenate([ends, ends[:, ::-1]]).T), shape=(len(ids),) * 2)
    found = iterate(make_block(sp.csr_array(arcs.T)), rank_checks.N_CHECKED)
    assert np.max(abs(found - wanted[order]) / wanted[order]) < 1e-13


def test_a_rank_that_is_off_is_named() -> None:
    wanted = np.array([0.5, 0.25, 0.25, 0.0])
    assert compare_ranks(wanted, wanted, 1e-9, "the book").problem is None
    close = compare_ranks(wanted * (1 + 5e-5), wanted, 1e-4, "the book")
    assert (close.error, close.problem) == (pytest.approx(5e-5), None)
    off = wanted.copy()
    off[[1, 2]] *= 1.5, 1.01
    assert compare_ranks(off, wanted, 1e-4, "the book").problem == (
        "2 of 4 ranks are wrong after 10 iterations: that of vertex 1 is 0.375 and must be 0.25 as the book has it, to "
        "within 0.0001 of it"
    )
    for vertex, rank in ((0, np.nan), (3, 1e-3), (1, np.inf)):
        off = wanted.copy()
        off[vertex] = rank
        message = str(compare_ranks(off, wanted, 1e-4, "the book").problem)
        assert f"1 of 4 ranks are wrong after 10 iterations: that of vertex {vertex} is" in message
