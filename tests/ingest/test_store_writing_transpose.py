"""The transpose that is added to a store: that of ingesting with it, and the same matrix."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError, StoreNotFoundError
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.store.read import read_recorded
from tests.support.shrinking import shrink
from tests.support.stores import check_same, make_scipy, make_stochastic

EDGES = (np.array([1, 1, 2, 9, 1]), np.array([2, 9, 9, 1, 2]))
SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "pattern": (EDGES, {}),
    "names": (nx.DiGraph([("a", "b"), ("b", "c"), ("c", "c")]), {}),
    "weights": ((*EDGES, np.array([0.5, 1.5, 2.0, -1.0, 4.0])), {}),
    "integers": ((*EDGES, np.array([5, 1, 2, 7, 1])), {}),
    "parallel edges": ((*EDGES, np.array([0.5, 1.5, 2.0, -1.0, 4.0])), {"duplicates": "keep"}),
    "parallel edges without weights": (EDGES, {"duplicates": "keep"}),
    "rcm": (make_scipy(40, 40), {"kind": "graph", "order": "rcm"}),
    "degree": (EDGES, {"order": "degree"}),
    "matrix that is not square": (make_scipy(30, 17), {}),
    "matrix that is not square, float32": (make_scipy(17, 30), {"dtype": "float32"}),
    "pattern that is not square": (make_scipy(17, 30), {"weights": False}),
    "stochastic": (make_stochastic(20), {"kind": "stochastic"}),
    "no entries": (sp.coo_array((3, 5)), {}),
}


@pytest.fixture
def small(monkeypatch):
    """Pieces, blocks and chunks of which a small matrix has many."""
    shrink(
        monkeypatch,
        store__digests={"CHUNK_ELEMENTS": 7},
        ingest__stored={"CHUNK_ELEMENTS": 7, "PIECE_ENTRIES": 7, "PIECE_ROWS": 5},
        ingest__external_sort={"GROUPED_ENTRIES": 16, "BLOCK_ENTRIES": 32, "BLOCK_ROWS": 8},
    )


def read_digests(place):
    """Those of all arrays."""
    return read_recorded(mg.open_matrix(place).stored)["array_digests"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("source", "options"), SOURCES.values(), ids=SOURCES)
def test_it_is_that_of_ingesting_with_it(monkeypatch, source, options):
    place, wanted_place = MemoryStore(), MemoryStore()
    before = mg.ingest(source, place, **options).info
    wanted = mg.ingest(source, wanted_place, transpose=True, **options).info
    monkeypatch.setattr("mgspmv.api.derived.find_budget", lambda *_: MemoryBudget(4000, 2, None))  # entries go to files
    info = mg.transpose(place).info
    assert (info.digest, info.has_transpose, info.number) == (before.digest, True, 2)
    check_same(info, wanted)
    assert info.order == wanted.order
    with mg.open_matrix(place) as A, mg.open_matrix(wanted_place) as B:
        np.testing.assert_array_equal(A.T.to_scipy().toarray(), B.T.to_scipy().toarray())
        np.testing.assert_array_equal(A.T.to_scipy().toarray(), A.to_scipy().toarray().T)
    assert read_digests(place) == read_digests(wanted_place)
    assert mg.verify(place) == []


def test_versions_and_provenance():
    place = MemoryStore()
    with mg.ingest(EDGES, place) as A:
        before = A.info
        info = mg.transpose(place, threads=1, memory="64GiB").info
        assert A.info.has_transpose is False  # who has it open goes on with that version
    assert info.provenance["transposing"]["source"] == {"version": before.version, "digest": before.digest}
    assert {name: info.provenance[name] for name in before.provenance} == before.provenance
    assert mg.transpose(place).info == info
    assert [own.version for own in mg.list_versions(place)] == [before.version, info.version]
    assert mg.transpose(place, keep=1).info == info
    assert mg.list_versions(place) == [info]
    updated = mg.update(place, insert=([5], [6])).info
    assert updated.has_transpose
    mg.ingest(EDGES, again := MemoryStore())
    assert mg.list_versions(again) != [mg.transpose(again, keep=1).info] == mg.list_versions(again)


def test_what_is_refused(tmp_path):
    with pytest.raises(StoreNotFoundError):
        mg.transpose(tmp_path / "none.zarr")
    mg.ingest(EDGES, tmp_path / "s.zarr")
    with pytest.raises(OptionError, match="keep must be at least 1"):
        mg.transpose(tmp_path / "s.zarr", keep=0)
    with pytest.raises(OptionError, match="threads must be at least 1"):
        mg.transpose(tmp_path / "s.zarr", threads=0)
