"""A graph in arrays and tables on a GPU, from the object to a table of ranks."""

import numpy as np
import pytest

import mgspmv as mg

SRC, DST, COST = [0, 0, 1, 2, 3, 3], [1, 2, 2, 0, 0, 2], [1.0, 2.0, 4.0, 1.0, 0.5, 3.0]


def make_columns(library):
    return library.asarray(SRC), library.asarray(DST), library.asarray(COST)


def make_cupy_columns():
    return make_columns(pytest.importorskip("cupy"))


def make_cupy_matrix():
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    src, dst, cost = make_cupy_columns()
    return sparse.csr_matrix((cost, (src, dst)), shape=(4, 4))


def make_torch_columns():
    torch = pytest.importorskip("torch")
    return tuple(column.cuda() for column in make_columns(torch))


def make_cudf_table():
    return pytest.importorskip("cudf").DataFrame({"source": SRC, "target": DST, "weight": COST})


@pytest.mark.gpu
@pytest.mark.parametrize("make", [make_cupy_columns, make_cupy_matrix, make_torch_columns, make_cudf_table])
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_weighted_graphs_on_a_device(make, backend):
    pandas = pytest.importorskip("pandas")
    wanted = mg.pagerank(mg.ingest((SRC, DST, COST)).on("cpu"))
    table = mg.pagerank(mg.ingest(make(), kind="graph").on(backend)).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    np.testing.assert_array_equal(table["rank"], wanted.values)
    np.testing.assert_array_equal(mg.pagerank(make()).values, wanted.values)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_edge_indexes_on_a_device(library):
    module = pytest.importorskip(library)
    edges = module.asarray(np.array([SRC, DST]))
    ranks = mg.pagerank(edges if library == "cupy" else edges.cuda())
    np.testing.assert_array_equal(ranks.values, mg.pagerank((SRC, DST)).values)
