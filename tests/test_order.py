"""Renumbered matrices: SciPy says what the matrix is and how narrow it gets, and no result shows the order."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import dask.array as da
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
import mgspmv.order
from mgspmv.errors import (
    CapacityError,
    DanglingError,
    OptionError,
    SourceError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
)
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.open import open_source
from mgspmv.model import IngestOptions
from mgspmv.order import METHODS, PARTS, estimate_bytes, invert, permute, restore
from tests.support.arrays import CsrArrays, build_matrix, read_arrays, transpose_arrays, write_store
from tests.support.hearing import on_phases
from tests.support.matrices import HARD
from tests.support.placed import call_placed
from tests.support.reference_data import shared_data
from tests.support.shrinking import shrink
from tests.support.stores import Crash, CrashingStore, find_group, make_arrays, make_scipy, make_stochastic, put

SQUARE = {name: hard for name, hard in HARD.items() if hard.shape[0] == hard.shape[1]}


def shuffle_band(n: int, half: int, seed: int = 0, keep: float = 1.0) -> sp.csr_array:
    """A band matrix with `half` diagonals on each side, whose rows and columns were shuffled alike."""
    rng = np.random.default_rng(seed)
    band = sp.diags_array(
        [rng.random(n) + 0.5 for _ in range(2 * half + 1)], offsets=range(-half, half + 1), shape=(n, n)
    )
    coo = band.tocoo()
    stays = (rng.random(coo.nnz) < keep) | (np.abs(coo.row - coo.col) <= 1)
    place = rng.permutation(n)
    shuffled = (coo.data[stays], (place[coo.row[stays]], place[coo.col[stays]]))
    return sp.csr_array(sp.coo_array(shuffled, shape=(n, n)))


def find_bandwidth(matrix: Any) -> int:
    coo = matrix.tocoo()
    return int(np.abs(coo.row.astype(np.int64) - coo.col).max(initial=0))


def find_order(matrix: CsrArrays, method: str) -> np.ndarray:
    """The order of a matrix that is in memory."""
    return METHODS[method](np.diff(matrix.indptr), matrix.indices)


def apply_order(matrix: CsrArrays, order: np.ndarray, method: str) -> CsrArrays:
    """A matrix in memory whose rows and columns are renumbered."""
    return replace(renumber(matrix, order), order=order, order_method=method)


def renumber(matrix: CsrArrays, order: np.ndarray) -> CsrArrays:
    places = np.argsort(order)
    rows, cols = np.repeat(places, np.diff(matrix.indptr)), places[matrix.indices]
    by_place = np.lexsort((cols, rows))
    indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=len(order))))
    indices = cols[by_place].astype(matrix.indices.dtype)
    data = None if matrix.data is None else matrix.data[by_place]
    degree, weight = (None if v is None else v[order] for v in (matrix.out_degree, matrix.out_weight))
    return replace(matrix, indptr=indptr, indices=indices, data=data, out_degree=degree, out_weight=weight)


def reorder_copy(A: mg.Matrix, place: Any = None, **options: Any) -> mg.Matrix:
    """A with another order, in a store of its own."""
    return mg.reorder(A.stored.place, MemoryStore() if place is None else place, **options)


def shuffle_stored(A: mg.Matrix, place: Any, seed: int = 5) -> mg.Matrix:
    """A in an order of no sense, so that nothing is right by chance."""
    matrix, n = read_arrays(A.stored), A.shape[0]
    order = np.random.default_rng(seed).permutation(n).astype(A.info.index_dtype)
    renumbered = apply_order(matrix, order, "rcm")
    transpose = transpose_arrays(renumbered) if A.info.has_transpose else None
    write_store(place, renumbered, transpose=transpose)
    return mg.open_matrix(place)


def read_stored(A: mg.Matrix) -> sp.csr_array:
    """The matrix as its rows are stored."""
    block = A.block(None if A.is_pattern else "float64")
    data = np.ones(block.nnz) if block.data is None else block.data
    return sp.csr_array((data, block.indices, block.indptr), shape=A.shape)


def assert_same_arrays(found: CsrArrays, wanted: CsrArrays) -> None:
    assert (found.kind, found.shape, found.duplicates) == (wanted.kind, wanted.shape, wanted.duplicates)
    assert found.order_method == wanted.order_method
    for name in ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids", "order"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype, name
            assert one.tolist() == other.tolist(), name


@pytest.mark.parametrize("half", [1, 2, 5])
def test_a_shuffled_band_becomes_narrow_again(half):
    """A level of the search is at most the 2 * half neighbours of the last, and an entry spans two levels."""
    matrix = shuffle_band(500, half, keep=0.8)
    assert find_bandwidth(matrix) > 400
    order = find_order(make_arrays(matrix), "rcm")
    assert find_bandwidth(matrix[order][:, order]) <= 4 * half
    if half == 1:
        assert find_bandwidth(matrix[order][:, order]) == 1


def test_only_the_pattern_of_both_directions_counts():
    """Arcs of one direction, and skew-symmetric values, whose sums with their mirror images are 0."""
    whole = shuffle_band(300, 1)
    upper, skew = sp.csr_array(sp.triu(whole, 1)), sp.csr_array(sp.triu(whole, 1) - sp.triu(whole, 1).T)
    for matrix in (whole, upper, skew):
        matrix.sort_indices()
        order = find_order(make_arrays(matrix), "rcm")
        assert find_bandwidth(whole[order][:, order]) == 1


def test_entries_at_one_place_do_not_overflow():
    """256 times the same entry, where a count in one byte would be 0."""
    n, times = 40, 256
    place = np.random.default_rng(0).permutation(n)
    first, second = np.repeat(place[:-1], times), np.repeat(place[1:], times)
    arrays = build_matrix(
        open_source((first, second), n_vertices=n),
        IngestOptions(duplicates="keep"),
        lambda *_: None,
    )[0]
    assert len(arrays.indices) == (n - 1) * times
    order = find_order(arrays, "rcm")
    assert np.abs(np.diff(invert(order)[place])).max() == 1


@pytest.mark.parametrize(
    "name", ["jagmesh7.mtx.gz", "bcspwr10.mtx.gz", "1138_bus.mtx.gz", "494_bus.mtx", "mdual.mtx.gz"]
)
def test_real_matrices_become_narrower(name, ingested, tmp_path):
    """No wider than half of what they were, nor than twice what NetworkX makes of them."""
    shared_data(f"matrices/{name}")
    A = ingested(f"matrices/{name}")
    B = reorder_copy(A, tmp_path / "b.zarr")
    before, after = find_bandwidth(A.to_scipy()), find_bandwidth(read_stored(B))
    made = B.info.provenance["reordering"]
    assert (made["bandwidth_before"], made["bandwidth_after"]) == (before, after)
    assert after <= before / 2
    if A.shape[0] < 6000:
        graph = nx.from_scipy_sparse_array(A.to_scipy() + A.to_scipy().T)
        other = np.array(list(nx.utils.reverse_cuthill_mckee_ordering(graph)))
        assert after <= 2 * find_bandwidth(A.to_scipy()[other][:, other])


def make_skewed(n: int, seed: int = 0) -> sp.csr_array:
    """Rows of very different lengths, of which many are equal."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.zipf(1.5, n), n // 2)
    cols = np.concatenate([rng.choice(n, length, replace=False) for length in lengths])
    matrix = sp.coo_array((np.ones(len(cols)), (np.repeat(np.arange(n), lengths), cols)), shape=(n, n))
    return sp.csr_array(matrix)


