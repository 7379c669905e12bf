"""Graphs built on a device that are ranked while their store is written."""

import errno
import logging
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.api import stores
from mgspmv.errors import SourceError, StoreError, StoreExistsError, StoreUnfinishedError
from mgspmv.ingest import store_writing
from mgspmv.store import write
from mgspmv.store.held import HeldMatrix
from tests.ingest.test_device_sorting import GRAPHS, sorters  # noqa: F401  # a fixture

MOST_S = 300
"""Seconds after which a thread that waits in vain fails."""


class Writer:
    """What the thread does that writes a store: nothing, until `gate` is set; then it may fail."""

    def __init__(self):
        self.gate, self.error, self._write = threading.Event(), None, write.write_array

    def __call__(self, *arguments):
        if threading.current_thread().name == "mgspmv-store":
            assert self.gate.wait(MOST_S)
            if self.error is not None:
                raise self.error
        return self._write(*arguments)


@pytest.fixture
def writer(sorters, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stores, "sort_on_device", sorters[0])
    monkeypatch.setattr(write, "write_array", writer := Writer())
    yield writer
    writer.gate.set()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "g.zarr"


def begin(place, name="float32", **options):
    return mg.ingest(GRAPHS[name], place, wait=False, **options)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_ranked_before_they_are_written(name, writer, place):
    wanted = mg.ingest(GRAPHS[name], transpose=True)
    ranks = mg.pagerank(wanted)
    with begin(place, name, transpose=True) as A:
        with pytest.raises(StoreUnfinishedError):
            mg.open(place)
        found = mg.pagerank(A)
        assert found.digest() == ranks.digest()
        assert found.ids.tolist() == ranks.ids.tolist()
        assert "digest" not in found.matrix
        assert found.matrix | {"digest": wanted.info.digest} == ranks.matrix | {"url": str(place)}
        assert mg.pagerank(A.T).digest() == mg.pagerank(wanted.T).digest()
        for each in ("shape", "nnz", "kind", "dtype", "ingest_report"):
            assert getattr(A, each) == getattr(wanted, each)
        assert repr(A) == repr(wanted).replace(wanted.info.url, str(place))
        held = A.stored
        assert isinstance(held, HeldMatrix)
        writer.gate.set()
    assert A.stored is held.written
    assert A.info == held.known_info == mg.open(place).info
    assert A.info.digest == wanted.info.digest
    assert mg.verify(place) == []
    assert mg.pagerank(A).matrix["digest"] == wanted.info.digest
    assert mg.pagerank(A.T).digest() == mg.pagerank(wanted.T).digest()
    assert A.T.info.shape == wanted.T.info.shape


EARLY = {
    "product": lambda A: A @ np.ones(A.shape[1]),
    "hits": lambda A: mg.hits(A).hubs.values,
    "katz": lambda A: mg.katz(A, alpha=0.01).values,
    "eigenvector": lambda A: mg.eigenvector_centrality(A).values,
    "batch": lambda A: mg.pagerank_batch(A, [{3: 1.0}, {5: 1.0}]).values,
    "top": lambda A: mg.pagerank(A, stop="topk:5").values,
    "start": lambda A: mg.pagerank(A, nstart=mg.pagerank(GRAPHS["dense"])).values,
    "plan": lambda A: A.plan(backend="cpu").fits,
    "vertices": lambda A: A.find_vertices([3, 5]),
    "entries": lambda A: A.to_scipy().data,
}


@pytest.mark.parametrize("call", EARLY.values(), ids=EARLY)
def test_calls_that_do_not_wait(call, writer, place):
    with begin(place, transpose=True) as A:
        wanted = call(mg.ingest(GRAPHS["float32"], transpose=True))
        np.testing.assert_allclose(call(A), wanted, rtol=1e-5, atol=1e-9)
        assert not A.stored.writing.done()
        writer.gate.set()


LATE = {
    "info": lambda A, _: A.info.digest,
    "html": lambda A, _: A.info.digest in A._repr_html_(),
    "transpose": lambda A, _: A.T.info.digest,
    "digest": lambda A, _: A.stored.digest,
    "address": lambda A, _: A.stored.address().digest,
    "address of the transpose": lambda A, _: A.T.stored.address().is_transpose,
    "verify": lambda A, _: mg.verify(A),
    "ingest": lambda A, _: mg.ingest(A, duplicates="first").info.digest,
    "update": lambda A, _: mg.update(A, insert=[(0, 1, 2.0)]).info.digest,
    "subgraph": lambda A, folder: mg.subgraph(A, folder / "s.zarr", min_weight=0.5).info.digest,
    "reorder": lambda A, _: mg.reorder(A, method="degree").info.digest,
    "export": lambda A, folder: (mg.export(A, folder / "g.csv").digest, (folder / "g.csv").read_text()),
    "checkpoint": lambda A, folder: mg.pagerank(A, checkpoint=folder / "checkpoint").digest(),
}


@pytest.mark.parametrize("call", LATE.values(), ids=LATE)
def test_calls_that_wait_for_the_store(call, writer, tmp_path):
    for folder in (wanted := tmp_path / "wanted", found := tmp_path / "found"):
        folder.mkdir()
    with begin(found / "g.zarr", transpose=True) as A:
        assert not A.stored.writing.done()
        writer.gate.set()
        assert call(A, found) == call(mg.ingest(GRAPHS["float32"], wanted / "g.zarr", transpose=True), wanted)


