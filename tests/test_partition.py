"""Rows are cut as brute force cuts them; plans are what pencil and paper say."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import CapacityError, OptionError
from mgspmv.model import MatrixInfo
from mgspmv.partition import SUMS_BYTES, Plan, Rates, parse_bytes, plan_rows, split_rows
from mgspmv.store import CHUNK_ELEMENTS

MiB = 2**20


def make_indptr(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def make_info(shape: tuple[int, int], nnz: int, **changes: Any) -> MatrixInfo:
    told: dict[str, Any] = {
        "url": "m.zarr",
        "kind": "graph",
        "dtype": None,
        "index_dtype": "int32",
        "duplicates": "first",
        "vertex_ids": None,
        "min_weight": None,
        "has_transpose": False,
        "version": "v000001-00000000",
        "format_version": 1,
        "digest": "",
        "nbytes": 0,
    }
    return MatrixInfo(shape=shape, nnz=nnz, **told | changes)


def plan_even(n_rows: int, per_row: int, n_workers: int = 1, **options: Any) -> Plan:
    """Plan a square matrix with as many entries in each row; what is no option of `plan_rows` goes to the matrix."""
    names = ("precision", "device_memory", "host_memory", "rates", "threads")
    changes = {key: options.pop(key) for key in list(options) if key not in names}
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int64) if per_row else np.zeros(n_rows + 1, np.int64)
    return plan_rows(make_info((n_rows, n_rows), n_rows * per_row, **changes), indptr, n_workers, **options)


# --- cuts ------------------------------------------------------------------------------------------------------------

row_counts = st.lists(st.integers(0, 50), max_size=40)
sizes = st.integers(0, 20)


@given(row_counts, st.integers(1, 60), sizes, sizes)
def test_parts_cover_every_row_once_in_order(counts: list[int], n_parts: int, per_nonzero: int, per_row: int) -> None:
    bounds = split_rows(make_indptr(counts), n_parts, bytes_per_nonzero=per_nonzero, bytes_per_row=per_row)
    assert bounds.dtype == np.int64
    assert len(bounds) == n_parts + 1
    covered = [row for start, stop in pairwise(bounds.tolist()) for row in range(start, stop)]
    assert covered == list(range(len(counts)))
    assert (np.diff(bounds) >= 0).all()


@given(row_counts, st.integers(1, 60), sizes, sizes)
def test_no_part_costs_more_than_an_equal_share_and_a_row(
    counts: list[int], n_parts: int, per_nonzero: int, per_row: int
) -> None:
    costs = [per_nonzero * count + per_row for count in counts]
    bounds = split_rows(make_indptr(counts), n_parts, bytes_per_nonzero=per_nonzero, bytes_per_row=per_row)
    most = max(sum(costs[start:stop]) for start, stop in pairwise(bounds.tolist()))
    assert most * n_parts <= sum(costs) + (max(costs, default=0) + 1) * n_parts  # targets are rounded down to bytes


@given(row_counts, st.integers(1, 20), sizes, sizes)
def test_each_cut_is_at_the_row_nearest_to_its_target(
    counts: list[int], n_parts: int, per_nonzero: int, per_row: int
) -> None:
    indptr = make_indptr(counts)
    bounds = split_rows(indptr, n_parts, bytes_per_nonzero=per_nonzero, bytes_per_row=per_row)
    costs = [per_nonzero * int(indptr[i]) + per_row * i for i in range(len(indptr))]
    for k in range(1, n_parts):
        target = costs[-1] * k // n_parts
        assert abs(costs[bounds[k]] - target) == min(abs(cost - target) for cost in costs)


@pytest.mark.parametrize(
    ("counts", "n_parts", "expected"),
    [
        ([], 3, [0, 0, 0, 0]),
        ([5, 5, 5, 5], 1, [0, 4]),
        ([5, 5, 5, 5], 2, [0, 2, 4]),
        ([9, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 1, 9], 2, [0, 3, 4]),
        ([0, 0, 0, 0], 2, [0, 2, 4]),
        ([3, 3], 4, [0, 0, 1, 1, 2]),
    ],
)
def test_literal_cuts(counts: list[int], n_parts: int, expected: list[int]) -> None:
    assert split_rows(make_indptr(counts), n_parts, bytes_per_nonzero=4, bytes_per_row=1).tolist() == expected


def test_costs_that_no_double_holds_are_still_exact() -> None:
    big = 2**56  # float64 knows every 16th integer here
    indptr = np.array([0, big, big + 3, 2 * big], np.int64)
    assert split_rows(indptr, 2, bytes_per_nonzero=1, bytes_per_row=0).tolist() == [0, 1, 3]
    indptr = np.array([0, big - 3, big + 2, 2 * big], np.int64)
    assert split_rows(indptr, 2, bytes_per_nonzero=1, bytes_per_row=0).tolist() == [0, 2, 3]


def test_there_is_at_least_one_part() -> None:
    with pytest.raises(OptionError, match="the rows must be cut into at least 1 part, not 0"):
        split_rows(make_indptr([1]), 0, bytes_per_nonzero=4, bytes_per_row=8)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "changes", "block", "vectors", "load"),
    [
        # 10 rows of 3 entries: 11 row pointers; ranks and out-weights, then z and the next z
        ("exact", {}, 8 * 11 + 4 * 30, (8 + 8 + 8 + 8) * 10, (8 + 8) * 10 + 2 * 4 * 30),
        ("float64", {}, 8 * 11 + 4 * 30, (8 + 8 + 8 + 8) * 10, (8 + 8) * 10 + 2 * 4 * 30),
        ("float32", {}, 8 * 11 + 4 * 30, (4 + 8 + 8 + 8) * 10, (4 + 8) * 10 + 2 * 4 * 30),
        ("exact", {"dtype": "float64"}, 8 * 11 + 12 * 30, (8 + 8 + 8 + 8) * 10, (8 + 8) * 10 + 2 * 8 * 30),
        ("float32", {"dtype": "float64"}, 8 * 11 + 8 * 30, (4 + 8 + 8 + 8) * 10, (4 + 8) * 10 + 2 * 8 * 30),
        ("float32", {"dtype": "float32"}, 8 * 11 + 8 * 30, (4 + 8 + 8 + 8) * 10, (4 + 8) * 10 + 2 * 4 * 30),
        ("exact", {"index_dtype": "int64"}, 8 * 11 + 8 * 30, (8 + 8 + 8 + 8) * 10, (8 + 8) * 10 + 2 * 8 * 30),
        # a product has x and y from the start
        ("float64", {"kind": "matrix", "dtype": "float64"}, 8 * 11 + 12 * 30, 16 * 10, 16 * 10 + 2 * 8 * 30),
        ("float32", {"kind": "matrix", "dtype": "float32"}, 8 * 11 + 8 * 30, 8 * 10, 8 * 10 + 2 * 4 * 30),
    ],
)
def test_bytes_by_hand(precision: str, changes: dict[str, Any], block: int, vectors: int, load: int) -> None:
    plan = plan_even(10, 3, precision=precision, threads=1, **changes)
    (worker,) = plan.workers
    assert (worker.start, worker.stop, worker.nnz) == (0, 10, 30)
    assert (worker.block_bytes, worker.vector_bytes, worker.load_bytes) == (block, vectors, load)
    assert worker.id_bytes == worker.exchange_bytes == 0
    assert worker.memory_bytes == plan.memory_bytes == block + max(vectors, load)
    assert worker.device_bytes == block + vectors
    assert plan.operation == ("spmv" if changes.get("kind") == "matrix" else "pagerank")


@pytest.mark.parametrize(("ids", "each"), [(None, 0), ("int64", 8), ("string", 72)])
def test_ids_are_held_by_a_single_worker_only(ids: str | None, each: int) -> None:
    plan = plan_even(10, 3, vertex_ids=ids)
    assert plan.workers[0].id_bytes == each * 10
    assert plan.memory_bytes == plan_even(10, 3).memory_bytes + each * 10
    assert {worker.id_bytes for worker in plan_even(10, 3, 2, vertex_ids=ids).workers} == {0}


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 4),
        ({"index_dtype": "int64"}, 8),
        ({"vertex_ids": "int64"}, 8 + 4),
        ({"kind": "matrix"}, 4 + 2 * 8),
        ({"kind": "matrix", "precision": "float32"}, 4 + 2 * 4),
    ],
)
def test_an_order_takes_memory_and_x_and_y_of_a_product_in_it(changes, each):
    [worker] = plan_even(10, 3, order="rcm", **changes).workers
    assert worker.id_bytes == each * 10
    assert {w.id_bytes for w in plan_even(10, 3, 2, order="rcm", **changes).workers} == {0}


def test_each_thread_has_a_chunk_in_flight_raw_and_compressed() -> None:
    one, two = (plan_even(4 * MiB, 2, threads=threads).workers[0].load_bytes for threads in (1, 2))
    assert one == 16 * 4 * MiB + 2 * 4 * CHUNK_ELEMENTS
    assert two - one == 2 * 4 * CHUNK_ELEMENTS


def test_exchange_by_hand() -> None:
    plan = plan_even(12, 3, 3)
    assert plan.bounds == (0, 4, 8, 12)
    assert [worker.exchange_bytes for worker in plan.workers] == [8 * 8 + 2 * SUMS_BYTES] * 3
    assert plan.exchange_bytes == 3 * (8 * 8 + 2 * SUMS_BYTES)
    assert plan_even(12, 3, 3, precision="float32").exchange_bytes == 3 * (4 * 8 + 2 * SUMS_BYTES)
    assert plan_even(12, 3, 1).exchange_bytes == 0


@given(st.integers(1, 200), st.integers(0, 5), st.integers(1, 9))
def test_workers_have_all_rows_and_all_entries(n_rows: int, per_row: int, n_workers: int) -> None:
    plan = plan_even(n_rows, per_row, n_workers)
    assert len(plan.workers) == n_workers
    assert plan.bounds[0] == 0
    assert plan.bounds[-1] == n_rows
    assert sum(worker.nnz for worker in plan.workers) == n_rows * per_row
    assert plan.memory_bytes == max(worker.memory_bytes for worker in plan.workers)


def test_seconds_are_the_slower_of_streaming_and_gathering_and_of_one_worker_only() -> None:
    plan = plan_even(10, 3)
    streamed = plan.workers[0].block_bytes + plan.workers[0].vector_bytes
    assert plan.seconds_per_iteration is None
    assert plan_even(10, 3, rates=Rates(1.0, 1e9)).seconds_per_iteration == streamed
    assert plan_even(10, 3, rates=Rates(1e9, 1.0)).seconds_per_iteration == 30
    assert plan_even(10, 3, 2, rates=Rates(1.0, 1.0)).seconds_per_iteration is None


def test_a_plan_is_json_and_says_what_it_takes_in_a_line() -> None:
    plan = plan_even(10, 3, 2)
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["memory_bytes"] == plan.memory_bytes
    assert told["exchange_bytes"] == plan.exchange_bytes
    assert [worker["memory_bytes"] for worker in told["workers"]] == [w.memory_bytes for w in plan.workers]
    assert (told["workers"][0]["start"], told["workers"][-1]["stop"]) == (0, 10)
    assert repr(plan).startswith("Plan(pagerank of m.zarr, 2 workers, at most ")
    assert "s per iteration" in repr(plan_even(10, 3, rates=Rates(1.0, 1.0)))


# --- capacity --------------------------------------------------------------------------------------------------------


def named_workers(error: CapacityError) -> int:
    words = str(error).split("; ")[1].split()
    assert words[1:] == ["workers", "of", "that", "size", "would", "do"]
    return int(words[0])


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize(("place", "memory"), [("host", 2_000_000), ("device", 1_000_000)])
def test_what_does_not_fit_names_a_number_of_workers_that_fits(n_workers: int, place: str, memory: int) -> None:
    limit = {f"{place}_memory": memory}
    with pytest.raises(CapacityError, match=rf"needs \S+ GB of {place} memory on one of them, which has") as caught:
        plan_even(10_000, 100, n_workers, threads=1, **limit)
    enough = named_workers(caught.value)
    plan = plan_even(10_000, 100, enough, threads=1, **limit)
    assert len(plan.workers) == enough
    with pytest.raises(CapacityError):
        plan_even(10_000, 100, enough // 2, threads=1, **limit)


def test_where_the_vectors_alone_are_too_large_no_number_of_workers_does() -> None:
    wanted = "no number of workers of that size would do, for each holds a vector of all 1000 columns and at least one"
    with pytest.raises(CapacityError, match=wanted):
        plan_even(1000, 5, host_memory=8 * 1000)


def test_exactly_as_much_as_is_needed_is_enough() -> None:
    need = plan_even(1000, 5).memory_bytes
    assert plan_even(1000, 5, host_memory=need).memory_bytes == need
    with pytest.raises(CapacityError):
        plan_even(1000, 5, host_memory=need - 1)


def test_a_device_holds_the_block_and_the_host_what_is_loading() -> None:
    (worker,) = plan_even(1000, 5, threads=1).workers
    plan_even(1000, 5, threads=1, device_memory=worker.device_bytes, host_memory=worker.load_bytes)
    with pytest.raises(CapacityError, match="GB of device memory"):
        plan_even(1000, 5, threads=1, device_memory=worker.device_bytes - 1, host_memory=worker.load_bytes)
    with pytest.raises(CapacityError, match="GB of host memory"):
        plan_even(1000, 5, threads=1, device_memory=worker.device_bytes, host_memory=worker.load_bytes - 1)


def test_a_matrix_without_rows_can_be_planned() -> None:
    info = make_info((0, 3), 0, kind="matrix", dtype="float64")
    plan = plan_rows(info, np.zeros(1, np.int64), 2, threads=1)
    assert plan.bounds == (0, 0, 0)
    assert plan.memory_bytes == 8 + 3 * 8 + 2 * 8  # the row pointer; x; a chunk of it


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [0, -1])
def test_workers_are_at_least_one(n_workers: int) -> None:
    with pytest.raises(OptionError, match=f"workers must be at least 1, not {n_workers}"):
        plan_even(10, 3, n_workers)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(OptionError, match="precision must be one of 'exact', 'float64', 'float32', not 'half'"):
        plan_even(10, 3, precision="half")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (141, 141),
        ("141", 141),
        ("7B", 7),
        ("141GB", 141 * 10**9),
        ("141 gb", 141 * 10**9),
        ("16GiB", 16 * 2**30),
        (" 500 MB ", 500 * 10**6),
        ("1.5k", 1500),
        (".5Ki", 512),
        ("2T", 2 * 10**12),
        ("1TiB", 2**40),
        ("0.1GB", 10**8),
        ("9007199254740993", 2**53 + 1),
        ("4.35MB", 4_350_000),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1", -1, "1 PB", "1,5GB", "1e9", "12 G iB", "1.GB", "nan"])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(OptionError, match="a size is written like 141GB, 16GiB or 500MB, not "):
        parse_bytes(text)
