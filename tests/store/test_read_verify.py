"""Every invariant of a store, broken one at a time: `verify_store` says what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv.store.digests
from mgspmv.errors import StoreFormatError, StoreNotFoundError, StoreUnfinishedError
from mgspmv.store.read import open_store, verify_store
from mgspmv.store.stored_matrix import find_least
from mgspmv.store.write import begin_version
from tests.support.arrays import write_store
from tests.support.pairwise import cover_pairs
from tests.support.stores import (
    find_group,
    forget_records,
    make_arrays,
    make_scipy,
    make_stochastic,
    make_transpose,
    seal,
)

IDS = np.array(["a", "b", "c", "d", "e", "é"], dtype=object)

MATRIX = sp.csr_array(
    np.array(
        [
            [0, 2, 0, 1, 0, 0],
            [1, 0, 3, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [0, 4, 0, 5, 6, 0],
            [7, 0, 0, 0, 0, 0],
            [0, 0, 0, 8, 9, 0],
        ],
        dtype=float,
    )
)
"""indptr 0 2 4 4 7 8 10; column 5 is empty; the least value is 1."""


def change_array(root: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change an array, and have the store record it."""
    array: Any = zarr.open_group(find_group(root), mode="r+")[name]
    values = np.asarray(array[:])
    change(values)
    array[:] = values
    seal(root)


