"""Graphs that the workers of a cluster make: the store that one process makes."""

from __future__ import annotations

import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.distribute import making
from mgspmv.errors import CapacityError, ClusterError, OptionError
from tests.support.clusters import check_left, find_left, start_cluster
from tests.support.waiting import HANG_S

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rmat": ("rmat", {"scale": 12}),
    "rmat, all kept": ("rmat", {"scale": 12, "duplicates": "keep"}),
    "rmat, not scrambled": ("rmat", {"scale": 12, "scramble": False, "duplicates": "keep"}),
    "rmat, both ways, no loops": ("rmat", {"scale": 11, "symmetrize": True, "self_loops": "drop"}),
    "rmat as matrix": ("rmat", {"scale": 11, "kind": "matrix", "seed": 77}),
    "rmat of a few": ("rmat", {"scale": 2, "edge_factor": 3, "a": 0.4, "b": 0.3, "c": 0.1}),
    "rmat without edges": ("rmat", {"scale": 1, "edge_factor": 0}),
    "rmat with weights": ("rmat", {"scale": 11, "weights": True, "seed": 2**64 - 1}),
    "rmat with weights, all kept": ("rmat", {"scale": 11, "weights": True, "duplicates": "keep", "dtype": "float32"}),
    "rmat with more than a chunk": ("rmat", {"scale": 17, "edge_factor": 20, "duplicates": "keep"}),
    "uniform": ("uniform", {"n_vertices": 1000, "n_edges": 50_000}),
    "uniform of one": ("uniform", {"n_vertices": 1, "n_edges": 5}),
    "stencil": ("stencil2d", {"nx": 70, "ny": 30}),
    "stencil as graph": ("stencil3d", {"nx": 9, "ny": 8, "nz": 7, "pattern": True}),
    "banded": ("banded", {"n": 500, "bandwidth": 3}),
}


CHUNKED = "rmat with more than a chunk"


def check_same(made: Path, wanted: Path) -> None:
    """What both stores say of themselves, but for when they were made."""
    infos = [mg.open_matrix(path).info for path in (made, wanted)]
    for field in fields(infos[0]):
        if field.name not in ("url", "version", "created", "provenance"):
            assert getattr(infos[0], field.name) == getattr(infos[1], field.name), field.name
    assert infos[0].provenance | {"created": ""} == infos[1].provenance | {"created": ""}
    assert mg.verify(made) == []


def check_store(name, client, tmp_path):
    model, options = CASES[name]
    mg.generate(model, tmp_path / "wanted", **options)
    before, phases = find_left(client), []
    made = mg.generate(
        model, tmp_path / "made", **options, client=client, on_progress=lambda phase, *_: phases.append(phase)
    )
    check_same(tmp_path / "made", tmp_path / "wanted")
    assert made.version == mg.open_matrix(tmp_path / "made").info.version
    wanted = ["join", "count", "make", "sum", "write"]
    assert list(dict.fromkeys(phases)) == [p for p in wanted if p != "sum" or made.kind != "matrix"]
    check_left(client, before)


@pytest.mark.parametrize("name", ["rmat with weights", "stencil as graph"])
def test_the_store_of_processes_is_that_of_one(name, client, tmp_path):
    check_store(name, client, tmp_path)


@pytest.mark.parametrize("model", ["rmat", "uniform", "stencil", "banded"])
def test_the_store_of_threads_is_that_of_one_process(model, in_process, tmp_path):
    for name in CASES.keys() - {CHUNKED}:
        if name.startswith(model):
            check_store(name, in_process(3), tmp_path / name)


@pytest.mark.slow
def test_a_store_with_more_than_a_chunk(client, tmp_path):
    check_store(CHUNKED, client, tmp_path)


def test_what_a_cluster_does_not_make(client, tmp_path):
    for options, message in [
        ({"transpose": True}, "on a cluster a graph is made without transpose=, order="),
        ({"order": "degree"}, "reorder it afterwards"),
        ({"duplicates": "error"}, "duplicates='error'"),
        ({"kind": "stochastic"}, "kind='stochastic'"),
        ({"scale": 99}, "scale must be an integer from 1 to 40, not 99"),
        ({"backend": "gpu"}, "backend must be one of 'auto', 'cpu', 'cuda', not 'gpu'"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"memory": "4GiB"}, "memory= and scratch= are for making in this process; leave out client=, or these"),
        ({"scratch": "."}, "memory= and scratch= are for making in this process; leave out client=, or these"),
    ]:
        with pytest.raises(OptionError) as caught:
            mg.generate("rmat", tmp_path / "graph", client=client, **({"scale": 8} | options))
        assert message in str(caught.value), options
        assert not (tmp_path / "graph").exists(), options


def test_a_worker_that_has_no_device(client, tmp_path):
    with pytest.raises(ClusterError, match=r"needs a GPU on each of the 4 workers, and worker 0 \(.*\) has none: "):
        mg.generate("rmat", tmp_path / "graph", scale=8, client=client, backend="cuda")


def test_a_worker_that_has_too_little_memory(client, tmp_path, monkeypatch):
    monkeypatch.setattr(making, "HOST_BYTES", 1e9)
    with pytest.raises(CapacityError, match=r"worker 0 .* would need \S+ GB of host memory for its [\d,]+ entries"):
        mg.generate("rmat", tmp_path / "graph", scale=8, client=client)
    check_nothing_whole(tmp_path / "graph")


OTHER_PHASES = [pytest.param(phase, marks=pytest.mark.weekly) for phase in ("count", "sum", "write")]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["make", *OTHER_PHASES])
def test_a_worker_that_dies_leaves_nothing_that_looks_whole(phase, tmp_path):
    with start_cluster(3) as cluster, Client(cluster) as client:
        pids = client.run(os.getpid)

        def on_progress(reached, done, total) -> None:
            if reached == phase and pids:
                os.kill(pids.pop(sorted(pids)[0]), signal.SIGKILL)

        with pytest.raises(ClusterError):
            mg.generate("rmat", tmp_path / "graph", scale=16, client=client, timeout=8, on_progress=on_progress)
        check_nothing_whole(tmp_path / "graph")
        client.wait_for_workers(3, timeout=HANG_S)
        mg.generate("rmat", tmp_path / "graph", scale=8, client=client)
    assert mg.verify(tmp_path / "graph") == []


def check_nothing_whole(path: Path) -> None:
    with pytest.raises(mg.errors.StoreNotFoundError):
        mg.open_matrix(path)
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["rmat", "rmat, both ways, no loops", "rmat with weights, all kept", CHUNKED, "uniform of one", "stencil as graph"],
)
def test_devices_make_the_same_store(name, tmp_path, monkeypatch):
    from mgspmv.distribute.connect import start_cuda
    from mgspmv.kernels import generated

    model, options = CASES[name]
    mg.generate(model, tmp_path / "wanted", **options)
    with start_cluster(2, processes=False) as cluster, Client(cluster) as client:
        for limit in (generated.MOST_PIECE, 3000):  # in one piece and in many
            monkeypatch.setattr(generated, "MOST_PIECE", limit)
            mg.generate(model, tmp_path / "made", **options, client=client, backend="cuda", overwrite=True)
            check_same(tmp_path / "made", tmp_path / "wanted")
    if name == "rmat":
        with start_cuda(1) as cluster, Client(cluster) as client:
            mg.generate(model, tmp_path / "own", **options, client=client)
        check_same(tmp_path / "own", tmp_path / "wanted")