def test_by_degree_the_longest_rows_come_first():
    """And those of one length as in the source, which sorting pairs says too."""
    matrix = make_skewed(1000)
    lengths = np.diff(matrix.indptr).tolist()
    order = find_order(make_arrays(matrix), "degree").tolist()
    assert order == sorted(range(1000), key=lambda i: (-lengths[i], i))
    assert len(set(lengths)) < 200 < lengths[order[0]]


@pytest.mark.parametrize("n", [PARTS - 1, PARTS, 5 * PARTS + 3])
def test_dealt_parts_are_alike(n):
    """As a dealer of cards would: part after part gets the next of the longest rows."""
    matrix = make_skewed(n)
    lengths = np.diff(matrix.indptr)
    parts: list[list[int]] = [[] for _ in range(PARTS)]
    for place, row in enumerate(find_order(make_arrays(matrix), "degree").tolist()):
        parts[place % PARTS].append(row)
    assert find_order(make_arrays(matrix), "dealt").tolist() == list(chain.from_iterable(parts))
    entries = [int(lengths[part].sum()) for part in parts]
    assert max(entries) - min(entries) <= lengths.max()


def test_vectors_longer_than_a_piece(monkeypatch):
    monkeypatch.setattr(mgspmv.order, "_PIECE", 7)
    for n in (0, 1, 6, 7, 8, 50):
        order = np.random.default_rng(n).permutation(n).astype(np.int32)
        for x in (np.random.default_rng(1).random(n), np.random.default_rng(1).random((n, 2)).astype(np.float32)):
            assert permute(x, order).tobytes() == x[order].tobytes()
            assert restore(x, order).tobytes() == x[np.argsort(order)].tobytes()
            assert permute(x, order).dtype == restore(x, order).dtype == x.dtype
        assert invert(order).tolist() == np.argsort(order).tolist()


