"""Shares of an ingest that exchange their entries between devices: the arrays of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest import device_sorting
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.build import load_source
from mgspmv.ingest.device_shard import DeviceShard, RowSample, list_buckets
from mgspmv.ingest.device_sorting import DeviceSorter
from mgspmv.ingest.shard import ShardSpec
from mgspmv.ingest.tables import ParquetSource
from mgspmv.kernels import entry_sorting
from mgspmv.kernels.formats import to_host
from mgspmv.kernels.staging import Staging
from mgspmv.model import IngestOptions, ignore
from tests.support.device_shares import HostStaging, PlayedGroup
from tests.support.emulated import load_kernel, needs_compiler

N = 400
ROOM = MemoryBudget(1 << 24, 2)


@pytest.fixture(
    params=[
        "reference",
        pytest.param("emulated", marks=[pytest.mark.slow, needs_compiler]),
        pytest.param("device", marks=pytest.mark.gpu),
    ]
)
def staging(request, monkeypatch) -> type:
    """Copies to a device, on which the reference of the kernels runs, or the kernels on a processor or a device."""
    if request.param == "emulated":
        lock = Lock()  # the emulator runs one kernel at a time

        def load_locked(source, name, **types):
            kernel = load_kernel(source, name, **types)

            def launch(*given):
                with lock:
                    kernel(*given)

            return launch

        monkeypatch.setattr(entry_sorting, "load_kernel", load_locked)
        monkeypatch.setattr(entry_sorting, "address", lambda array: array)
        monkeypatch.setattr(entry_sorting, "_is_on_host", lambda array: False)
    return Staging if request.param == "device" else HostStaging


def write_edges(path, n_edges=3000, weights=None) -> str:
    rng = np.random.default_rng(n_edges)
    src, dst = (N * rng.random((2, n_edges)) ** 2).astype(np.int32)
    dst[::50] = src[::50]
    columns = {"source": src, "target": dst} | ({} if weights is None else {"weight": weights(n_edges)})
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return str(path)


def make_shares(source, n, options, staging, most_bytes=1 << 30):
    parts = [*source.split(n)]
    parts += [None] * (n - len(parts))
    shares: list[DeviceShard] = []
    group = PlayedGroup(n)
    for rank, part in enumerate(parts):
        spec = ShardSpec(rank, n, part, source.name, "graph", options, keeps_rows=True)
        shares.append(DeviceShard(spec, ROOM, lambda to, question, *own: getattr(shares[to], question)(*own), ignore))
        shares[-1].use_device(DeviceSorter(shares[-1]._given, staging(), most_bytes))
        shares[-1].device_group = group.join(rank) if n > 1 else None
    return shares


def read(shares):
    """Let the shares read; return the sums of their samples."""
    summaries = [own.read() for own in shares]
    dtype = next((own.dtype for own in summaries if own.n_entries), None)
    for own in shares:
        own.list_ids(None, dtype)
    return [own.sample_rows(N) for own in shares]


def build(shares, bounds):
    """Let the shares exchange and build their rows together; return the whole arrays."""

    def work(own):
        try:
            own.trade(bounds)
            return own.build_on_device(bounds)
        except BaseException:
            if own.device_group is not None:
                own.device_group.group.give_up()
            raise

    with ThreadPoolExecutor(len(shares)) as pool:
        made = list(pool.map(work, shares))
    firsts = np.cumsum([0, *(nnz for nnz, _ in made)])[:-1].tolist()
    taken = [own.take_arrays(first) for own, first in zip(shares, firsts, strict=True)]
    arrays = {name: np.concatenate([to_host(own[name]) for own in taken]) for name in taken[0] if name != "indptr"}
    pointers = [to_host(own["indptr"]) for own in taken]
    arrays["indptr"] = np.concatenate([*(own[:-1] for own in pointers), pointers[-1][-1:]])
    return arrays, [least for _, own in made for least in own]


OPTIONS = {
    "as they are": (None, IngestOptions("graph")),
    "both ways without loops": (None, IngestOptions("graph", self_loops="drop", symmetrize=True)),
    "kept": (None, IngestOptions("graph", "keep")),
    "weights": (lambda n: np.random.default_rng(1).random(n), IngestOptions("graph", symmetrize=True)),
    "first weights": (lambda n: np.arange(n).astype(np.float32), IngestOptions("graph", "first")),
    "integers": (lambda n: np.arange(n) % 9, IngestOptions("graph", "sum", "drop")),
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_arrays_are_those_of_one_process(name, n, staging, tmp_path):
    weights, options = OPTIONS[name]
    path = write_edges(tmp_path / "edges.parquet", weights=weights)
    wanted = load_source(ParquetSource(path, n_vertices=N), options, ignore, ROOM)
    shares = make_shares(ParquetSource(path, n_vertices=N), n, options, staging)
    samples = read(shares)
    edges = pq.read_table(path)
    rows = np.concatenate([edges["target"], edges["source"]]) if options.symmetrize else edges["target"].to_numpy()
    mirrored = (edges["target"].to_numpy() != edges["source"].to_numpy()) if options.symmetrize else None
    rows = rows if mirrored is None else rows[np.append(np.ones(len(mirrored), bool), mirrored)]
    assert sum(own.counts for own in samples).tolist() == np.bincount(rows, minlength=N).tolist()
    bounds = [0, *([70, 71] if n > 1 else []), N]  # the second share has one row
    arrays, least = build(shares, bounds)
    assert arrays.keys() == wanted.arrays.keys()
    for each, array in wanted.arrays.items():
        assert arrays[each].dtype == array.dtype
        assert arrays[each].tobytes() == array.tobytes(), each
    assert (min(least, default=None)) == wanted.info.min_weight
    for own in shares:
        own.close()


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_small_integers_are_numbered_by_all_devices(n, step, staging, tmp_path):
    edges = pq.read_table(write_edges(tmp_path / "edges.parquet", 9000))
    src, dst = (np.append(step * edges[name].to_numpy(), step * np.arange(N)) for name in edges.column_names)
    pq.write_table(pa.table({"source": src, "target": dst}), tmp_path / "e.parquet", row_group_size=999)
    source, high = str(tmp_path / "e.parquet"), step * (N - 1)
    wanted = load_source(ParquetSource(source), IngestOptions("graph"), ignore, ROOM)
    shares = make_shares(ParquetSource(source), n, IngestOptions("graph"), staging)
    for own in shares:
        own.read()
    assert all(own.can_mark(high) for own in shares)
    with ThreadPoolExecutor(n) as pool:
        assert list(pool.map(lambda own: own.mark_ids(high, None), shares)) == [N] * n
    ids = np.concatenate([own.list_own_ids() for own in shares])
    assert ids.tolist() == (step * np.arange(N)).tolist()
    samples = [own.sample_rows(N) for own in shares]
    assert sum(own.counts for own in samples).tolist() == np.bincount(dst // step, minlength=N).tolist()
    arrays, _ = build(shares, [0, *([70, 71] if n > 1 else []), N])
    for each in arrays:
        assert arrays[each].tobytes() == wanted.arrays[each].tobytes(), each


def test_shares_without_entries_or_rows(staging, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"source": [3, 3, 1], "target": [0, 0, 5], "weight": [1.0, 2.0, 4.0]}), path)
    shares = make_shares(ParquetSource(str(path), n_vertices=N), 3, IngestOptions("graph"), staging)
    assert [own.n_entries for own in read(shares)] == [3, 0, 0]
    arrays, least = build(shares, [0, 0, 3, N])
    assert (arrays["indices"].tolist(), arrays["data"].tolist(), least) == ([3, 1], [3.0, 4.0], [3.0, 4.0])
    assert np.flatnonzero(arrays["out_weight"]).tolist() == [1, 3]
    assert arrays["indptr"].tolist() == [0] + [1] * 5 + [2] * (N - 5)


@pytest.mark.parametrize(
    ("options", "weights", "message"),
    [
        (IngestOptions("graph", "error"), None, r"the entry \(\d+, \d+\) occurs more than once"),
        (IngestOptions("graph"), lambda n: np.where(np.arange(n) == 7, np.inf, 1.0), "not finite|infinite"),
    ],
)
def test_wrong_entries(options, weights, message, staging, tmp_path):
    path = write_edges(tmp_path / "edges.parquet", weights=weights)
    shares = make_shares(ParquetSource(path, n_vertices=N), 1, options, staging)
    read(shares)
    with pytest.raises(SourceError, match=message):
        build(shares, [0, N])


def test_entries_that_do_not_suit_the_device_go_to_the_host(staging, tmp_path):
    path = write_edges(tmp_path / "edges.parquet")
    shares = make_shares(ParquetSource(path), 2, IngestOptions("graph"), staging)  # ids are to be numbered
    assert read(shares) == [None, None]
    assert [own._given.n_entries for own in shares] == [1500, 1500]
    shares = make_shares(ParquetSource(path, n_vertices=N), 2, IngestOptions("graph"), staging, most_bytes=20_000)
    assert read(shares) == [None, None]
    shares = make_shares(ParquetSource(path, n_vertices=N), 2, IngestOptions("graph"), staging)
    assert None not in read(shares)
    [(rows, counts), (_, others)] = [own.group((N, N)) for own in shares]  # as another share has no memory left
    assert (counts.sum(), others.sum(), rows[-1]) == (1500, 1500, N)


def test_samples_are_scaled(monkeypatch, tmp_path):
    path = write_edges(tmp_path / "edges.parquet", 20_000)
    monkeypatch.setattr(device_sorting, "SAMPLED_ENTRIES", 2000)
    [share] = make_shares(ParquetSource(path, n_vertices=N), 1, IngestOptions("graph"), HostStaging)
    [sample] = read([share])
    counts = np.bincount(pq.read_table(path)["target"], minlength=N)
    assert abs(sample.counts.sum() - 20_000) < 20_000 * 0.02
    assert abs(np.cumsum(sample.counts) - np.cumsum(counts)).max() < 20_000 * 0.1


def test_buckets():
    assert list_buckets(5).tolist() == [0, 1, 2, 3, 4, 5]
    rows = list_buckets((1 << 26) - 5)
    assert (len(rows), rows[1], rows[-2], rows[-1]) == ((1 << 16) + 1, 1 << 10, (1 << 26) - (1 << 10), (1 << 26) - 5)


def test_memory_that_is_taken():
    plain, weighted = (RowSample(np.zeros(1), 1000, n_bytes, 0) for n_bytes in (0, 8))
    assert plain.find_bytes(1000, 10) == 24 * 1000 + 240
    assert plain.find_bytes(10, 0) == 8 * 1010
    assert weighted.find_bytes(1000, 10) > 2 * plain.find_bytes(1000, 10)


def test_a_device_that_is_full_names_the_store(tmp_path):
    class OutOfMemoryError(Exception):
        pass

    path = write_edges(tmp_path / "edges.parquet")
    [share] = make_shares(ParquetSource(path, n_vertices=N), 1, IngestOptions("graph"), HostStaging)
    read([share])

    def fail(*given):
        raise OutOfMemoryError("Out of memory allocating 8 bytes")

    share._device._pack = fail
    with pytest.raises(CapacityError, match=r"left on a device \(Out of memory.*ingest the edges into a store first"):
        share.trade([0, N])