def test_errors_of_the_writing_are_raised_once(writer, place, caplog):
    A = begin(place)
    writer.error = OSError(errno.ENOSPC, "no space left on device", str(place))
    writer.gate.set()
    with caplog.at_level(logging.WARNING, "mgspmv.calls"), pytest.raises(StoreError, match=r"g\.zarr: .*free some"):
        A.close()
    A.close()
    [record] = caplog.records
    assert (record.levelname, record.call, record.url) == ("WARNING", "ingest", str(place))
    assert not place.exists()
    with pytest.raises(StoreError, match="free some"):
        _ = A.info
    assert mg.pagerank(A).digest() == mg.pagerank(GRAPHS["float32"]).digest()


def test_errors_of_the_source_are_raised(writer, place, monkeypatch):
    def fail(_):
        raise SourceError("it has changed")

    before = mg.ingest(GRAPHS["dense"], place).info
    monkeypatch.setattr(store_writing, "settle", fail)
    with pytest.raises(SourceError, match="it has changed"), begin(place, overwrite=True):
        writer.gate.set()
    assert mg.open(place).info == before
    with pytest.raises(SourceError, match="more than once"):
        begin(place, overwrite=True, duplicates="error")
    assert mg.open(place).info == before


@pytest.mark.parametrize("fails", [False, True])
def test_errors_of_the_body_come_first(fails, writer, place):
    writer.error = StoreError("the folder is gone") if fails else None
    writer.gate.set()
    with pytest.raises(ZeroDivisionError) as error, begin(place) as A:
        _ = 1 / 0
    assert getattr(error.value, "__notes__", []) == [f"{place} was not written: the folder is gone"] * fails
    A.close()
    assert place.exists() == (not fails)


def test_errors_that_the_body_met_are_not_noted(writer, place):
    writer.error = StoreError("the folder is gone")
    writer.gate.set()
    with pytest.raises(StoreError, match="the folder is gone") as error, begin(place) as A:
        _ = A.info
    assert not hasattr(error.value, "__notes__")


def test_the_version_before_is_kept_until_the_end(writer, place):
    before = mg.ingest(GRAPHS["dense"], place)
    with pytest.raises(StoreExistsError):
        begin(place)
    with begin(place, overwrite=True) as A:
        assert mg.open(place).info == before.info
        assert mg.pagerank(place).digest() == mg.pagerank(GRAPHS["dense"]).digest()
        writer.gate.set()
    assert [info.digest for info in mg.list_versions(place)] == [mg.ingest(GRAPHS["float32"]).info.digest]
    assert A.info == mg.open(place).info


def test_another_writer_that_was_faster(writer, place):
    mg.ingest(GRAPHS["dense"], place)
    A = begin(place, overwrite=True)
    other = mg.ingest(GRAPHS["gaps"], place, overwrite=True)
    writer.gate.set()
    with pytest.raises(StoreError):
        A.close()
    assert mg.open(place).info == other.info


HELD = ("indptr", "indices", "out_degree", "data", "out_weight")


def test_progress_ends_with_the_call(writer, place):
    phases, all_phases = [], []
    with begin(place, progress=phases.append):
        told = [phase.name for phase in phases]
        writer.gate.set()
    assert [phase.name for phase in phases] == told
    mg.ingest(GRAPHS["float32"], progress=all_phases.append)
    assert [phase.name for phase in all_phases] == [*told, *(f"write {name}" for name in HELD)]


def test_memory_of_the_process(writer):
    with mg.ingest(GRAPHS["float32"], wait=False) as A:
        assert mg.pagerank(A).digest() == mg.pagerank(GRAPHS["float32"]).digest()
        writer.gate.set()
    assert A.info.digest == mg.ingest(GRAPHS["float32"]).info.digest


@pytest.mark.parametrize("options", [{"kind": "matrix"}, {"order": "degree"}])
def test_what_is_not_built_on_a_device_is_written_first(options, writer, place):
    wanted = mg.ingest(GRAPHS["float32"], **options).info.digest
    assert not isinstance(begin(place, **options).stored, HeldMatrix)
    assert mg.open(place).info.digest == wanted


def test_without_a_device_the_store_is_written_first(place, monkeypatch):
    monkeypatch.setattr(stores, "sort_on_device", lambda host: None)
    with begin(place) as A:
        assert not isinstance(A.stored, HeldMatrix)
        assert mg.open(place).info == A.info


AT_THE_END = """
import sys, threading
ending = threading.Event()
threading._register_atexit(ending.set)  # called last, once all pools of threads are closed
import mgspmv as mg
from mgspmv.api import stores
from mgspmv.ingest import device_sorting
from mgspmv.ingest.device_sorting import DeviceSorter
from mgspmv.store import write
from tests.ingest.test_device_sorting import GRAPHS, MUCH, HostStaging

device_sorting.LEAST = 1
stores.sort_on_device = lambda host: DeviceSorter(host, HostStaging(), MUCH)
write_array = write.write_array

def write_at_the_end(*arguments):
    assert ending.wait(60)
    return write_array(*arguments)

write.write_array = write_at_the_end
mg.pagerank(mg.ingest(GRAPHS["weighted names"], sys.argv[1], wait=False))
"""


@pytest.mark.slow
def test_a_process_that_ends_during_the_writing_says_so(place):
    command = [sys.executable, "-c", AT_THE_END, str(place)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=MOST_S)
    assert re.search(r"g\.zarr was not written: .*; close the matrix, or use it in a `with`", done.stderr)
    with pytest.raises(StoreError):
        mg.open(place)
    assert mg.ingest(GRAPHS["weighted names"], place).info.digest == mg.ingest(GRAPHS["weighted names"]).info.digest