@pytest.fixture
def make_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`make_store(kind, matrix, transpose, ...)` writes a store and gives its folder."""
    monkeypatch.setattr(mgspmv.store.digests, "CHUNK_ELEMENTS", 4)

    def make(kind: str = "graph", matrix: sp.csr_array = MATRIX, transpose: bool = False, **options: Any) -> Path:
        arrays = make_arrays(matrix, kind, **options)
        transposed = make_transpose(matrix, pattern=options.get("pattern", False)) if transpose else None
        write_store(tmp_path / "m", arrays, transpose=transposed, overwrite=True)
        return tmp_path / "m"

    return make


# --- sound -----------------------------------------------------------------------------------------------------------


@cover_pairs(kind=["graph", "matrix"], transpose=[False, True], pattern=[False, True])
def test_a_sound_store_has_no_problems(make_store, kind, transpose, pattern):
    for matrix in (MATRIX, make_scipy(6, 6), make_scipy(6, 6, dtype=np.float32), sp.csr_array((6, 6))):
        assert verify_store(make_store(kind, matrix, transpose, pattern=pattern, ids=IDS)) == []


def test_sound_in_other_ways(make_store):
    assert verify_store(make_store("stochastic", make_stochastic(9))) == []
    assert verify_store(make_store("stochastic", sp.csr_array(np.eye(4)), pattern=True)) == []
    assert verify_store(make_store("graph", make_scipy(6, 6, dtype=np.int64), ids=np.arange(6) * 3 - 5)) == []
    odd = sp.csr_array(np.array([[np.nan, 1.0], [np.inf, -np.inf]]))
    assert verify_store(make_store("matrix", odd, True)) == []
    twice = sp.csr_array((np.array([1.0, 2.0, 3.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    assert verify_store(make_store("graph", twice, duplicates="keep")) == []


def test_every_array_is_reported_as_it_is_read(make_store):
    reported = []
    verify_store(make_store(transpose=True, ids=IDS), lambda *report: reported.append(report))
    assert [phase for phase, done, total in reported] == [
        f"verify {name}"
        for name in ("data", "indices", "indptr", "out_degree", "out_weight", "vertex_ids",
                     "transpose/data", "transpose/indices", "transpose/indptr")
    ]  # fmt: skip


# --- one thing wrong -------------------------------------------------------------------------------------------------


def put(*changes: tuple[int, Any]) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        for place, value in changes:
            values[place] = value

    return change


WRONG = {
    "first pointer": ("indptr", put((0, 1)), "indptr: must ascend from 0 to nnz = 10"),
    "last pointer": ("indptr", put((6, 9)), "indptr: must ascend from 0 to nnz = 10"),
    "falling pointer": ("indptr", put((4, 9)), "indptr: must ascend from 0 to nnz = 10, wrong at row 4"),
    "negative index": ("indices", put((4, -1)), "indices: must be in 0..5, wrong at entry 4"),
    "index of no column": ("indices", put((6, 6)), "indices: must be in 0..5, wrong at entry 6"),
    "unsorted row": ("indices", put((4, 3), (5, 1)), "indices: must ascend in each row, wrong at entry 5"),
    "repeated index": ("indices", put((5, 1)), "indices: must ascend in each row, wrong at entry 5"),
    "least value": ("data", put((2, 0.5)), "data: the least value is 0.5, but the attributes state 1.0"),
    "weight not a number": ("data", put((3, np.nan)), "data: the weights of a graph must be finite, wrong at entry 3"),
    "infinite weight": ("data", put((3, np.inf)), "data: the weights of a graph must be finite, wrong at entry 3"),
    "degree": (
        "out_degree",
        put((4, 3)),
        "out_degree: must be the number of entries in each column, wrong at column 4",
    ),
    "weight": ("out_weight", put((3, 15.0)), "out_weight: must be the sum of each column, wrong at column 3"),
    "weight not finite": (
        "out_weight",
        put((5, np.nan)),
        "out_weight: must be the sum of each column, wrong at column 5",
    ),
    "repeated id": ("vertex_ids", put((2, "b")), "vertex_ids: must ascend, wrong at vertex 2"),
    "unsorted ids": ("vertex_ids", put((3, "z")), "vertex_ids: must ascend, wrong at vertex 4"),
    "transposed pointer": ("transpose/indptr", put((1, 1)), "transpose/indptr: differs from the transpose of the "),
    "transposed index": ("transpose/indices", put((0, 0)), "transpose/indices: differs from the transpose of the "),
    "transposed value": (
        "transpose/data",
        put((0, 0.5)),
        "transpose/data: differs from the transpose of the matrix",
    ),
}


@pytest.mark.parametrize(("name", "change", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said(make_store, name, change, said):
    root = make_store(transpose=True, ids=IDS)
    change_array(root, name, change)
    problems = verify_store(root)
    assert any(problem.startswith(said) for problem in problems)
    follows = {"transpose", "out_weight", "data"}
    assert [
        p for p in problems if not p.startswith(said) and p.partition(":")[0].partition("/")[0] not in follows
    ] == []


def test_what_does_not_bear_on_others_is_said_alone(make_store):
    changes = {
        "indptr": put((0, 1)),
        "out_degree": put((0, 9)),
        "out_weight": put((0, 9.5)),
        "vertex_ids": put((0, "x")),
        "transpose/data": put((0, 3.5)),
    }
    for name, change in changes.items():
        root = make_store(transpose=True, ids=IDS)
        change_array(root, name, change)
        assert [problem.partition(":")[0] for problem in verify_store(root)] == [name]


ORDER = np.array([3, 0, 5, 1, 4, 2], dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put(), []),
        (put((1, 3)), ["order: must hold each of 0..5 once, wrong at row 0"]),
        (put((3, 5)), ["order: must hold each of 0..5 once, wrong at row 2"]),
        (put((4, 6)), ["order: must hold each of 0..5 once, wrong at row 4"]),
        (put((5, -1)), ["order: must hold each of 0..5 once, wrong at row 5"]),
    ],
)
def test_an_order_is_a_permutation(make_store, change, said):
    for kind in ("graph", "matrix"):
        root = make_store(kind, transpose=True, order=ORDER)
        change_array(root, "order", change)
        assert verify_store(root) == said, kind


def test_another_order_than_was_recorded(make_store):
    root = make_store(order=ORDER)
    forget_records(root)
    array = zarr.open_group(find_group(root), mode="r+")["order"]
    array[:] = ORDER[::-1]
    assert verify_store(root) == ["order: the digest differs from the one written at ingest"]


def test_a_store_that_forgot_its_order(make_store):
    """It opens as one of another matrix, so the digest of the whole must tell."""
    root = make_store(order=ORDER)
    group = zarr.open_group(find_group(root), mode="r+")
    attributes: Any = dict(group.attrs["mgspmv"])
    del attributes["order"]
    group.attrs["mgspmv"] = attributes
    forget_records(root)
    [problem] = verify_store(root)
    assert "are damaged (the digest does not match kind, shape, dtypes, order and the arrays' digests)" in problem


def test_a_graph_may_repeat_an_index_if_its_duplicates_were_kept(make_store):
    root = make_store(pattern=True)
    change_array(root, "indices", put((5, 1)))
    change_array(root, "out_degree", put((1, 3), (3, 2)))
    assert verify_store(root) == ["indices: must ascend in each row, wrong at entry 5"]
    seal(root, duplicates="keep")
    assert verify_store(root) == []


@pytest.mark.parametrize("pattern", [False, True])
def test_the_bytes_in_the_attributes(make_store, pattern):
    root = make_store(pattern=pattern, ids=IDS)
    nbytes = open_store(root).info.nbytes
    seal(root, nbytes=nbytes + 1)
    assert verify_store(root) == [f"attributes: the arrays take {nbytes} bytes, but the attributes state {nbytes + 1}"]


def test_the_shape_that_anndata_reads(make_store):
    root = make_store()
    group = zarr.open_group(find_group(root), mode="r+")
    for shape in ([6, 7], None):
        group.attrs["shape"] = shape
        assert verify_store(root) == [f"attributes: the shape for anndata must be [6, 6], not {shape}"]


@pytest.mark.parametrize("pattern", [False, True])
def test_columns_of_a_stochastic_matrix_sum_to_1(make_store, pattern):
    root = make_store("graph", pattern=pattern)
    seal(root, kind="stochastic")
    assert verify_store(root) == ["data: each column of a stochastic matrix must sum to 1, wrong at column 0"]


def test_a_column_that_is_off_by_a_little_is_still_stochastic(make_store):
    matrix = make_stochastic(9)
    column = int(matrix.indices[0])
    root = make_store("stochastic", matrix)
    for off, problems in ((1e-7, 0), (1e-5, 1)):
        change_array(root, "data", put((0, matrix.data[0] + off)))
        change_array(root, "out_weight", put((column, matrix.sum(axis=0)[column] + off)))
        seal(root, min_weight=find_least(open_store(root).read_array("data")))
        assert len(verify_store(root)) == problems


# --- digests and checksums -------------------------------------------------------------------------------------------


def test_another_digest_than_was_recorded(make_store):
    root = make_store(transpose=True, ids=IDS)
    digests = zarr.open_group(find_group(root)).attrs["mgspmv"]["array_digests"]
    for name in digests:
        seal(root, array_digests=digests | {name: "0" * 64})
        assert verify_store(root) == [f"{name}: the digest differs from the one written at ingest"]


def test_no_digest_recorded(make_store):
    root = make_store(pattern=True)
    seal(root, array_digests={})
    said = "the digest differs from the one written at ingest"
    assert verify_store(root) == [f"{name}: {said}" for name in ("indices", "indptr", "out_degree")]


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"kind": "graph"}])
def test_the_digest_of_the_matrix(make_store, change):
    root = make_store("stochastic", make_stochastic(6))
    group = zarr.open_group(find_group(root), mode="r+")
    group.attrs["mgspmv"] = dict(group.attrs["mgspmv"]) | change
    for said in ("their digest differs from the one that was recorded", "the digest does not match kind, shape, "):
        [problem] = verify_store(root)
        assert f"zarr.json are damaged ({said}" in problem
        forget_records(root)


@pytest.mark.parametrize(
    "name", ["indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids", "transpose/data"]
)
def test_a_flipped_bit_is_placed_and_the_rest_is_still_checked(make_store, name):
    root = make_store(transpose=True, ids=IDS)
    change_array(root, "vertex_ids", put((5, "a")))
    chunk = find_group(root) / name / "c" / "0"
    bits = bytearray(chunk.read_bytes())
    bits[-1] ^= 4
    chunk.write_bytes(bits)
    first, *others = sorted(verify_store(root), key=lambda problem: "are damaged" not in problem)
    assert f"/{name}, elements 0 to 4 are damaged" in first
    assert others == ([] if name == "vertex_ids" else ["vertex_ids: must ascend, wrong at vertex 5"])


def test_no_store_to_verify(tmp_path):
    with pytest.raises(StoreNotFoundError):
        verify_store(tmp_path / "none")
    with begin_version(tmp_path / "begun") as version:
        with pytest.raises(StoreUnfinishedError):
            verify_store(tmp_path / "begun")
        version.is_named = True  # as if this process had been killed here
    zarr.open_group(tmp_path / "group", mode="w")
    with pytest.raises(StoreFormatError):
        verify_store(tmp_path / "group")
