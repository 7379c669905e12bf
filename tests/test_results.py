"""Ranks: top-k, and files that give back what was saved or refuse to."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import mgspmv.saving
from mgspmv.errors import (
    ChecksumError,
    MissingChunkError,
    OptionError,
    ShapeError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.model import Event, Recovery, Status
from mgspmv.results import Solution, load_solution
from tests.support.memory import measure_peak

EVENT = Event("run", 0, 3, 1e-7, (0.5, 0.25), (0.1, 0.2), (0.0, 0.0), (8, 16), (100, 200))
INTEGER_IDS = np.array([7, -1, 2**62, 5], dtype=np.int64)
STRING_IDS = np.array(["ann", 'b "q", c', "çé", ""], dtype=object)


def make_solution(values=(0.1, 0.4, 0.3, 0.2), dtype=np.float64, ids=None, **fields):
    plain = {
        "status": Status.CONVERGED,
        "iterations": 3,
        "changes": (0.5, 1e-3, 1e-7),
        "seconds": {"load": 0.25, "product": 0.5, "exchange": 0.1},
        "error_bound_l1": 5e-7,
        "options": {"alpha": 0.85, "tol": 1e-6, "norm": "l1", "personalization": None},
        "matrix": {"url": "web.zarr", "digest": "abc", "shape": [4, 4], "nnz": 6, "kind": "graph"},
        "events": (EVENT,),
        "memory": {"host_peak_bytes": [1 << 33, 1 << 31], "held_bytes": [100, 200]},
    }
    return Solution(np.array(values, dtype=dtype), _ids=ids, **(plain | fields))


def assert_same(left, right):
    assert left.values.dtype == right.values.dtype
    assert left.values.tobytes() == right.values.tobytes()
    assert (left._ids is None) == (right._ids is None)
    assert left.ids.dtype == right.ids.dtype
    assert left.ids.tolist() == right.ids.tolist()
    for name in ("status", "iterations", "seconds", "options", "matrix", "events", "memory", "recoveries"):
        assert getattr(left, name) == getattr(right, name), name
    for name in ("changes", "error_bound_l1"):
        np.testing.assert_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("ids", [None, INTEGER_IDS, STRING_IDS], ids=["none", "int64", "string"])
def test_saved_is_loaded_to_the_same_bits(tmp_path, suffix, dtype, ids):
    solution = make_solution((1 / 3, 5e-324, 0.0, 2e-38), dtype, ids=ids)
    solution.save(tmp_path / f"ranks{suffix}")
    assert_same(load_solution(tmp_path / f"ranks{suffix}"), solution)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_non_finite_and_empty_are_kept(tmp_path, suffix):
    solution = make_solution(
        (np.nan, np.inf), status=Status.NON_FINITE, error_bound_l1=np.inf, changes=(np.nan, -np.inf)
    )
    solution.save(tmp_path / f"nan{suffix}")
    assert_same(load_solution(tmp_path / f"nan{suffix}"), solution)
    empty = make_solution((), events=(), changes=())
    empty.save(tmp_path / f"empty{suffix}")
    assert_same(load_solution(tmp_path / f"empty{suffix}"), empty)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_recoveries_are_kept(tmp_path, suffix):
    recoveries = (
        Recovery("lost", 12, 8, "3", "worker 3 is gone", 4.5, 4, 3),
        Recovery("lost", 20, 16, None, "the tasks were cancelled", 1.5, 3, 4),
    )
    solution = make_solution(recoveries=recoveries)
    solution.save(tmp_path / f"r{suffix}")
    assert_same(load_solution(tmp_path / f"r{suffix}"), solution)
    assert [recovery["worker"] for recovery in solution.to_dict()["recoveries"]] == ["3", None]


def test_zarr_at_a_url():
    solution = make_solution()
    solution.save("memory://results/ranks.zarr")
    assert_same(load_solution("memory://results/ranks.zarr"), solution)
    with pytest.raises(StoreExistsError, match="exists already"):
        solution.save("memory://results/ranks.zarr")
    make_solution((1.0,)).save("memory://results/ranks.zarr", overwrite=True)
    assert load_solution("memory://results/ranks.zarr").values.tolist() == [1.0]
    with pytest.raises(OptionError, match=r"only \.zarr is written to a URL"):
        solution.save("memory://results/ranks.csv")
    with pytest.raises(StoreNotFoundError):
        load_solution("memory://results/other.zarr")


@pytest.mark.parametrize("ids", [None, INTEGER_IDS, STRING_IDS], ids=["none", "int64", "string"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_csv_reads_back_to_the_same_floats(tmp_path, ids, dtype):
    solution = make_solution((1 / 3, 1e-7, 0.1, 2e-38), dtype, ids=ids)
    solution.save(tmp_path / "r.csv")
    with open(tmp_path / "r.csv", newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["id", "rank"]
    assert [name for name, _ in lines] == [str(i) for i in (range(4) if ids is None else ids)]
    assert np.array([rank for _, rank in lines]).astype(dtype).tobytes() == solution.values.tobytes()
    assert lines[2][1] == "0.1"
    assert (tmp_path / "r.csv").read_text(encoding="utf-8").startswith("id,rank\n")


def test_top():
    assert make_solution().top(2) == [(1, 0.4), (2, 0.3)]
    assert make_solution(ids=STRING_IDS).top(9) == [
        (STRING_IDS[i], v) for i, v in [(1, 0.4), (2, 0.3), (3, 0.2), (0, 0.1)]
    ]
    assert make_solution(ids=INTEGER_IDS).top(1) == [(-1, 0.4)]
    assert [type(part) for part in make_solution().top(1)[0]] == [int, float]
    assert make_solution(()).top() == []
    for k in (0, -3):
        with pytest.raises(OptionError, match=f"k must be at least 1, not {k}"):
            make_solution().top(k)


def test_digest_is_of_the_bits_and_not_of_their_order_in_memory():
    solution = make_solution()
    assert solution.digest() == make_solution(dtype=">f8").digest()
    assert solution.digest() == replace(solution, values=np.repeat(solution.values, 2)[::2]).digest()
    assert solution.digest() != make_solution(np.nextafter(solution.values, 1)).digest()


def test_to_dict_is_strict_json():
    solution = make_solution(changes=(1.0, np.nan), error_bound_l1=np.inf, options={"max_iter": np.int64(3)})
    summary = json.loads(json.dumps(solution.to_dict(), allow_nan=False))
    assert summary["status"] == "converged"
    assert (summary["n"], summary["change"], summary["error_bound_l1"]) == (4, "NaN", "Infinity")
    assert summary["options"] == {"max_iter": 3}
    assert summary["digest"] == solution.digest()


def test_repr_is_one_line():
    assert repr(make_solution()) == (
        "<Solution: converged after 3 iterations, last change 1e-07, L1 error <= 5e-07, 4 ranks, 0.85 s; "
        "highest: 1 0.4, 2 0.3, 3 0.2>"
    )
    assert "change" not in repr(make_solution(changes=()))
    assert repr(make_solution((), events=())).endswith("0 ranks, 0.85 s>")
    named = np.array(["ann", "two\nlines", "x" * 99, ""], dtype=object)
    assert r"highest: 'two\nlines' 0.4, 'xxx" in repr(make_solution(ids=named))
    assert len(repr(make_solution(ids=named)).splitlines()) == 1


def test_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"one-dimensional, they have shape \(1, 2\)"):
        make_solution([[1.0, 2.0]])
    with pytest.raises(ShapeError, match="2 ranks but 4 vertex ids"):
        make_solution((0.5, 0.5), ids=INTEGER_IDS)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet", ".csv"])
def test_existing_needs_overwrite(tmp_path, suffix):
    path = tmp_path / "new" / f"ranks{suffix}"
    make_solution().save(path)
    with pytest.raises(StoreExistsError, match="exists already; choose another name or pass overwrite=True"):
        make_solution().save(path)
    make_solution((0.5, 0.5)).save(path, overwrite=True)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if suffix != ".csv":
        assert load_solution(path).values.tolist() == [0.5, 0.5]


def test_overwrite_spares_what_is_not_a_result(tmp_path):
    for path in (tmp_path / "a.zarr", tmp_path / "b.parquet", tmp_path / "c.zarr"):
        path.mkdir()
        (path / "precious").write_text("x")
    zarr.open_group(tmp_path / "c.zarr", mode="a", attributes={"mgspmv": {"format_version": 1}})
    for path in (tmp_path / "a.zarr", tmp_path / "b.parquet", tmp_path / "c.zarr"):
        with pytest.raises(StoreExistsError, match="so it is not overwritten; choose another name"):
            make_solution().save(path, overwrite=True)
        assert (path / "precious").read_text() == "x"


@pytest.mark.parametrize("name", ["ranks.txt", "ranks", "ranks.npy"])
def test_unknown_suffix(tmp_path, name):
    with pytest.raises(OptionError, match=r"must end in \.zarr, \.parquet, \.csv"):
        make_solution().save(tmp_path / name)
    with pytest.raises(OptionError, match=r"loaded from \.zarr or \.parquet"):
        load_solution(tmp_path / name)


# --- scores, summaries, streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_a_solution_that_says_so(tmp_path, suffix, dtype):
    solution = make_solution(dtype=dtype, ids=STRING_IDS)
    scaled = solution.scale("minmax")
    assert (solution.scaler, scaled.scaler) == ("none", "minmax")
    assert scaled.values.tolist() == pytest.approx([0, 1, 2 / 3, 1 / 3], abs=1e-6)
    assert scaled.values.dtype == np.float64
    assert "scaler" not in solution.options
    assert scaled.options == solution.options | {"scaler": "minmax"}
    assert [name for name, _ in scaled.top()] == [name for name, _ in solution.top()]
    assert (scaled.error_bound_l1, scaled.changes) == (solution.error_bound_l1, solution.changes)
    assert "L1 error <= 5e-07 before scaling, 4 ranks" in repr(scaled)
    assert "L1 error <= 5e-07, 4 ranks" in repr(solution)
    scaled.save(tmp_path / f"scores{suffix}")
    loaded = load_solution(tmp_path / f"scores{suffix}")
    assert_same(loaded, scaled)
    assert loaded.scaler == "minmax"


@pytest.mark.parametrize("ids", [None, INTEGER_IDS, STRING_IDS], ids=["none", "int64", "string"])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 1000])
def test_batches_are_the_whole(ids, batch_size):
    solution = make_solution(ids=ids, dtype=np.float32)
    batches = list(solution.stream(batch_size))
    assert [len(names) for names, _ in batches] == [len(ranks) for _, ranks in batches]
    assert all(len(ranks) == batch_size for _, ranks in batches[:-1])
    wanted = np.arange(4) if ids is None else ids
    assert np.concatenate([names for names, _ in batches]).tolist() == wanted.tolist()
    assert {names.dtype for names, _ in batches} == {wanted.dtype}
    assert all(np.shares_memory(ranks, solution.values) for _, ranks in batches)
    assert np.concatenate([ranks for _, ranks in batches]).tobytes() == solution.values.tobytes()


def change_metadata(array, **changes):
    document = json.loads((array / "zarr.json").read_text())
    document |= {name: change(document[name]) for name, change in changes.items()}
    (array / "zarr.json").write_text(json.dumps(document))


def flip(path):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def exchange(first, second):
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def enlarge_chunks(ranks):
    grid = {"name": "regular", "configuration": {"chunk_shape": [1 << 40]}}
    change_metadata(ranks / "values", chunk_grid=lambda _: grid)
    (ranks / "values" / "c" / "1").unlink()


def put_group(ranks):
    shutil.rmtree(ranks / "values")
    zarr.open_group(ranks, mode="r+").create_group("values")


def change_version(ranks):
    attributes = zarr.open_group(ranks).attrs
    attributes["mgspmv_solution"] = {**attributes["mgspmv_solution"], "format_version": 99}


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda p: (p / "values/c/0").unlink(), MissingChunkError, "a chunk of values is missing"),
        (lambda p: (p / "vertex_ids/c/0").unlink(), MissingChunkError, "a chunk of vertex_ids is missing"),
        (lambda p: flip(p / "values/c/1"), ChecksumError, "a chunk of values is damaged"),
        (lambda p: flip(p / "vertex_ids/c/1"), ChecksumError, "a chunk of vertex_ids is damaged"),
        (lambda p: (p / "values/c/1").write_bytes(b""), ChecksumError, "a chunk of values is damaged"),
        (lambda p: exchange(p / "values/c/0", p / "values/c/1"), ChecksumError, "do not match their digest"),
        (lambda p: shutil.rmtree(p / "vertex_ids"), StoreDamagedError, "the array vertex_ids is missing"),
        (
            lambda p: change_metadata(p / "values", codecs=lambda codecs: codecs[:-1]),
            StoreDamagedError,
            r"values has the codecs .*, blosc instead of .*, crc32c, which",
        ),
        (enlarge_chunks, StoreDamagedError, "values has chunks of 1,099,511,627,776 elements, but at most"),
        (lambda p: (p / "values/zarr.json").write_text("{"), StoreDamagedError, "the metadata of values cannot be"),
        (put_group, StoreDamagedError, "the array values is missing"),
        (lambda p: zarr.open_group(p)["vertex_ids"].resize((2,)), StoreDamagedError, "4 ranks but 2 vertex ids"),
        (lambda p: (p / "zarr.json").write_text("{"), StoreDamagedError, "metadata of the group cannot be read"),
        (change_version, StoreFormatError, "format version 99, but this program reads version 1"),
    ],
)
def test_damaged_zarr(tmp_path, monkeypatch, damage, error, message):
    monkeypatch.setattr(mgspmv.saving, "CHUNK_ELEMENTS", 2)
    make_solution((0.0, 0.0, 0.3, 0.7), ids=STRING_IDS).save(tmp_path / "r.zarr")
    damage(tmp_path / "r.zarr")
    with pytest.raises(error, match=message):
        load_solution(tmp_path / "r.zarr")


def test_a_frame_that_says_that_it_unpacks_to_more(tmp_path):
    make_solution().save(tmp_path / "r.zarr")
    chunk = tmp_path / "r.zarr" / "values" / "c" / "0"
    frame = bytearray(chunk.read_bytes()[:-4])
    frame[4:8] = (1 << 30).to_bytes(4, "little")
    chunk.write_bytes(frame + google_crc32c.value(bytes(frame)).to_bytes(4, "little"))

    def load() -> None:
        with pytest.raises(ChecksumError, match="a chunk of values is damaged: it unpacks to 1,073,741,824"):
            load_solution(tmp_path / "r.zarr")

    assert measure_peak(load) < 1 << 20


def test_something_else(tmp_path):
    zarr.open_group(tmp_path / "m.zarr", attributes={"other": 1})
    with pytest.raises(StoreFormatError, match="is a Zarr group without ranks"):
        load_solution(tmp_path / "m.zarr")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(StoreNotFoundError, match="no Zarr group of ranks found"):
        load_solution(tmp_path / "empty.zarr")


class Interrupting(dict):
    """Seconds of a solution, which are looked at while it is written."""

    def items(self):
        raise KeyboardInterrupt

    __iter__ = keys = values = items


def test_an_interrupted_write_leaves_nothing_and_a_killed_one_is_unfinished():
    url = "memory://interrupted/r.zarr"
    with pytest.raises(KeyboardInterrupt):
        make_solution(seconds=Interrupting(load=1.0)).save(url)
    with pytest.raises(StoreNotFoundError):
        load_solution(url)
    zarr.open_group(url, mode="w", attributes={mgspmv.saving.ZARR_KEY: None})
    with pytest.raises(StoreUnfinishedError, match="are incomplete: their write was interrupted"):
        load_solution(url)
    make_solution().save(url, overwrite=True)
    assert_same(load_solution(url), make_solution())


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_empty_group_is_not_overwritten(zarr_format):
    zarr.open_group("memory://empty/r.zarr", mode="w", zarr_format=zarr_format)
    for overwrite, said in ((False, "exists already"), (True, "is not a .zarr of results")):
        with pytest.raises(StoreExistsError, match=said):
            make_solution().save("memory://empty/r.zarr", overwrite=overwrite)
    zarr.open_group("memory://empty/r.zarr", mode="r", zarr_format=zarr_format)


class TestDamagedParquet:
    @pytest.fixture
    def path(self, tmp_path) -> Path:
        make_solution(np.random.default_rng(3).random(5000)).save(tmp_path / "r.parquet")
        return tmp_path / "r.parquet"

    def test_flipped_bit_in_the_ranks(self, path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(ChecksumError, match="a page does not match its checksum"):
            load_solution(path)

    def test_cut(self, path):
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(StoreDamagedError, match="cannot be read as Parquet"):
            load_solution(path)

    def test_other_ranks_under_the_same_metadata(self, path):
        table = pq.read_table(path)
        other = table.set_column(1, "rank", pa.array(np.zeros(5000)))
        pq.write_table(other, path)
        with pytest.raises(ChecksumError, match="do not match their digest"):
            load_solution(path)

    def test_something_else(self, path):
        pq.write_table(pa.table({"id": [1], "rank": [1.0]}), path)
        with pytest.raises(StoreFormatError, match="is a Parquet file without ranks"):
            load_solution(path)


@pytest.mark.parametrize("name", ["zarr.json", "values", "values/c/0"])
def test_links_that_lead_out_of_saved_ranks_are_refused(tmp_path, name):
    ranks = tmp_path / "ranks.zarr"
    make_solution().save(ranks)
    (ranks / name).rename(tmp_path / "moved")
    (ranks / name).symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError, match=rf"ranks.zarr: {name} is a symbolic link that leads out of the store"):
        load_solution(ranks)
