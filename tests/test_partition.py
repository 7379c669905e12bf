"""Rows are cut as brute force cuts them; plans are what pencil and paper say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError, OptionError
from mgspmv.model import MatrixInfo
from mgspmv.order import PARTS, part_bounds
from mgspmv.partition import (
    PASSING,
    SUMS_BYTES,
    Planner,
    choose_piece,
    limit,
    parse_bytes,
    split_rows,
)
from mgspmv.plan import Plan, Streaming
from mgspmv.store.digests import CHUNK_ELEMENTS

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
    """Plan a square matrix with as many entries in each row; what is no option of `Planner` goes to the matrix."""
    names = ("precision", "device_memory", "host_memory", "threads", "lays_out", "streams", "top", "throw")
    changes = {key: options.pop(key) for key in list(options) if key not in names}
    asked = {key: options.pop(key) for key in ("device_memory", "host_memory", "throw") if key in options}
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int64) if per_row else np.zeros(n_rows + 1, np.int64)
    info = make_info((n_rows, n_rows), n_rows * per_row, **changes)
    return Planner(info, indptr, **options).plan_rows(n_workers, **asked)


row_counts = st.lists(st.integers(0, 50), max_size=40)
sizes = st.integers(0, 20)


def test_costs_that_no_double_holds_are_still_exact() -> None:
    big = 2**56  # float64 knows every 16th integer here
    indptr = np.array([0, big, big + 3, 2 * big], np.int64)
    assert split_rows(indptr, 2, bytes_per_nonzero=1, bytes_per_row=0).tolist() == [0, 1, 3]
    indptr = np.array([0, big - 3, big + 2, 2 * big], np.int64)
    assert split_rows(indptr, 2, bytes_per_nonzero=1, bytes_per_row=0).tolist() == [0, 2, 3]


def test_there_is_at_least_one_part() -> None:
    with pytest.raises(OptionError, match="the rows must be cut into at least 1 part, not 0"):
        split_rows(make_indptr([1]), 0, bytes_per_nonzero=4, bytes_per_row=8)


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
    plan = plan_even(10, 3, precision=precision, threads=1, url="s3://bucket/m.zarr", **changes)
    (worker,) = plan.workers
    assert (worker.start, worker.stop, worker.nnz) == (0, 10, 30)
    assert (worker.block_bytes, worker.vector_bytes, worker.load_bytes) == (block, vectors, load)
    assert worker.id_bytes == worker.exchange_bytes == 0
    assert worker.memory_bytes == plan.memory_bytes == block + max(vectors, load)
    assert worker.device_bytes == block + vectors
    assert plan.operation == ("spmv" if changes.get("kind") == "matrix" else "pagerank")


@pytest.mark.parametrize(
    ("precision", "dtype", "n_workers", "threads", "in_flight"),
    [
        # columns are half as long in the store; a chunk of which a part is wanted is decoded beside
        ("exact", None, 1, 1, 0.5 * 4),
        ("exact", None, 1, 3, 3 * 0.5 * 4),
        ("exact", None, 2, 1, 0.5 * 4 + 4),
        ("exact", None, 2, 3, 3 * 0.5 * 4 + 2 * 4),  # and of the first one
        ("exact", "float64", 1, 2, 2 * 8),
        ("float32", "float32", 1, 2, 2 * 4),
        ("float32", "float64", 1, 2, 2 * 2 * 8),  # raw and compressed, for they are converted
        ("exact", "int64", 1, 2, 2 * 2 * 8),
    ],
)
def test_chunks_of_a_local_store_are_decoded_where_they_are_wanted(
    precision: str, dtype: str | None, n_workers: int, threads: int, in_flight: float
) -> None:
    plan = plan_even(8 * MiB, 2, n_workers, precision=precision, dtype=dtype, threads=threads)
    worker = plan.workers[0]
    made_before = (12 if precision == "float32" else 16) * (worker.stop - worker.start)
    renumbering = 0 if n_workers == 1 else 5 * 8 * MiB
    assert worker.load_bytes == made_before + max(int(in_flight * CHUNK_ELEMENTS), renumbering)


def test_exchange_by_hand() -> None:
    plan = plan_even(12, 3, 3)
    assert plan.bounds == (0, 4, 8, 12)
    assert [worker.exchange_bytes for worker in plan.workers] == [8 * 8 + 2 * SUMS_BYTES] * 3
    assert plan.exchange_bytes == 3 * (8 * 8 + 2 * SUMS_BYTES)
    assert plan_even(12, 3, 3, precision="float32").exchange_bytes == 3 * (4 * 8 + 2 * SUMS_BYTES)
    assert plan_even(12, 3, 1).exchange_bytes == 0


def test_a_plan_is_json_and_says_what_it_takes_in_a_line() -> None:
    plan = plan_even(10, 3, 2)
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["memory_bytes"] == plan.memory_bytes
    assert told["exchange_bytes"] == plan.exchange_bytes
    assert [worker["memory_bytes"] for worker in told["workers"]] == [w.memory_bytes for w in plan.workers]
    assert (told["workers"][0]["start"], told["workers"][-1]["stop"]) == (0, 10)
    assert repr(plan).startswith("Plan(pagerank of m.zarr, 2 workers, at most ")


def named_workers(error: CapacityError) -> int:
    words = str(error).split("; ")[1].split()
    assert words[1:] == ["workers", "of", "that", "size", "suffice"]
    return int(words[0])


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize(("place", "memory"), [("host", 2_000_000), ("device", 1_000_000)])
def test_what_does_not_fit_names_a_number_of_workers_that_fits(n_workers: int, place: str, memory: int) -> None:
    limit = {f"{place}_memory": memory}
    with pytest.raises(CapacityError, match=rf"needs \S+ [kM]B of {place} memory on one of them, which has") as caught:
        plan_even(10_000, 100, n_workers, threads=1, **limit)
    enough = named_workers(caught.value)
    plan = plan_even(10_000, 100, enough, threads=1, **limit)
    assert len(plan.workers) == enough
    with pytest.raises(CapacityError):
        plan_even(10_000, 100, enough // 2, threads=1, **limit)


def test_a_plan_says_what_would_fit() -> None:
    options: dict[str, Any] = {"threads": 1, "lays_out": True, "streams": True, "throw": False}
    (worker,) = plan_even(10_000, 100, **options, device_memory=10**9).workers
    vectors = worker.vector_bytes
    plan = plan_even(10_000, 100, **options, device_memory=vectors)
    assert not plan.fits
    assert plan.least_device_memory is not None
    least = plan_even(10_000, 100, **options, device_memory=plan.least_device_memory)
    assert least.fits
    assert least.streams
    assert not plan_even(10_000, 100, **options, device_memory=plan.least_device_memory - 1).fits
    for own in (plan, least):
        assert own.enough_workers is not None
        memory = vectors if own is plan else plan.least_device_memory
        held = plan_even(10_000, 100, own.enough_workers, **options, device_memory=memory)
        assert held.fits
        assert not held.streams
        assert held.enough_workers is None
    told = json.loads(json.dumps(plan.to_dict()))
    assert (told["fits"], told["least_device_memory"]) == (False, plan.least_device_memory)
    assert repr(plan).endswith("does not fit)")
    assert "rows are streamed" in repr(least)
    assert "does not fit" in plan._repr_html_()
    assert "workers of that size suffice; from" in str(plan.shortage)


def test_a_plan_without_remedies() -> None:
    """The vectors alone are too large; and rows that cannot be streamed."""
    for options in ({"host_memory": 8000}, {"device_memory": 10}):
        plan = plan_even(1000, 5, throw=False, **options)
        assert (plan.fits, plan.least_device_memory, plan.enough_workers) == (False, None, None)


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize(("n_rows", "per_row"), [(0, 0), (1, 0), (1, 1), (4, 1), (5, 0)])
def test_plans_of_tiny_graphs(n_rows: int, per_row: int, n_workers: int) -> None:
    plan = plan_even(n_rows, per_row, n_workers, threads=1)
    assert plan.fits
    assert plan.n_idle == max(0, n_workers - n_rows)
    assert ("without rows" in repr(plan)) == (n_rows < n_workers)
    assert repr(plan).count("1 workers") == 0
    assert "e-0" not in repr(plan) + plan._repr_html_()
    for shown in (
        plan,
        plan_even(n_rows, per_row, n_workers, threads=1, device_memory=1, lays_out=True, streams=True, throw=False),
    ):
        assert "-" not in repr(shown)


def test_where_the_vectors_alone_are_too_large_no_number_of_workers_does() -> None:
    wanted = "no number of workers of that size suffices, because each holds a vector of all 1000 columns and"
    with pytest.raises(CapacityError, match=wanted):
        plan_even(1000, 5, host_memory=8 * 1000)


def test_a_matrix_without_rows_can_be_planned() -> None:
    info = make_info((0, 3), 0, kind="matrix", dtype="float64")
    plan = Planner(info, np.zeros(1, np.int64), threads=1).plan_rows(2)
    assert plan.bounds == (0, 0, 0)
    assert plan.memory_bytes == 8 + 3 * 8 + 2 * 8  # the row pointer; x; a chunk of it


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
    with pytest.raises(OptionError, match="the value must be a size such as 141GB, 16GiB or 500MB, not "):
        parse_bytes(text)


@given(row_counts, st.none() | st.sets(st.integers(0, 40)), st.integers(1, 20), sizes, sizes)
def test_parts_begin_at_the_given_row_nearest_to_their_target(
    counts: list[int], within: set[int] | None, n_parts: int, per_nonzero: int, per_row: int
) -> None:
    n_rows, indptr = len(counts), make_indptr(counts)
    cuts = sorted({0, n_rows} | {row for row in within if row < n_rows}) if within is not None else range(n_rows + 1)
    bounds = split_rows(
        indptr,
        n_parts,
        bytes_per_nonzero=per_nonzero,
        bytes_per_row=per_row,
        cuts=None if within is None else np.array(cuts, np.int64),
    ).tolist()
    assert len(bounds) == n_parts + 1
    assert (bounds[0], bounds[-1], bounds) == (0, n_rows, sorted(bounds))
    assert set(bounds) <= set(cuts)
    costs = {row: per_nonzero * int(indptr[row]) + per_row * row for row in cuts}
    for k in range(1, n_parts):
        target = costs[n_rows] * k // n_parts
        assert abs(costs[bounds[k]] - target) == min(abs(cost - target) for cost in costs.values())


def test_few_pointers_are_looked_up_where_rows_are_about_even() -> None:
    looked = set[int]()

    class Looked(np.ndarray):  # type: ignore[type-arg]
        def __getitem__(self, row: Any) -> Any:
            looked.add(int(row))
            return super().__getitem__(row)

    n_rows = 2**20
    counts = np.random.default_rng(1).integers(0, 9, n_rows)
    indptr = make_indptr(counts.tolist())
    bounds = split_rows(indptr.view(Looked), 4, bytes_per_nonzero=4, bytes_per_row=8)
    assert all(min(abs(bounds - row)) <= 2 * (n_rows >> 8) for row in looked)


@pytest.mark.parametrize("n_rows", [0, 1, 7, 255, 256, 257, 511, 512, 1000, 2**16 + 3])
def test_rows_that_are_dealt_one_by_one_fill_the_parts(n_rows: int) -> None:
    bounds = part_bounds(n_rows)
    assert bounds.dtype == np.int64
    assert PARTS == 256
    assert np.diff(bounds).tolist() == [len(range(n_rows)[part::256]) for part in range(256)]
    assert (bounds[0], bounds[-1]) == (0, n_rows)


@pytest.mark.parametrize("n_rows", [10, 1000, 10_000])
def test_rows_that_were_dealt_are_cut_where_a_part_begins(n_rows: int) -> None:
    bounds = plan_even(n_rows, 3, 3, order="dealt").bounds
    assert set(bounds) <= set(part_bounds(n_rows).tolist())
    if n_rows > 10:
        free = plan_even(n_rows, 3, 3, order="rcm").bounds
        assert not set(free) <= set(part_bounds(n_rows).tolist())
        assert np.abs(np.subtract(bounds, free)).max() <= -(-n_rows // PARTS)


PRODUCT: dict[str, Any] = {"kind": "matrix", "dtype": "float64", "precision": "float64", "threads": 1}
"""A product: 12 bytes an entry; 16 a row, for its pointer and y; 8 a column, for x."""
LARGE = 10**9


LAID: dict[str, Any] = {"threads": 1, "lays_out": True, "streams": True}
"""PageRank in `exact` of a pattern: in the layout 4.4 bytes an entry, and 8 while it is made; 36 a row, for its ranks,
out-weight, z, next z and place."""
SQUARE = (1000, 1000)
"""Rows, and entries of each: 4,400,000 bytes in the layout, 36,000 of vectors."""
CSR: dict[str, Any] = PRODUCT | {"streams": True}
"""A product, for which nothing is laid out."""
STORE_PIECES = PASSING["store"]
"""Which all of the room is for, where rows come by from the store."""


def stream_all_from_store(room: int, whole: int, entry_bytes: int, ratio: float) -> Streaming:
    """What is as good as all of the matrix, in pieces that the room is cut into."""
    piece = room // STORE_PIECES
    kept = room - STORE_PIECES * piece
    assert kept < STORE_PIECES
    return Streaming("store", piece // entry_bytes, kept, room - kept, int((whole - kept) / ratio))


@pytest.mark.parametrize(
    ("options", "layout", "vectors"),
    [
        # 10 rows of 3 entries: a tenth more than in CSR, and CSR with the places of columns; vectors and the order
        ({}, 132 + (4 + 4) * 30, 320 + 4 * 10),
        ({"dtype": "float64"}, 396 + (12 + 4) * 30, 320 + 4 * 10),
        ({"dtype": "float64", "precision": "float32"}, 264 + (8 + 4) * 30, 280 + 4 * 10),
        ({"index_dtype": "int64"}, 264 + (8 + 8) * 30, 320 + 8 * 10),
    ],
)
def test_bytes_of_a_layout_by_hand(options: dict[str, Any], layout: int, vectors: int) -> None:
    (worker,) = plan_even(10, 3, **LAID, **options, device_memory=LARGE).workers
    assert (worker.layout_bytes, worker.vector_bytes) == (layout, vectors)
    assert (worker.held, worker.streaming, worker.device_bytes) == ("device", None, layout + vectors)
    assert worker.host_bytes == worker.load_bytes


@pytest.mark.parametrize(
    ("n_rows", "per_row", "making", "wanted"),
    [
        (2**17, 2**10, 8 * 2**27, 2**27),  # at once, with the positions of columns
        (2**19, 2**10, 8 * 2**25, 2**25),  # two pieces, beside tables where vectors will be
        (2**25, 2**5, 8 * 2**25, int(0.65 * 32 * 2**25) // 8),  # 0.65 of the memory for vectors, if it is free
    ],
)
def test_pieces_of_rows_take_the_memory_of_vectors(n_rows: int, per_row: int, making: int, wanted: int) -> None:
    need = int(1.1 * 4 * per_row * n_rows) + making + 36 * n_rows
    for free, piece in ((0, min(wanted, max(2**25, making // 8))), (10**10, wanted)):
        (worker,) = plan_even(n_rows, per_row, **LAID, device_memory=need + free).workers
        assert (worker.device_bytes, worker.bin_bytes, worker.held) == (need, free // 2, "device")
        assert choose_piece(worker) == worker.piece_entries == piece
        assert choose_piece(worker, is_there=True) == n_rows * per_row
        assert worker.piece_bytes == max(0, 8 * piece - making if per_row * n_rows > 2**27 else 0)


@pytest.mark.parametrize(("nnz_per_row", "is_whole"), [(2**12 - 1, True), (2**12, False)])
def test_rows_on_the_device_are_in_pieces_if_32_bits_do_not_number_them(nnz_per_row: int, is_whole: bool) -> None:
    (worker,) = plan_even(2**19, nnz_per_row, **LAID, device_memory=10**12).workers
    assert (choose_piece(worker, is_there=True) == worker.nnz) == is_whole


def test_32_bits_number_the_entries_of_a_piece() -> None:
    n_rows, nnz = 2**30, 2**34
    planner = Planner(make_info((n_rows, n_rows), nnz), {0: 0, n_rows: nnz}, **LAID)
    assert planner.plan_rows(device_memory=10**12).workers[0].piece_entries == 2**31 - 1


def test_pieces_that_are_streamed_are_not_read_in_larger_ones() -> None:
    (worker,) = plan_even(2**19, 2**10, **LAID, device_memory=10**12).workers
    for n_entries, wanted in ((700, 700), (2**26, 2**25)):
        streamed = replace(worker, streaming=Streaming("host", n_entries, 0, 0, 0))
        assert choose_piece(streamed) == choose_piece(streamed, is_there=True) == wanted
    streamed = replace(streamed, nnz=2**27)
    assert choose_piece(streamed) == 2**26


def test_rows_stay_where_there_is_exactly_enough_room() -> None:
    need = 4_400_000 + 8_000_000 + 36_000
    (worker,) = plan_even(*SQUARE, **LAID, device_memory=need).workers
    assert (worker.held, worker.streaming, worker.device_bytes) == ("device", None, need)


def test_rows_that_have_room_but_not_while_they_are_laid_out_stay_in_pieces() -> None:
    (worker,) = plan_even(*SQUARE, **LAID, device_memory=4_400_000 + 8_000_000 + 36_000 - 1).workers
    assert (worker.held, worker.has_device) == ("device", True)
    assert worker.streaming == Streaming("host", 258_333, 4_400_000, 4 * 1_033_333, 0)  # a twelfth of 12,399,999
    assert worker.host_bytes == worker.load_bytes


def test_what_comes_by_from_the_store_by_hand() -> None:
    """It is in CSR there, which is smaller."""
    memory = {"device_memory": 36_000 + 6_000_000}
    load = plan_even(*SQUARE, **LAID).workers[0].load_bytes
    assert plan_even(*SQUARE, **LAID, **memory, host_memory=load + 400_000).workers[0].held == "host"
    (worker,) = plan_even(*SQUARE, **LAID, **memory, host_memory=load + 399_999).workers
    assert worker.held == "store"
    assert worker.streaming == stream_all_from_store(6_000_000, 4_400_000, 4, 1.1)
    assert worker.streaming.streamed_bytes == pytest.approx(4_000_000, abs=10)
    assert (worker.device_bytes, worker.host_bytes) == (6_036_000, load)
    with pytest.raises(CapacityError, match="B of host memory on one of them, which has"):
        plan_even(*SQUARE, **LAID, **memory, host_memory=load - 1)


@pytest.mark.parametrize(
    ("room", "held"),
    [(STORE_PIECES * 1024 - 1, None), (STORE_PIECES * 1024, "store"), (12 * 1024 - 1, "store"), (12 * 1024, "host")],
)
def test_a_device_has_room_for_a_few_small_pieces_or_is_too_small(room: int, held: str | None) -> None:
    for options, vectors in ((LAID, 36_000), (CSR, 16_000)):
        if held is not None:
            assert plan_even(*SQUARE, **options, device_memory=vectors + room).workers[0].held == held
            continue
        with pytest.raises(CapacityError) as caught:
            plan_even(*SQUARE, **options, device_memory=vectors + room)
        shortage, enough, least = str(caught.value).split("; ")
        assert re.fullmatch(r"\d+ workers of that size suffice", enough)
        assert re.fullmatch(r"from [\d.]+ [kM]B of device memory each on rows are streamed", least)
        need = {36_000: "12.4", 16_000: "12"}[vectors]
        what = "pagerank" if options is LAID else "spmv"
        have = f"which has {format_bytes(vectors + room)}"
        assert shortage == f"{what} of m.zarr on 1 worker needs {need} MB of device memory on one of them, {have}"


def test_workers_that_would_do_are_those_on_which_rows_may_come_by() -> None:
    """Of a million columns each worker holds z, and whoever has room for that has some for pieces."""
    few: dict[str, Any] = LAID | {"device_memory": 34_000_000}
    named = []
    for streams in (True, False):
        with pytest.raises(CapacityError) as caught:
            plan_even(10**6, 50, **few | {"streams": streams})
        named.append(named_workers(caught.value))
        held = {w.held for w in plan_even(10**6, 50, named[-1], **few | {"streams": streams}).workers}
        assert held == ({"host"} if streams else {"device"})
        with pytest.raises(CapacityError):
            plan_even(10**6, 50, named[-1] // 2, **few | {"streams": streams})
    assert named[0] < named[1]


@given(
    shape=st.tuples(st.integers(0, 300), st.integers(0, 200)),
    n_workers=st.integers(1, 3),
    options=st.sampled_from([LAID, CSR]),
    device=st.integers(0, 400_000),
    host=st.integers(0, 400_000) | st.none(),
)
def test_a_plan_keeps_every_limit_or_is_refused(
    shape: tuple[int, int], n_workers: int, options: dict[str, Any], device: int, host: int | None
) -> None:
    wanted = plan_even(*shape, n_workers, **options, device_memory=LARGE).workers
    try:
        plan = plan_even(*shape, n_workers, **options, device_memory=device, host_memory=host)
    except CapacityError:
        assert any(
            (w.device_bytes > device and device - w.vector_bytes < STORE_PIECES * 1024)
            or (host is not None and w.load_bytes > host)
            for w in wanted
        )
        return
    for worker, whole in zip(plan.workers, wanted, strict=True):
        assert worker.device_bytes <= device
        assert host is None or worker.host_bytes <= host
        assert (worker.streaming is None) == (whole.device_bytes <= device)
        if worker.streaming is None:
            assert replace(worker, bin_bytes=0) == replace(whole, bin_bytes=0)
            assert worker.device_bytes + worker.bin_bytes <= device
            continue
        n_bytes = int(1.1 * 4 * worker.nnz) if options is LAID else worker.block_bytes
        ratio = 1.1 if options is LAID and worker.held == "store" else 1.0
        coming = n_bytes - worker.streaming.kept_bytes
        assert worker.streaming.streamed_bytes == pytest.approx(coming / ratio, abs=1)
        assert (worker.held == "device") == (coming == 0)
        room = device - worker.vector_bytes
        if worker.held == "store" and room >= 12 * 1024:  # the host had none for what would come from it
            assert host is not None
            assert host < worker.load_bytes + n_bytes - (room - 4 * (room // 12))


@pytest.mark.parametrize(
    ("memory", "most", "expected"), [(None, None, None), (None, 5, None), (7, None, 7), (7, 5, 5), (5, 7, 5), (7, 0, 0)]
)
def test_limits(memory: int | None, most: int | None, expected: int | None) -> None:
    assert limit(memory, most) == expected
