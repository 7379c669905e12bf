"""Ranks of many vectors: read by label, saved and loaded, and files that are not what they should be."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import mgspmv as mg
from mgspmv.batch_results import BatchSolution
from mgspmv.errors import (
    ChecksumError,
    MissingChunkError,
    OptionError,
    StoreDamagedError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.model import Event, Status
from mgspmv.results import Solution
from mgspmv.validation import seal

MATRIX = {"url": "web.zarr", "digest": "aa", "shape": [4, 4], "nnz": 9, "kind": "graph"}
NAMES = np.array(["amsel", "drossel", "fink", "star"], dtype=object)


def make_batch(*, top=None, ids=None, labels=("a", "b", "c"), dtype=np.float64):
    values = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [math.nan, 0.5, 0.25, 0.25]], dtype)
    kept = {"values": values, "top_ids": None, "top_ranks": None, "_ids": ids}
    if top is not None:
        where = np.array([[3, 2], [0, 1], [1, 2]])
        top_ids = where if ids is None else ids[where]
        kept = {"values": None, "top_ids": top_ids, "top_ranks": np.take_along_axis(values, where, axis=1)}
        kept["_ids"] = None
    return BatchSolution(
        labels=labels,
        alphas=np.array([0.85, 0.5, 0.9]),
        statuses=(Status.CONVERGED, Status.MAX_ITER, Status.NON_FINITE),
        changes=((0.1, 1e-7), (0.3, 0.2, 0.1), (math.nan,)),
        error_bounds_l1=np.array([1e-7, 0.5, math.inf]),
        seconds={"load": 0.5, "product": 1.5},
        options={"alpha": 0.85, "width": 4, "steps": 3, "top": top},
        matrix=MATRIX,
        memory={"held_bytes": [100]},
        events=(Event("r1", 0, 1, 0.3, (0.5,), (0.0,), (0.0,), (8,), (100,)),),
        **kept,
    )


def test_vectors_are_found_by_label_and_by_number():
    batch = make_batch(ids=NAMES)
    one = batch["b"]
    assert isinstance(one, Solution)
    assert (one.non_finite, str(batch["c"].non_finite)[:19]) == (None, "vertex amsel became")
    assert (one.status, one.iterations, one.changes) == (Status.MAX_ITER, 3, (0.3, 0.2, 0.1))
    assert (one.error_bound_l1, one.options["alpha"], one.seconds) == (0.5, 0.5, {})
    assert one.values.tolist() == batch[1].values.tolist() == [0.7, 0.1, 0.1, 0.1]
    assert one.top(1) == [("amsel", 0.7)]
    assert [s.status for s in batch] == list(batch.statuses)
    assert (len(batch), batch.iterations.tolist()) == (3, [2, 3, 1])
    assert make_batch(labels=(7, 0, 1))[0].status is Status.MAX_ITER
    for wrong in ("d", 3, -1, None):
        with pytest.raises(OptionError, match="there is no vector"):
            batch[wrong]
    assert repr(batch) == ("<BatchSolution: 3 vectors, 1 succeeded, 3 passes of up to 4, 4 ranks of each, 2 s>")
    assert "the highest ranks of each" in repr(make_batch(top=2))
    assert "1 succeeded" in batch._repr_html_()


def test_highest_of_each():
    whole, highest = make_batch(ids=NAMES), make_batch(top=2, ids=NAMES)
    assert (
        highest.top()
        == whole.top(2)
        == {
            "a": [("star", 0.4), ("fink", 0.3)],
            "b": [("amsel", 0.7), ("drossel", 0.1)],
            "c": [("drossel", 0.5), ("fink", 0.25)],
        }
    )
    assert highest.top(1) == whole.top(1)
    assert [len(pairs) for pairs in whole.top().values()] == [4, 4, 4]
    with pytest.raises(OptionError, match="only the 2 highest ranks were kept, not 3; rank again with keep_top=3"):
        highest.top(3)
    with pytest.raises(OptionError, match="has only its highest ranks: read them with top"):
        highest["a"]
    for batch in (whole, highest):
        with pytest.raises(OptionError, match="k must be at least 1, not 0"):
            batch.top(0)


def test_labels_and_ids():
    batch, highest = make_batch(ids=NAMES), make_batch(top=2, ids=NAMES)
    assert ("a" in batch, "z" in batch, "a" in highest) == (True, False, True)
    assert (0 in batch, len(batch) in batch, -1 in batch) == (True, False, False)
    assert batch.ids.tolist() == NAMES.tolist()
    assert make_batch().ids.tolist() == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="the batch has only its highest ranks: read them with top"):
        _ = highest.ids
    with pytest.raises(KeyError) as caught:
        batch["z"]
    assert str(caught.value) == "there is no vector 'z'; labels lists the 3 vectors"
    assert batch["b"]["amsel"] == 0.7


@pytest.mark.parametrize("ids", [None, NAMES], ids=["none", "strings"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_are_long_in_memory_too(ids, dtype):
    batch = make_batch(ids=ids, dtype=dtype)
    wanted = [(label, *pair) for label, solution in zip(batch.labels, batch, strict=True) for pair in solution]
    np.testing.assert_equal(list(batch.to_pandas().itertuples(index=False, name=None)), wanted)
    np.testing.assert_equal(batch.to_polars().rows(), wanted)
    table = batch.to_arrow()
    np.testing.assert_equal(list(zip(*table.to_pydict().values(), strict=True)), wanted)
    assert table.column_names == ["vector", "id", "rank"]
    assert table["rank"].type == pa.from_numpy_dtype(dtype)
    sorted_ranks = batch.to_pandas(sort=True)["rank"]
    assert sorted_ranks[:11].is_monotonic_decreasing
    assert np.isnan(sorted_ranks[11])
    assert make_batch(top=2, ids=NAMES).to_polars().rows() == [
        (label, *pair) for label, pairs in make_batch(ids=NAMES).top(2).items() for pair in pairs
    ]


def test_summaries_are_those_of_each_vector():
    batch = make_batch()
    np.testing.assert_equal(batch.summary(3), {label: batch[label].summary(3) for label in batch.labels})
    with pytest.raises(OptionError, match="vector 'a' has only its highest ranks"):
        make_batch(top=2).summary()


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("ids", [None, np.array([-5, 0, 7, 2**40]), NAMES], ids=["none", "integers", "strings"])
@pytest.mark.parametrize("top", [None, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_saved_is_loaded(tmp_path, suffix, ids, top, dtype):
    labels = ("a", "b", "c") if dtype == np.float32 else (7, 3, 11)
    batch, path = make_batch(top=top, ids=ids, labels=labels, dtype=dtype), tmp_path / f"ranks{suffix}"
    batch.save(path)
    loaded = mg.load_batch(path)
    assert loaded.digest() == batch.digest()
    for name, value in vars(batch).items():
        assert type(getattr(loaded, name)) is type(value)
        np.testing.assert_equal(getattr(loaded, name), value)
    with pytest.raises(StoreExistsError):
        batch.save(path)
    batch.save(path, overwrite=True)
    with pytest.raises(StoreFormatError, match="holds the ranks of a batch of vectors; read it with load_batch"):
        mg.load_solution(path)


def test_tables_are_long(tmp_path):
    make_batch(top=2, ids=NAMES).save(tmp_path / "ranks.parquet")
    table = pq.read_table(tmp_path / "ranks.parquet").to_pydict()
    assert table == {
        "vector": ["a", "a", "b", "b", "c", "c"],
        "id": ["star", "fink", "amsel", "drossel", "drossel", "fink"],
        "rank": [0.4, 0.3, 0.7, 0.1, 0.5, 0.25],
    }
    make_batch().save(tmp_path / "whole.parquet")
    assert pq.read_table(tmp_path / "whole.parquet")["id"].to_pylist() == [0, 1, 2, 3] * 3
    make_batch(top=2, ids=NAMES).save(tmp_path / "ranks.csv")
    lines = (tmp_path / "ranks.csv").read_text().splitlines()
    assert lines[:3] == ["vector,id,rank", '"a","star",0.4', '"a","fink",0.3']
    assert len(lines) == 7


def test_one_vector_is_no_batch(tmp_path):
    for suffix in (".zarr", ".parquet"):
        make_batch()["a"].save(tmp_path / f"one{suffix}")
        with pytest.raises(StoreFormatError, match="holds the ranks of one vector; read it with load_solution"):
            mg.load_batch(tmp_path / f"one{suffix}")


def test_files_that_are_not_what_they_should_be(tmp_path):
    path = tmp_path / "ranks.zarr"
    for wrong, error in ((tmp_path / "ranks.csv", OptionError), (path, StoreNotFoundError)):
        with pytest.raises(error):
            mg.load_batch(wrong)
    group = zarr.open_group(str(path), mode="w", attributes={"mgspmv_solution": None})
    with pytest.raises(StoreUnfinishedError):
        mg.load_batch(path)
    make_batch().save(path, overwrite=True)
    group = zarr.open_group(str(path))
    described = group.attrs["mgspmv_solution"]
    group["values"][0, 0] = 0.11
    with pytest.raises(ChecksumError, match="the ranks do not match their digest"):
        mg.load_batch(path)
    group.attrs["mgspmv_solution"] = described | {"labels": ["a", "b"]}
    with pytest.raises(StoreDamagedError, match="does not match its digest, so it was changed"):
        mg.load_batch(path)
    told = {name: value for name, value in described.items() if name != "sha256"}
    group.attrs["mgspmv_solution"] = seal(told | {"labels": ["a", "b"]})
    with pytest.raises(StoreDamagedError, match="there are 2 labels"):
        mg.load_batch(path)
    next(part for part in (path / "values" / "c").rglob("*") if part.is_file()).unlink()
    with pytest.raises(MissingChunkError):
        mg.load_batch(path)
    pq.write_table(pa.table({"vector": [1]}), tmp_path / "other.parquet")
    with pytest.raises(StoreFormatError, match="is a Parquet file without ranks"):
        mg.load_batch(tmp_path / "other.parquet")