@pytest.mark.parametrize(("has_values", "rule"), [(False, "first"), (True, "keep")])
@pytest.mark.parametrize("name", SQUARE)
def test_hard_matrices_come_back_to_the_bit(name, has_values, rule):
    """With entries at one place kept too, whose values must keep their order."""
    hard = SQUARE[name]
    values = (hard.values,) if has_values else ()
    options: dict[str, Any] = {"n_vertices": hard.shape[0], "duplicates": rule, "transpose": True}
    A = mg.ingest((hard.rows, hard.cols, *values), MemoryStore(), **options)
    B = reorder_copy(A)
    assert mg.verify(B.stored.place) == []
    assert (B.info.order, B.info.has_transpose, B.nnz, B.kind) == ("rcm", True, A.nnz, A.kind)
    assert B.order is not None
    stored = A.to_scipy()[B.order][:, B.order].toarray()
    assert (read_stored(B).toarray() == stored).all()
    made = B.info.provenance["reordering"]
    assert made["bandwidth_before"] == find_bandwidth(read_stored(A))
    assert made["bandwidth_after"] == find_bandwidth(read_stored(B))
    assert (read_stored(B.T).toarray() == stored.T).all()
    for found, wanted in ((B.to_scipy(), A.to_scipy()), (B.T.to_scipy(), A.T.to_scipy())):
        assert [getattr(found, part).tolist() for part in ("indptr", "indices", "data")] == [
            getattr(wanted, part).tolist() for part in ("indptr", "indices", "data")
        ]
    assert_same_arrays(read_arrays(reorder_copy(B, method="none").stored), read_arrays(A.stored))


def test_ids_are_those_of_the_source(tmp_path):
    """Ascending, so that they can be looked up, and not those of the stored rows."""
    (tmp_path / "arcs.txt").write_text("c a\na d\nd b\nb e\n")
    A = mg.ingest(tmp_path / "arcs.txt", MemoryStore(), transpose=True)
    B = reorder_copy(A)
    assert B.order is not None
    assert B.order.tolist() not in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])
    assert B.vertex_ids.tolist() == B.T.vertex_ids.tolist() == list("abcde")
    wanted = A.stored.read_array("out_degree")
    assert B.stored.read_array("out_degree").tolist() == wanted[B.order].tolist()


