"""Edges that workers read and hold without a store: the ranks of an ingest in one process."""

from __future__ import annotations

import os
import re
import signal
import uuid
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster import ingest, ingest_steps
from mgspmv.cluster.ingest_steps import DeviceOffer
from mgspmv.cluster.load import WorkerPlacement
from mgspmv.cluster.worker_rows import WorkerRows
from mgspmv.errors import (
    CapacityError,
    ClosedError,
    ClusterError,
    KindError,
    OptionError,
    SourceError,
    WorkerLostError,
)
from mgspmv.ingest import device_shard
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.device_shard import RowSample
from mgspmv.ingest.device_sorting import DeviceSorter
from tests.support.clusters import start_cluster
from tests.support.device_shares import HostStaging, PlayedGroup
from tests.support.hearing import on_events, on_phases

N = 300

rank = partial(mg.pagerank, alpha=0.3)
"""Of few iterations."""


def write_tables(folder: Path, ids: Any = None, **given: Any) -> str:
    """Write 2000 edges between N vertices to three files with row groups of 97 rows, one file without rows."""
    rng = np.random.default_rng(3)
    columns = [np.minimum(rng.zipf(1.3, 2000), N) - 1, rng.integers(0, N, 2000)]
    columns[1][::90] = columns[0][::90]  # loops
    columns = [own.astype(np.int32) if ids is None else ids[own] for own in columns]
    table = pa.table({"source": columns[0], "target": columns[1], **given})
    folder.mkdir()
    for name, own in (("a", table.slice(0, 700)), ("b", table.slice(0, 0)), ("c", table.slice(700))):
        pq.write_table(own, folder / f"{name}.parquet", row_group_size=97)
    return str(folder)


