"""The benchmark's reference ranks beside published ones and a linear system, and what comparing with them says."""

from __future__ import annotations

import gzip

import numpy as np
import scipy.sparse as sp

from benchmarks import rank_checks
from benchmarks.graphs import count_out_arcs
from benchmarks.rank_checks import iterate_ranks
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