def test_reordering_in_place_makes_a_new_version(tmp_path):
    A = mg.ingest(shuffle_band(60, 1), tmp_path / "a", transpose=True)
    x = np.random.default_rng(0).integers(-9, 9, 60)
    info = mg.reorder(tmp_path / "a").info
    assert info.version.startswith("v000002-")
    assert info.url == str(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a/versions").iterdir() if path.is_dir()] == [info.version]
    B = mg.open_matrix(tmp_path / "a")
    assert np.allclose(B @ x, shuffle_band(60, 1) @ x, rtol=1e-14)
    back = mg.reorder(tmp_path / "a", method="none").info
    assert (back.digest, back.order) == (A.info.digest, None)
    assert back.provenance["reordering"]["method"] == "none"
    assert back.provenance["reordering"]["bandwidth_before"] == 1


def test_a_target_is_overwritten_on_request_only(tmp_path):
    for name, n in (("a", 20), ("b", 9)):
        mg.ingest(make_scipy(n, n), tmp_path / name)
    message = r"b holds a matrix; pass overwrite=True or choose another place"
    with pytest.raises(StoreExistsError, match=message):
        mg.reorder(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreExistsError, match=r"a holds a matrix"):
        mg.reorder(tmp_path / "a", tmp_path / "a")
    assert mg.open_matrix(tmp_path / "b").shape == (9, 9)
    assert mg.reorder(tmp_path / "a", tmp_path / "b", overwrite=True).info.shape == (20, 20)
    assert mg.reorder(tmp_path / "a", tmp_path / "a", overwrite=True).info.order == "rcm"
    assert mg.reorder(tmp_path / "a", overwrite=True).info.version.startswith("v000003-")


@pytest.mark.parametrize("stays_down", [False, True])
def test_what_is_interrupted_leaves_the_old_version(stays_down):
    """At each write; where it has named the new version already, that is whole, and it was successful."""
    A = mg.ingest(shuffle_band(12, 1), MemoryStore())
    new, seen = reorder_copy(A).info.digest, set()
    for at in range(1, 100):
        place = MemoryStore(dict(A.stored.place._store_dict))
        crashing = CrashingStore(place, at=at, stays_down=stays_down)
        try:
            mg.reorder(crashing)
            wanted = "rcm"
        except (Crash, StoreError):
            wanted = None
        found = mg.open_matrix(place)
        assert found.info.digest == (new if wanted else A.info.digest)
        seen.add(found.info.order)
        assert (found.to_scipy() != A.to_scipy()).nnz == 0
        if ("set", "crash") not in crashing.calls:
            break
    assert at > 15
    assert seen == {None, "rcm"}


def collect_keys(root: Any) -> list[str]:
    return [path.name for path in (root / "versions").iterdir() if path.is_dir()]


def test_a_matrix_that_was_replaced_meanwhile_is_not_lost():
    mg.ingest(make_scipy(20, 20), place := MemoryStore())

    def replace(phase: str, done: int, total: int | None) -> None:
        if phase == "order":
            mg.ingest(make_scipy(5, 5), place, overwrite=True)

    with pytest.raises(StoreError, match=r"v000001-.* are missing; open it again if it was replaced since"):
        mg.reorder(place, progress=on_phases(replace))
    assert mg.open_matrix(place).shape == (5, 5)


SKEWED = make_skewed(300)


OWN_CLAIMS = ("version", "created", "provenance", "attributes_digest")


def read_claims(A: mg.Matrix) -> dict[str, Any]:
    """What a store says of itself, digests of all arrays included, but for when and from what it was made."""
    attributes: Any = dict(A.stored.group.attrs["mgspmv"])
    return {name: value for name, value in attributes.items() if name not in OWN_CLAIMS}


def assert_same_stores(found: mg.Matrix, wanted: mg.Matrix) -> None:
    assert_same_arrays(read_arrays(found.stored), read_arrays(wanted.stored))
    assert read_claims(found) == read_claims(wanted)
    assert mg.verify(found.stored.place) == []
    if wanted.info.has_transpose:
        assert_same_arrays(read_arrays(found.T.stored), read_arrays(wanted.T.stored))


def test_provenance_says_the_order_of_an_ingest(tmp_path):
    """What `reorder` says of the bandwidths; and the store is written once, whole."""
    matrix = shuffle_band(50, 1)
    phases: list[str] = []
    mg.ingest(matrix, tmp_path / "a")
    mg.ingest(matrix, tmp_path / "b", order="rcm", progress=on_phases(lambda phase, *_: phases.append(phase)))
    A, B = (mg.open_matrix(tmp_path / name).info for name in "ab")
    assert (A.provenance["options"]["order"], B.provenance["options"]["order"]) == ("none", "rcm")
    assert "reordering" not in A.provenance
    made = {"method": "rcm", "bandwidth_before": find_bandwidth(matrix), "bandwidth_after": 1}
    assert B.provenance["reordering"] == made
    assert mg.reorder(tmp_path / "a").info.provenance["reordering"].items() >= made.items()
    assert B.version.startswith("v000001-")
    assert collect_keys(tmp_path / "b") == [B.version]
    changes = [phases[0], *(b for a, b in pairwise(phases) if a != b)]
    assert changes == ["read", "order", "renumber", "sort and write"]


def little(monkeypatch, memory):
    for name in ("derived", "stores"):
        monkeypatch.setattr(f"mgspmv.api.{name}.find_budget", lambda *_, **__: MemoryBudget(memory, 2, None))


@pytest.mark.parametrize(
    ("method", "transpose"), [("rcm", False), ("rcm", True), ("degree", True), ("dealt", False), ("none", True)]
)
def test_what_an_order_takes_must_fit(method, transpose, monkeypatch):
    """Into half of the memory where a source or the transpose takes the other."""
    A = mg.ingest(SKEWED, MemoryStore(), transpose=transpose)
    need = estimate_bytes(method, *A.shape[:1], A.nnz)
    assert need == 32 * 300 + (20 * A.nnz if method == "rcm" else 0)
    message = r"reordering .* needs .* GB of host memory, but only .* GB may be used; raise memory="
    little(monkeypatch, (1 + transpose) * need)
    reorder_copy(A, method=method)
    little(monkeypatch, (1 + transpose) * need - 1)
    with pytest.raises(CapacityError, match=message):
        reorder_copy(A, method=method)
    if method != "none":
        little(monkeypatch, 2 * need)
        mg.ingest(SKEWED, MemoryStore(), transpose=transpose, order=method)
        little(monkeypatch, 2 * need - 1)
        with pytest.raises(CapacityError, match=message):
            mg.ingest(SKEWED, place := MemoryStore(), transpose=transpose, order=method)
        assert not place._store_dict


@pytest.fixture
def small(monkeypatch):
    """Groups, blocks and chunks of which a small matrix has many."""
    sorter = {"GROUPED_ENTRIES": 500, "BLOCK_ENTRIES": 200, "WRITE_BYTES": 4096}
    pieces = {"PIECE_ENTRIES": 300, "PIECE_ROWS": 70}
    shrink(monkeypatch, ingest__external_sort=sorter, ingest__stored=pieces, store__digests={"CHUNK_ELEMENTS": 256})


ENDS = (np.random.default_rng(8).random((2, 3000)) ** 2 * 300).astype(np.int64)
WEIGHTS = np.random.default_rng(9).random(3000)
MANY: dict[str, tuple[Any, dict[str, Any]]] = {
    "matrix": (sp.coo_array((np.arange(3000), tuple(ENDS)), shape=(300, 300)), {}),
    "graph": ((*ENDS, WEIGHTS), {"n_vertices": 300}),
    "graph, entries at one place": ((*ENDS, WEIGHTS), {"n_vertices": 300, "duplicates": "keep"}),
    "graph, integers as ids, a pattern": (tuple(7 * ENDS + 5), {}),
    "graph, names as ids": (nx.DiGraph((f"v{i}", f"v{j}") for i, j in ENDS.T), {}),
    "matrix of float32": (make_skewed(300), {"dtype": "float32", "symmetrize": True}),
    "stochastic": (make_stochastic(120), {"kind": "stochastic"}),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("matrix", "rcm"),
        ("matrix", "degree"),
        ("graph", "dealt"),
        ("graph, entries at one place", "rcm"),
        ("graph, entries at one place", "degree"),
        ("graph, integers as ids, a pattern", "dealt"),
        ("graph, names as ids", "degree"),
        ("matrix of float32", "dealt"),
        ("stochastic", "degree"),
    ],
)
def test_an_order_by_way_of_files_is_that_of_the_matrix_in_memory(small, name, method, monkeypatch):
    """From a source, and from a store that has an order already."""
    source, options = MANY[name]
    A = mg.ingest(source, MemoryStore(), transpose=True, **options)
    arrays = read_arrays(A.stored)
    reordered = apply_order(arrays, find_order(arrays, method), method)
    write_store(place := MemoryStore(), reordered, transpose=transpose_arrays(reordered))
    wanted = mg.open_matrix(place)
    shuffled, n_spilled, spill = shuffle_stored(A, MemoryStore()), [], EntrySorter._spill
    little(monkeypatch, max(60_000, 2 * estimate_bytes(method, A.shape[0], 5000)))
    monkeypatch.setattr(EntrySorter, "_spill", lambda sorter: (n_spilled.append(1), spill(sorter)))
    assert_same_stores(mg.ingest(source, MemoryStore(), transpose=True, order=method, **options), wanted)
    assert n_spilled or method == "rcm"
    assert_same_stores(reorder_copy(shuffled, method=method), wanted)
    assert_same_stores(reorder_copy(shuffled, method="none"), A)