NAMES = np.array([f"v{k}ä" for k in range(N)], object)
FAR = np.sort(np.random.default_rng(1).integers(-(2**62), 2**62, N))
WEIGHTS = np.arange(2000) % 7 + 0.1
SOURCES: dict[str, dict[str, Any]] = {
    "numbers": {},
    "weighted": {"weight": WEIGHTS},
    "integers": {"weight": np.arange(2000)},
    "names": {"ids": NAMES},
    "far": {"ids": FAR},
    "gaps": {"ids": 3 * np.arange(N) + 2},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tables")
    return {name: write_tables(folder / name, **given) for name, given in SOURCES.items()}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "numbers": ("numbers", {"n_vertices": 2 * N}),
    "numbers that are found": ("numbers", {}),
    "both ways without loops": ("numbers", {"n_vertices": N, "symmetrize": True, "self_loops": "drop"}),
    "all kept": ("numbers", {"n_vertices": N, "duplicates": "keep"}),
    "weights": ("weighted", {"n_vertices": N}),
    "first weights": ("weighted", {"n_vertices": N, "duplicates": "first", "symmetrize": True}),
    "weights of float32": ("weighted", {"n_vertices": N, "dtype": "float32"}),
    "without weights": ("weighted", {"n_vertices": N, "weights": False}),
    "integers": ("integers", {}),
    "ids with gaps": ("gaps", {"symmetrize": True}),
    "names": ("names", {"columns": ["target", "source"]}),
    "far ids": ("far", {"self_loops": "drop"}),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_those_of_one_process(name, sources, in_process):
    source, options = CASES[name]
    n_workers = 1 if name in ("weights", "names") else 3
    with (
        mg.ingest(sources[source], **options) as A,
        mg.read_edges(sources[source], in_process(n_workers), **options) as D,
    ):
        for own in ("shape", "nnz", "kind", "dtype", "ingest_report"):
            assert getattr(D, own) == getattr(A, own), own
        assert (D.info.min_weight, D.info.vertex_ids) == (A.info.min_weight, A.info.vertex_ids)
        np.testing.assert_array_equal(D.vertex_ids, A.vertex_ids)
        assert rank(D).digest() == rank(A).digest()


def test_executors_precisions_and_weights(sources, in_process):
    A = mg.ingest(sources["weighted"])
    with mg.read_edges(sources["weighted"], in_process(3), precision="float32") as D:
        assert rank(D.on(executor="tasks")).digest() == rank(A).digest()
        for given in ({"precision": "float64"}, {"weight": False, "precision": "float64", "dangling": "drop"}):
            found, wanted = (mg.pagerank(each, **given).values for each in (D, A))
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_rows_are_balanced_as_those_of_a_store(sources, in_process, tmp_path):
    source, client = sources["numbers"], in_process(3)
    A = mg.ingest(source, tmp_path / "store", n_vertices=N)
    with A.distribute(client) as wanted, mg.read_edges(source, client, n_vertices=N) as D:
        costs = [max(4 * w.nnz + 32 * (w.stop - w.start) for w in each.plan.workers) for each in (D, wanted)]
        assert costs[0] < 1.1 * costs[1]
        assert [w.nnz for w in D.plan.workers] == np.diff(A.to_scipy().indptr[list(D.bounds)]).tolist()


def test_short_memory_and_sums_by_pieces(sources, in_process, monkeypatch):
    source = sources["weighted"]
    wanted = rank(mg.ingest(source))
    monkeypatch.setattr(
        ingest_steps, "make_budget", lambda memory, free, threads, folder: MemoryBudget(1 << 17, 2, folder)
    )
    monkeypatch.setattr(ingest_steps, "SUM_BYTES", 1 << 9)  # 64 columns at a time
    with mg.read_edges(source, in_process(3)) as D:
        assert rank(D).digest() == wanted.digest()
        np.testing.assert_array_equal(
            D.stored.read_array("out_weight"), mg.ingest(source).stored.read_array("out_weight")
        )


def test_more_workers_than_row_groups(in_process, tmp_path):
    pq.write_table(pa.table({"source": [0, 1], "target": [1, 2]}), tmp_path / "a.parquet")
    with mg.read_edges(tmp_path / "a.parquet", in_process(3)) as D:
        assert rank(D).digest() == rank(mg.ingest(tmp_path / "a.parquet")).digest()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> PlayedGroup:
    """Devices of three workers on which entries are exchanged and sorted; their rows compute on hosts."""
    group = PlayedGroup(3)
    monkeypatch.setattr(ingest, "is_worth_a_device", lambda n_entries: True)
    monkeypatch.setattr(ingest_steps, "use_device", lambda number: nullcontext())
    monkeypatch.setattr(ingest, "find_devices", lambda *_: DeviceOffer(uuid.uuid4().hex, 1 << 30, may_share=False))
    monkeypatch.setattr(ingest_steps, "current_device", lambda: 0)
    monkeypatch.setattr(ingest_steps, "greet", lambda group: {})
    monkeypatch.setattr(ingest_steps, "join_group", lambda turns, hellos, held, may_share: group.join(turns.rank))
    monkeypatch.setattr(
        ingest_steps, "make_device_sorter", lambda host, most_bytes: DeviceSorter(host, HostStaging(), most_bytes)
    )
    return group


@pytest.mark.parametrize("name", CASES)
def test_entries_are_exchanged_between_devices(name, devices, sources, in_process):
    source, options = CASES[name]
    with mg.ingest(sources[source], **options) as A, mg.read_edges(sources[source], in_process(3), **options) as D:
        n_expected = 0 if source in ("names", "far") else (2 if A.is_pattern else 5) + 2 * ("n_vertices" not in options)
        assert devices.n_trades == n_expected
        np.testing.assert_array_equal(D.vertex_ids, A.vertex_ids)
        assert (D.nnz, D.info.min_weight, D.ingest_report) == (A.nnz, A.info.min_weight, A.ingest_report)
        assert rank(D).digest() == rank(A).digest()


def test_entries_that_do_not_fit_on_a_device_are_exchanged_by_hosts(devices, sources, in_process, monkeypatch):
    monkeypatch.setattr(RowSample, "find_bytes", lambda *_: 1 << 40)
    for name, n_trades in (("numbers", 0), ("gaps", 2)):
        options = {"n_vertices": N} if name == "numbers" else {}
        with mg.read_edges(sources[name], in_process(3), **options) as D:
            assert devices.n_trades == n_trades
            assert rank(D).digest() == rank(mg.ingest(sources[name], **options)).digest()


def test_errors_name_ids_that_devices_have_numbered(devices, sources, in_process):
    with pytest.raises(SourceError, match="has a self loop and self_loops='error'"):
        mg.read_edges(sources["gaps"], in_process(3), self_loops="error")
    with pytest.raises(SourceError, match=r"the entry \(\d+, \d+\) occurs more than once") as raised:
        mg.read_edges(sources["gaps"], in_process(3), duplicates="error")
    ids = [int(own) for own in re.findall(r"\((\d+), (\d+)\)", str(raised.value))[0]]
    assert [own % 3 for own in ids] == [2, 2]


def test_an_error_on_one_device_ends_the_others(devices, sources, in_process, monkeypatch):
    monkeypatch.setattr(device_shard, "count_infinite", lambda data: 1)
    with pytest.raises(SourceError, match="infinite"):
        mg.read_edges(sources["weighted"], in_process(3), n_vertices=N)


def test_devices_of_workers_that_nccl_connects():
    assert ingest.find_devices(WorkerPlacement("cpu", "peer"), None) is None
    assert ingest.find_devices(WorkerPlacement("cuda", "peer", 100), None) is None
    offers = [ingest.find_devices(WorkerPlacement("cuda", "nccl", 100), most) for most in (None, 60)]
    assert [(offer.most_bytes, offer.may_share) for offer in offers if offer is not None] == [(100, True), (60, True)]


def test_no_edges(in_process, tmp_path):
    schema = pa.schema([("source", pa.int32()), ("target", pa.int32())])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    with mg.read_edges(tmp_path / "a.parquet", in_process(3), n_vertices=5) as D:
        assert (D.shape, D.nnz) == ((5, 5), 0)
        assert mg.pagerank(D).values.tolist() == [0.2] * 5
        assert (D @ np.ones(5)).tolist() == [0.0] * 5


def test_computations_are_those_of_one_process(sources, in_process):
    source, options = sources["weighted"], {"n_vertices": N}
    A = mg.ingest(source, **options)
    with mg.read_edges(source, in_process(3), **options) as D:
        x = np.random.default_rng(2).random((N, 3))
        np.testing.assert_allclose(D @ x, A @ x, rtol=1e-13)
        given: dict[str, Any] = {"personalization": [{1: 1.0}, {2: 1.0}, {3: 1.0, 4: 2.0}]}
        assert mg.pagerank_batch(D, **given).digest() == mg.pagerank_batch(A, **given).digest()
        found, wanted = (mg.katz(each, alpha=1e-4).values for each in (D, A))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        heavy = dict.fromkeys(range(N), 1e6)
        found, wanted = (mg.pagerank(each, out_weight=heavy).values for each in (D, A))
        assert found.tobytes() == wanted.tobytes()
        with pytest.raises(KindError, match="x @ D needs the transpose"):
            x.T @ D


def test_a_matrix_market_file_and_a_stochastic_matrix(in_process, tmp_path):
    lines = ["%%MatrixMarket matrix coordinate real general", "3 3 4", "1 2 0.5", "3 2 0.5", "2 1 1.0", "1 3 1.0"]
    (tmp_path / "a.mtx").write_text("\n".join(lines) + "\n")
    client = in_process(3)
    with mg.read_edges(tmp_path / "a.mtx", client) as D:
        assert D.kind == "matrix"
        assert (D @ [1.0, 2.0, 4.0]).tolist() == [5.0, 1.0, 1.0]
    with mg.read_edges(tmp_path / "a.mtx", client, kind="stochastic") as D:
        wanted = rank(mg.ingest(tmp_path / "a.mtx", kind="stochastic"))
        assert rank(D).digest() == wanted.digest()


def test_a_dask_dataframe(in_process):
    frames, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    frame = frames.from_pandas(pd.DataFrame({"a": np.arange(500) % 71, "b": np.arange(500) % 37}), npartitions=6)
    with mg.read_edges(frame, in_process(3)) as D:
        assert rank(D).digest() == rank(mg.ingest(frame)).digest()


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an id out of range": ({"n_vertices": 100}, SourceError, r"expected an id from 0 to 99 \(n_vertices=100\)"),
    "a missing column": ({"columns": ["from", "target"]}, SourceError, "from"),
    "an invalid rule": ({"duplicates": "last"}, OptionError, "duplicates must be"),
    "an invalid precision": ({"precision": "half"}, OptionError, "precision must be"),
    "an option that no reader has": ({"n_cols": 3}, OptionError, "n_cols"),
    "an option of a store": ({"transpose": True}, OptionError, "transpose= is an option of ingest alone"),
    "loops": ({"self_loops": "error"}, SourceError, "has a self loop and self_loops='error'"),
    "repeated edges": ({"duplicates": "error"}, SourceError, "occurs more than once and duplicates='error'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_cause_and_leave_nothing(name, sources, in_process):
    options, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        mg.read_edges(sources["numbers"], in_process(3), **options)


def test_what_workers_cannot_read_is_named(in_process, tmp_path):
    with pytest.raises(OptionError, match=r"cannot read .*; pass them to mg\.ingest, and distribute its matrix"):
        mg.read_edges(np.eye(3), in_process(3))
    with pytest.raises(OptionError, match=r"write them to Parquet files, or ingest them without client="):
        mg.read_edges([(0, 1), (1, 0)], in_process(3))
    with pytest.raises(OptionError, match="read_edges needs client="):
        mg.read_edges("edges.parquet", None)


def test_rows_that_do_not_fit_name_the_store(sources, in_process, monkeypatch):
    remedy = r"use more workers, or ingest the edges into a store first"
    with pytest.raises(CapacityError, match=f"needs .* of host memory on one of them, .*; {remedy}"):
        mg.read_edges(sources["numbers"], in_process(3), host_memory=1000)
    join = ingest_steps.Cluster.join

    def join_small(cluster, *given, **named):
        return [replace(worker, memory=1000) for worker in join(cluster, *given, **named)]

    monkeypatch.setattr(ingest_steps.Cluster, "join", join_small)
    monkeypatch.setattr(
        ingest_steps, "make_budget", lambda memory, free, threads, folder: MemoryBudget(1 << 20, 2, folder)
    )
    with pytest.raises(
        CapacityError, match=f"2,000 entries take .* on each of 3 workers, and one of them has .*; {remedy}"
    ):
        mg.read_edges(sources["numbers"], in_process(3))


def test_what_needs_a_store_says_so(sources, in_process, tmp_path):
    with mg.read_edges(sources["numbers"], in_process(3)) as D:
        with pytest.raises(
            OptionError, match=r"is in no store, and has no digest.*ingest the edges into a store first"
        ):
            mg.pagerank(D, checkpoint=mg.Checkpoint(tmp_path / "kept"))
        with pytest.raises(ClusterError, match="cannot be read again, as they are in no store"):
            D.redistribute()
        with pytest.raises(OptionError, match="the workers alone have the entries of this matrix"):
            D.stored.read_array("indices")
        with pytest.raises(KindError, match=r"^HITS needs the transpose; this matrix is in no store, .*transpose=True"):
            mg.hits(D)
        with pytest.raises(
            KindError, match=r"^x @ D needs the transpose; this matrix is in no store, .*transpose=True"
        ):
            np.ones(D.shape[0]) @ D
        assert mg.pagerank(D).matrix.get("digest", "") == ""
    with pytest.raises(ClosedError, match="was closed; read the edges again"):
        mg.pagerank(D)


def test_phases_are_reported(sources, in_process):
    heard: list[str] = []
    with mg.read_edges(sources["names"], in_process(3), progress=on_phases(lambda name, *_: heard.append(name))):
        pass
    steps = ["join", "begin", "read", "number", "exchange", "sort", "add up columns", "load"]
    assert [name for name in dict.fromkeys(heard) if name in steps] == ["join", *steps[1:]]


@pytest.mark.slow
def test_a_lost_worker_ends_the_run(sources):
    with start_cluster(2) as cluster, Client(cluster) as client, mg.read_edges(sources["numbers"], client) as D:
        [pid, _] = client.run(os.getpid).values()

        def kill(event):
            if event.iteration == 3:
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(WorkerLostError, match="cannot be read again, as they are in no store"):
            mg.pagerank(D, norm="fixed", max_iter=10_000_000, progress=on_events(kill))


@pytest.mark.slow
def test_a_worker_that_is_lost_while_it_reads_is_not_waited_for(sources, monkeypatch):
    await_done, are_done = ingest_steps.Cluster.await_done, list[bool]()

    def hear(cluster, tasks):
        await_done(cluster, tasks)
        are_done.extend(task.done() for task in tasks)

    monkeypatch.setattr(ingest_steps.Cluster, "await_done", hear)
    with start_cluster(2) as cluster, Client(cluster) as client:
        pids = [*client.run(os.getpid).values()][:1]

        def kill(phase, *_):
            if phase == "read" and pids:
                os.kill(pids.pop(), signal.SIGKILL)

        with pytest.raises(WorkerLostError, match="during read"):
            mg.read_edges(sources["numbers"], client, progress=on_phases(kill))
    assert are_done == [True], "of the worker that is left"


def test_columns_stay_until_all_are_read(sources):
    """A reader of all may keep them for itself; one of a part may not."""
    info = mg.ingest(sources["numbers"]).stored.info
    arrays = {"indptr": np.arange(4, dtype=np.int64) + 7, "indices": np.array([2, 0, 1], np.int32)}
    rows = WorkerRows(info=info, place="", arrays=arrays, first_row=5, first_entry=7, backend="cpu", group=None)
    part = rows.read_array("indices", 8, 10)
    part[:] = 9
    assert rows.read_array("indices", 7, 8).tolist() == [2]
    assert rows.read_array("indices", 7).tolist() == [2, 0, 1]
    assert "indices" not in rows.arrays
