"""Edges that workers with devices read, exchange and hold there: the ranks of an ingest in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster.connect import start_cuda
from mgspmv.cluster.worker_rows import WorkerRows
from mgspmv.errors import CapacityError, OptionError
from mgspmv.ingest.device_sorting import LEAST
from tests.cluster.test_row_block_devices import count_devices
from tests.support.clusters import check_left, find_left

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

N = 5000


@pytest.fixture(scope="module", params=[1, 2])
def _devices(request: Any) -> Iterator[Client]:
    if count_devices() < request.param:
        pytest.skip(f"needs {request.param} GPUs, and there are {count_devices()}")
    with start_cuda(request.param) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def devices(_devices: Client) -> Iterator[Client]:
    """A client of workers that have a device each, on which a test must leave nothing."""
    before = find_left(_devices)
    yield _devices
    check_left(_devices, before)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tables of edges, enough of them to be sorted on a device, or few."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(5)
    src, dst = rng.zipf(1.4, (2, LEAST + 7)).clip(1, N).astype(np.int32) - 1
    columns = {"source": src, "target": dst}
    tables = {
        "pattern": columns,
        "float64": columns | {"weight": rng.random(len(src)) + 1e-3},
        "float32": columns | {"weight": rng.random(len(src)).astype(np.float32) + np.float32(1e-3)},
        "int64": columns | {"weight": rng.integers(1, 9, len(src))},
        "gaps": {name: 3 * own for name, own in columns.items()},
        "far": {name: 10**12 * own.astype(np.int64) for name, own in columns.items()},
        "few": {name: own[:3000] for name, own in columns.items()},
    }
    for name, own in tables.items():
        pq.write_table(pa.table(own), folder / f"{name}.parquet", row_group_size=1 << 16)
    return {path.stem: str(path) for path in folder.iterdir()}


def _list_places(dask_worker: Any) -> list[str]:
    """Where the columns of the rows of a worker are."""
    held = [own.stored for own in dask_worker.plugins["mgspmv"].held.values() if hasattr(own, "stored")]
    return [type(own.arrays["indices"]).__module__.partition(".")[0] for own in held if isinstance(own, WorkerRows)]


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "pattern": ("pattern", {"n_vertices": N}, "cupy"),
    "both ways without loops": ("pattern", {"n_vertices": N, "symmetrize": True, "self_loops": "drop"}, "cupy"),
    "kept": ("pattern", {"n_vertices": N, "duplicates": "keep"}, "cupy"),
    "float64": ("float64", {"n_vertices": N}, "cupy"),
    "float32": ("float32", {"n_vertices": N, "duplicates": "first"}, "cupy"),
    "int64": ("int64", {"n_vertices": N}, "cupy"),
    "ids that are numbered": ("pattern", {}, "cupy"),
    "ids with gaps": ("gaps", {"symmetrize": True}, "cupy"),
    "ids anywhere": ("far", {}, "numpy"),
    "few": ("few", {"n_vertices": N}, "numpy"),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_have_the_bits_of_one_process(name, devices, sources):
    source, options, place = CASES[name]
    wanted = mg.ingest(sources[source], **options).on("cpu")
    with mg.read_edges(sources[source], devices, **options) as D:
        assert (D.backend, D.transport) == ("cuda", "nccl")
        assert [own for places in devices.run(_list_places).values() for own in places] == [place] * len(D.workers)
        assert (D.nnz, D.info.min_weight, D.ingest_report) == (wanted.nnz, wanted.info.min_weight, wanted.ingest_report)
        for given in ({"tol": 1e-9}, {"tol": 1e-9}, {"weight": False}, {"dangling": "drop"}):
            found, ranks = mg.pagerank(D, **given), mg.pagerank(wanted, **given)
            assert found.digest() == ranks.digest(), given
            assert found.matrix["transport"] in ("ipc", "nccl")
        assert mg.pagerank(D.on(executor="tasks"), tol=1e-9).digest() == mg.pagerank(wanted, tol=1e-9).digest()


def test_other_computations(devices, sources):
    A = mg.ingest(sources["float64"], n_vertices=N).on("cpu")
    with mg.read_edges(sources["float64"], devices, n_vertices=N, precision="float32") as D:
        for precision, rtol in (("float32", 1e-4), ("float64", 1e-12)):
            found, wanted = (mg.pagerank(each, precision=precision).values for each in (D, A))
            np.testing.assert_allclose(found, wanted, rtol=rtol)
        x = np.random.default_rng(2).random((N, 3))
        np.testing.assert_allclose(D @ x, A @ x, rtol=1e-12)
        seeds: Any = [{k: 1.0} for k in range(5)]
        found, wanted = (mg.pagerank_batch(each, personalization=seeds) for each in (D, A))
        assert found.digest() == wanted.digest()
        degrees = A.stored.read_array("out_degree")
        assert D.stored.read_array("out_degree").tolist() == degrees.tolist()
        assert D.stored.read_array("out_degree", 100, 4000).tolist() == degrees[100:4000].tolist()


def test_hosts_exchange_where_nccl_does_not(devices, sources):
    wanted = mg.pagerank(mg.ingest(sources["pattern"], n_vertices=N).on("cpu"))
    with mg.read_edges(sources["pattern"], devices, n_vertices=N, transport="peer") as D:
        assert mg.pagerank(D).digest() == wanted.digest()
    with mg.read_edges(sources["pattern"], devices, n_vertices=N, backend="cpu") as D:
        assert mg.pagerank(D).digest() == wanted.digest()


def test_memory_of_a_device_that_does_not_suffice(devices, sources):
    with pytest.raises(CapacityError, match=r"of device memory on one of them, .*ingest the edges into a store first"):
        mg.read_edges(sources["pattern"], devices, n_vertices=N, device_memory="1MB")
    with pytest.raises(OptionError, match="duplicates must be"):
        mg.read_edges(sources["pattern"], devices, duplicates="last")


def test_matrices_are_read_again_and_again(devices: Client, sources: dict[str, str]) -> None:
    digests = set()
    for _ in range(3):
        with mg.read_edges(sources["pattern"], devices, n_vertices=N) as D:
            digests.add(mg.pagerank(D).digest())
    assert len(digests) == 1