def test_a_stochastic_column_is_named_as_in_the_source():
    """Where the longest row is the last of the source, and its number is 0 in the store."""
    ends, values = ([0, 1, 2, 2, 2], [1, 2, 0, 1, 2]), [1.0, 0.5, 1.0, 0.0, 0.25]
    for order in ("none", "degree"):
        with pytest.raises(SourceError, match=r"column 2 sums to 0\.75"):
            mg.ingest(sp.coo_array((values, ends)), kind="stochastic", order=order)


@pytest.fixture
def damaged(tmp_path):
    """Folder of the current version of a renumbered graph, to be damaged; its store is two above."""
    mg.ingest(([0, 1, 2, 3], [1, 2, 3, 0]), tmp_path / "a", transpose=True)
    mg.reorder(tmp_path / "a")
    return find_group(tmp_path / "a")


def use_all(root: Any) -> list[Any]:
    """Each use of a matrix, as what can be called."""
    A = mg.open_matrix(root)
    uses = [lambda: A @ np.ones(4), lambda: A.T @ np.ones(4), lambda: mg.pagerank(A), A.to_scipy, A.T.to_scipy]
    return [*uses, lambda: mg.reorder(root, MemoryStore())]


@pytest.mark.parametrize("numbers", [[0, 1, 2, 2], [0, 1, 2, 4], [-1, 1, 2, 3]])
def test_no_permutation(damaged, numbers):
    root = damaged.parents[1]
    put(root, "order", numbers)
    message = r"a: order is not a permutation of the 4 rows; ingest again or restore a copy"
    for use in use_all(root):
        with pytest.raises(StoreDamagedError, match=message):
            use()
    assert any("order: must hold each of 0..3 once" in problem for problem in mg.verify(root))


def make_integers(n: int, seed: int = 0) -> sp.csr_array:
    """A matrix whose products with integers are exact, in whatever order they are summed."""
    matrix = make_scipy(n, n, 0.1, seed=seed)
    matrix.data = np.round(matrix.data)
    return matrix


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    """A matrix of integers with its transpose, and the same in an order of no sense."""
    folder = tmp_path_factory.mktemp("shuffled")
    A = mg.ingest(make_integers(90), folder / "a", transpose=True)
    return A, shuffle_stored(A, folder / "b")


PRODUCTS = [
    ((), {}),
    ((3,), {}),
    ((1,), {"alpha": -2.0}),
    ((), {"alpha": 0.5, "beta": 2.0}),
    ((2,), {"alpha": 0.5, "beta": -1.0}),
    ((0,), {"beta": 1.0}),
    ((), {"precision": "float32"}),
    ((2,), {"precision": "float32", "beta": 1.0, "kernel": "csr-serial"}),
]


def make_vectors(n, columns, options, seed=1):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(-50, 50, (n, *columns)), rng.integers(-50, 50, (n, *columns))
    return x, options | ({"y": y} if "beta" in options else {})


def check_product(found, wanted):
    assert (found.tolist(), found.dtype) == (wanted.tolist(), wanted.dtype)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_products_are_in_the_order_of_the_source(shuffled, is_transposed, client):
    A, B = (matrix.T if is_transposed else matrix for matrix in shuffled)
    with B.distribute(client) as D:
        for columns, options in PRODUCTS:
            x, options = make_vectors(90, columns, options)
            wanted = call_placed(mg.spmv, A, x, **options)
            check_product(call_placed(mg.spmv, B, x, **options), wanted)
            check_product(call_placed(mg.spmv, D, x, **options), wanted)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_dask_products_on_a_cluster(shuffled, columns, client):
    A, B = shuffled
    x, options = make_vectors(90, columns, {"alpha": 0.5, "beta": 2.0})
    lazy_x, lazy_y = (da.from_array(v, chunks=(37, *columns)) for v in (x, options["y"]))
    with B.distribute(client) as D:
        for given in ({"alpha": 0.5}, options, options | {"y": lazy_y}):
            product = mg.spmv(D, lazy_x, **given)
            assert isinstance(product, np.ndarray)
            assert product.shape == x.shape
            check_product(product, mg.spmv(A, x, **given | {"y": options["y"]}))


def check_same(found, wanted, precision="exact", name=""):
    assert (found.status, found.iterations, found.values.dtype) == (
        wanted.status,
        wanted.iterations,
        wanted.values.dtype,
    ), name
    if precision == "exact":
        assert found.changes == wanted.changes, name
        assert found.digest() == wanted.digest(), name
        assert found.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=1e-6, abs=1e-18)
    else:
        distance = np.abs(found.values.astype(np.float64) - wanted.values).sum()
        assert distance <= {"float64": 1e-12, "float32": 1e-5}[precision]


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """A weighted graph with ids that are strings and some dangling vertices, and the same in an order of no sense."""
    rng = np.random.default_rng(4)
    folder = tmp_path_factory.mktemp("web")
    arcs = zip(rng.integers(0, 50, 400), rng.integers(0, 60, 400), rng.random(400), strict=True)
    (folder / "arcs.txt").write_text("".join(f"page{i} page{j} {weight}\n" for i, j, weight in arcs))
    A = mg.ingest(folder / "arcs.txt", folder / "a")
    return A, shuffle_stored(A, folder / "b")


def make_runs(n, ids):
    """Options of runs, with vectors as arrays in the source's order, and by id."""
    rng = np.random.default_rng(6)
    p, d, x = rng.random((3, n))
    by_id = {ids[k]: float(k + 1) for k in (3, 17, 5)}
    return {
        "default": {},
        "arrays": {"personalization": p, "dangling": d, "nstart": x},
        "by id": {"personalization": by_id, "dangling": {ids[11]: 1.0}, "nstart": by_id},
        "jumps, dangling as jumps": {"personalization": p},
        "drop": {"dangling": "drop", "personalization": by_id},
        "uniform": {"dangling": "uniform", "personalization": p},
        "without weights": {"weight": False, "nstart": x},
        "few iterations": {"norm": "fixed", "max_iter": 3, "nstart": by_id},
    }


@pytest.mark.parametrize("executor", ["tasks", "supersteps"])
def test_ranks_are_in_the_order_of_the_source(web, executor, client):
    A, B = web
    runs = make_runs(A.shape[0], A.vertex_ids.tolist())
    for weights in (True, False):
        with B.distribute(client, weight=weights) as D:
            for name, options in runs.items():
                if options.get("weight", True) is weights:
                    options = {"norm": "fixed", "max_iter": 3} | options
                    wanted = mg.pagerank(A, **options)
                    check_same(mg.pagerank(D.on(executor=executor), **options), wanted, name=name)
                    if executor == "tasks":
                        check_same(found := mg.pagerank(B, **options), wanted, name=name)
                        assert found.top(5) == wanted.top(5)


@pytest.mark.parametrize("name", ["polblogs.txt.gz", "celegansneural.txt.gz"])
def test_ranks_of_real_graphs_have_one_digest(name, ingested, tmp_path, client):
    shared_data(f"graphs/{name}")
    A = ingested(f"graphs/{name}")
    B = reorder_copy(A, tmp_path / "b.zarr")
    assert B.order is not None
    assert (B.order != np.arange(A.shape[0])).any()
    wanted = mg.pagerank(A)
    check_same(mg.pagerank(B), wanted)
    check_same(mg.pagerank(B.on(client)), wanted)


def test_messages_name_the_vertices_of_the_source(web):
    A, B = web
    for options in (
        {"dangling": "error"},
        {"personalization": {"page9999": 1}},
        {"nstart": np.where(np.arange(A.shape[0]) == 7, -1.0, 1.0)},
    ):
        with pytest.raises((DanglingError, OptionError)) as wanted:
            mg.pagerank(A, **options)
        with pytest.raises(type(wanted.value)) as found:
            mg.pagerank(B, **options)
        assert str(found.value) == str(wanted.value)
        assert "page" in str(found.value)
