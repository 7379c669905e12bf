"""The CUDA kernels on a device: beside SciPy, bit for bit beside their twins, and PageRank beside the CPU's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import mgspmv as mg
from mgspmv.errors import CapacityError, FormatError, OptionError
from mgspmv.kernels import catalogue
from mgspmv.kernels.device import put_block
from mgspmv.kernels.select import DENSE_KERNELS, bind_kernel, bind_product, list_kernels
from mgspmv.model import CsrBlock
from tests.support.matrices import HARD, naming

pytestmark = pytest.mark.gpu

KERNELS = list_kernels("cuda")
IN_TWIN_ORDER = [k for k in KERNELS if k not in ("csr-split", "csr-compact", "coo", "hyb")]
"""Kernels whose sums are made in the order of their twins; the others add carries."""
DTYPES = (np.float32, np.float64)


@pytest.fixture(scope="module")
def cupy():
    """CuPy, on a machine with a device."""
    return pytest.importorskip("cupy")


def make_generated() -> dict[str, scipy.sparse.csr_array]:
    """Matrices with more than a thread block of rows, of each structure that a kernel treats in a way of its own."""
    rng = np.random.default_rng(11)
    n = 6000
    lengths = np.minimum(rng.pareto(0.8, n) * 3, n / 2).astype(int)
    rows = np.repeat(np.arange(n), lengths)
    skewed = scipy.sparse.coo_array((rng.normal(size=len(rows)), (rows, rng.integers(0, n, len(rows)))), shape=(n, n))
    band = scipy.sparse.diags_array(list(rng.normal(size=(41, n))), offsets=range(-20, 21), shape=(n, n))
    dense_row = scipy.sparse.vstack(
        [
            scipy.sparse.csr_array(rng.normal(size=(1, 50_000))),
            scipy.sparse.random_array((999, 50_000), density=1e-3, rng=rng),
        ]
    )
    blocks = scipy.sparse.block_diag([scipy.sparse.coo_array(rng.normal(size=(3, 3))) for _ in range(1500)])
    made = {
        "skewed rows": skewed,
        "band": band,
        "one dense row": dense_row,
        "one dense column": dense_row.T,
        "dense blocks": blocks,
        "few entries": scipy.sparse.random_array((200_000, 300), density=1e-6, rng=rng),
        "short and wide": scipy.sparse.random_array((5, 300_000), density=0.1, rng=rng),
        "rows of one length": scipy.sparse.diags_array(
            list(rng.normal(size=(7, n))), offsets=range(7), shape=(n, n + 7)
        ),
    }
    return {name: sort(matrix) for name, matrix in made.items()}


def sort(matrix) -> scipy.sparse.csr_array:
    """As CSR with sorted columns, duplicates added."""
    csr = scipy.sparse.csr_array(matrix)
    csr.sum_duplicates()
    return csr


def make_hard() -> dict[str, scipy.sparse.csr_array]:
    """The hard table as CSR."""
    return {name: sort(scipy.sparse.coo_array((h.values, (h.rows, h.cols)), shape=h.shape)) for name, h in HARD.items()}


MATRICES = make_hard() | make_generated()


def make_block(matrix, dtype, *, pattern: bool, index=np.int32) -> CsrBlock:
    """The matrix as one block on the host."""
    data = None if pattern else matrix.data.astype(dtype)
    return CsrBlock(0, matrix.shape[1], matrix.indptr.astype(np.int64), matrix.indices.astype(index), data)


def cut(block: CsrBlock, start: int, stop: int) -> CsrBlock:
    """Rows start .. stop of a block."""
    first, last = block.indptr[start], block.indptr[stop]
    data = None if block.data is None else block.data[first:last]
    return CsrBlock(start, block.n_cols, block.indptr[start : stop + 1] - first, block.indices[first:last], data)


def bind_or_none(block, dtype, kernel, backend):
    """The kernel, or None where it says that it cannot do this matrix."""
    try:
        return bind_kernel(block, np.dtype(dtype).name, kernel=kernel, backend=backend)
    except FormatError:
        return None


def multiply(cupy, kernel, x, alpha, beta, y):
    """What the kernel gives, in memory that was poisoned before where y is not read."""
    out = cupy.full(y.shape, cupy.nan, y.dtype) if beta == 0 else cupy.asarray(y)
    kernel.multiply(cupy.asarray(x), out, alpha, beta)
    return cupy.asnumpy(out)


def check(matrix, block, got, x, alpha, beta, y) -> None:
    """Each entry is as near to SciPy's in float64 as rounding of its terms allows."""
    data = np.ones(block.nnz) if block.data is None else block.data.astype(np.float64)
    wanted = scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    terms = abs(alpha) * (abs(wanted) @ abs(x).astype(np.float64)) + abs(beta * y.astype(np.float64))
    bound = np.finfo(x.dtype).eps * (np.diff(matrix.indptr) + 8) * terms
    expected = alpha * (wanted @ x.astype(np.float64)) + (beta * y.astype(np.float64) if beta else 0.0)
    assert got.dtype == x.dtype
    np.testing.assert_array_less(np.abs(got - expected), bound + np.finfo(x.dtype).tiny)


def test_csr_split_without_look_back(cupy, monkeypatch):
    monkeypatch.setattr("mgspmv.kernels.cuda_products.LOOK_BACK_CHUNKS", 0)
    test_products_beside_scipy(cupy, "csr-split")


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_beside_scipy(cupy, kernel):
    for name, matrix in MATRICES.items():
        with naming(name):
            check_beside_scipy(cupy, matrix, kernel)


def check_beside_scipy(cupy, matrix, kernel) -> None:
    rng = np.random.default_rng(3)
    for dtype, pattern, index in itertools.product(DTYPES, (False, True), (np.int32, np.int64)):
        block = make_block(matrix, dtype, pattern=pattern, index=index)
        bound = bind_or_none(block, dtype, kernel, "cuda")
        if bound is None:
            continue
        x, y = rng.normal(size=matrix.shape[1]).astype(dtype), rng.normal(size=matrix.shape[0]).astype(dtype)
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0), (2.0, 1.0)):
            got = multiply(cupy, bound, x, alpha, beta, y)
            check(matrix, block, got, x, alpha, beta, y)
            assert got.tobytes() == multiply(cupy, bound, x, alpha, beta, y).tobytes()


def test_what_auto_chooses_beside_scipy(cupy, monkeypatch):
    for bound in ("FULL_THREADS", "MANY_ITEMS", "COMPACT_ITEMS"):  # of a small device, for small matrices
        monkeypatch.setattr(f"mgspmv.kernels.features.{bound}", 64)
    for (name, matrix), dtype, pattern in itertools.product(MATRICES.items(), DTYPES, (False, True)):
        block, rng = make_block(matrix, dtype, pattern=pattern), np.random.default_rng(13)
        bound = bind_product(block, np.dtype(dtype).name, backend="cuda")
        x, y = rng.normal(size=matrix.shape[1]).astype(dtype), rng.normal(size=matrix.shape[0]).astype(dtype)
        with naming(name, dtype, pattern):
            check(matrix, block, multiply(cupy, bound, x, 1.0, 0.5, y), x, 1.0, 0.5, y)


@pytest.mark.parametrize("kernel", IN_TWIN_ORDER)
def test_products_have_the_bits_of_their_twins(cupy, kernel):
    for name, matrix in MATRICES.items():
        with naming(name):
            check_bits_of_twins(cupy, matrix, kernel)


def check_bits_of_twins(cupy, matrix, kernel) -> None:
    rng = np.random.default_rng(4)
    for dtype, pattern in itertools.product(DTYPES, (False, True)):
        block = make_block(matrix, dtype, pattern=pattern)
        bound, twin = (bind_or_none(block, dtype, kernel, backend) for backend in ("cuda", "cpu"))
        assert (bound is None) == (twin is None)
        if bound is None:
            continue
        x, y = rng.normal(size=matrix.shape[1]).astype(dtype), rng.normal(size=matrix.shape[0]).astype(dtype)
        expected = y.copy()
        twin.multiply(x, expected, 1.5, -0.5)
        assert multiply(cupy, bound, x, 1.5, -0.5, y).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_column_sorted_blocks_make_up_the_product(cupy, kernel):
    matrix = MATRICES["band"]
    whole, rng = make_block(matrix, np.float64, pattern=False), np.random.default_rng(5)
    x, y = rng.normal(size=matrix.shape[1]), rng.normal(size=matrix.shape[0])
    bounds = (0, 1, 700, 703, 6000)
    parts = [
        bind_kernel(cut(whole, a, b), "float64", kernel=kernel, backend="cuda") for a, b in itertools.pairwise(bounds)
    ]
    got = [multiply(cupy, p, x, 1.0, 0.5, y[a:b]) for p, (a, b) in zip(parts, itertools.pairwise(bounds), strict=True)]
    check(matrix, whole, np.concatenate(got), x, 1.0, 0.5, y)


@pytest.mark.parametrize("kernel", KERNELS)
def test_several_vectors_at_once(cupy, kernel):
    matrix = MATRICES["band"]
    block, X = make_block(matrix, np.float64, pattern=False), np.random.default_rng(6).normal(size=(6000, 3))
    bound = bind_kernel(block, "float64", kernel=kernel, backend="cuda")
    got = multiply(cupy, bound, X, 1.0, 0.0, np.empty((6000, 3)))
    for c in range(3):
        assert got[:, c].tobytes() == multiply(cupy, bound, X[:, c].copy(), 1.0, 0.0, np.empty(6000)).tobytes()


@pytest.mark.parametrize("few", [1 << 16, 9], ids=["short pieces", "long pieces"])
def test_many_vectors_at_once(cupy, few, monkeypatch):
    """Bit for bit as the twin, a column at a time, for panels of every width and what is left of them."""
    monkeypatch.setattr("mgspmv.kernels.csr_cuts.FEW_PIECES", few)
    for name, matrix in MATRICES.items():
        with naming(name):
            check_many_vectors(cupy, matrix)


def check_many_vectors(cupy, matrix) -> None:
    rng = np.random.default_rng(3)
    for dtype, pattern, index in itertools.product(DTYPES, (False, True), (np.int32, np.int64)):
        block = make_block(matrix, dtype, pattern=pattern, index=index)
        bound = bind_kernel(block, np.dtype(dtype).name, kernel="csr-many", backend="cuda")
        twin = bind_kernel(block, np.dtype(dtype).name, kernel="csr-many", backend="cpu")
        for k, alpha, beta in ((2, 1.0, 0.0), (33, -0.5, 2.0), (127, 1.0, 0.0)):
            x, y = (rng.normal(size=(n, k)).astype(dtype) for n in matrix.shape[::-1])
            got, wanted = multiply(cupy, bound, x, alpha, beta, y), y.copy()
            twin.multiply(x, wanted, alpha, beta)
            assert got.tobytes() == wanted.tobytes()


def test_auto_takes_many_vectors_at_once(cupy, tmp_path):
    matrix, rng = MATRICES["skewed rows"], np.random.default_rng(3)
    mg.ingest(matrix, tmp_path / "a.zarr")
    x = rng.normal(size=(6000, 6))
    with mg.open_matrix(tmp_path / "a.zarr") as A:
        got = mg.spmv(A.on("cuda"), x)
        assert got.tobytes() == mg.spmv(A.on("cuda", kernel="csr-many"), x).tobytes()
        assert got.tobytes() == mg.spmv(A.on("cpu", kernel="csr-many"), x).tobytes()
    np.testing.assert_allclose(got, matrix @ x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "bound", "value"),
    [
        ("csr-split", "cuda_products.LOOK_BACK_CHUNKS", 0),
        ("csr-split", "cuda_products.LOOK_BACK_CHUNKS", 1 << 20),
        ("csr-compact", "csr_cuts.choose_block_steps", lambda *_: 31),
        ("csr-compact", "csr_cuts.choose_block_steps", lambda *_: 7),
    ],
    ids=["carries", "look-back", "31 steps", "7 steps"],
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", [False, True], ids=["values", "pattern"])
def test_rows_that_cross_many_thread_blocks(cupy, dtype, pattern, kernel, bound, value, monkeypatch):
    """Rows of hundreds of thread blocks, more than one has threads, between short ones and one another."""
    monkeypatch.setattr(f"mgspmv.kernels.{bound}", value)
    lengths, n = np.array([3, 0, 700_000, 1, 5000, 0, 0, 40_000, 699_999, 2, *[4] * 3000]), 700_000
    indices = np.concatenate([np.arange(m) * min(n // m, 8) for m in lengths if m])
    data = None if pattern else np.random.default_rng(1).random(len(indices)).astype(dtype)
    block = CsrBlock(0, n, np.concatenate([[0], np.cumsum(lengths)]), indices.astype(np.int32), data)
    matrix = scipy.sparse.csr_array((np.ones(block.nnz) if pattern else data, indices, block.indptr), (len(lengths), n))
    bound = bind_kernel(block, dtype.__name__, kernel=kernel, backend="cuda")
    x, y = np.random.default_rng(2).random(n).astype(dtype), np.ones(len(lengths), dtype)
    runs = [multiply(cupy, bound, x, -1.5, 2.0, y) for _ in range(3)]
    check(matrix, block, runs[0], x, -1.5, 2.0, y)
    assert len({run.tobytes() for run in runs}) == 1


@pytest.mark.parametrize(
    "kernel", ["csr-scalar", "csr-warp", "csr-vector", "csr-cached", "csr-split", "csr-compact", "csr-many"]
)
def test_row_pointers_of_64_bits(cupy, kernel, monkeypatch):
    monkeypatch.setattr("mgspmv.kernels.device.INT32_LIMIT", 0)
    matrix = MATRICES["skewed rows"]
    x, y = np.random.default_rng(7).normal(size=6000), np.zeros(6000)
    for pattern in (False, True):
        block = make_block(matrix, np.float64, pattern=pattern)
        bound = bind_kernel(block, "float64", kernel=kernel, backend="cuda")
        assert bound.block.indptr.dtype == np.int64
        check(matrix, block, multiply(cupy, bound, x, 1.0, 0.0, y), x, 1.0, 0.0, y)


def test_arrays_that_are_parts_of_others(cupy):
    matrix = MATRICES["band"]
    block, x = make_block(matrix, np.float32, pattern=False), np.ones(6000, np.float32)
    apart = [cupy.concatenate([cupy.zeros(1, a.dtype), cupy.asarray(a)])[1:] for a in (block.indices, block.data)]
    moved = replace(block, indptr=cupy.asarray(block.indptr), indices=apart[0], data=apart[1])
    bound = bind_kernel(moved, "float32", kernel="csr-vector", backend="cuda")
    check(matrix, block, multiply(cupy, bound, x, 1.0, 0.0, x), x, 1.0, 0.0, x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_below_the_normal_numbers(cupy, kernel):
    """Values, x and sums that have fewer bits, but are no zeros."""
    n = 3000
    tiny = np.float32(3 * 2.0**-149)
    for value, x in ((tiny, np.float32(1)), (np.float32(1), tiny), (tiny, np.float32(2.0**80))):
        block = CsrBlock(0, n, np.arange(n + 1), np.arange(n, dtype=np.int32), np.full(n, value))
        bound = bind_kernel(block, "float32", kernel=kernel, backend="cuda")
        got = multiply(cupy, bound, np.full(n, x), 1.0, 0.0, np.empty(n, np.float32))
        assert got.tolist() == [value * x] * n


def test_values_of_another_dtype_are_refused(cupy):
    bound = bind_kernel(make_block(MATRICES["ring"], np.float64, pattern=False), "float64", backend="cuda")
    with pytest.raises(OptionError, match="x is float32 but the values are float64"):
        bound.multiply(cupy.ones(7, np.float32), cupy.ones(7, np.float32))


def test_refusals_are_those_of_the_twins(cupy):
    block = make_block(MATRICES["one dense row"], np.float64, pattern=False)
    for kernel in ("ell", "dia"):
        messages = []
        for backend in ("cuda", "cpu"):
            with pytest.raises(FormatError) as caught:
                bind_kernel(block, "float64", kernel=kernel, backend=backend)
            messages.append(str(caught.value))
        assert messages[0].split(" where ")[0] == messages[1].split(" where ")[0]


def test_a_full_device(cupy):
    pool = cupy.cuda.MemoryPool()  # a pool of its own: what other tests left in the other one may be enough
    with cupy.cuda.using_allocator(pool.malloc):
        block = put_block(make_block(MATRICES["rows of one length"], np.float64, pattern=False))
        x, y = cupy.zeros(block.n_cols), cupy.zeros(block.n_rows)
        pool.set_limit(size=pool.total_bytes() + (16 << 10))
        with pytest.raises(CapacityError, match="the format of sell does not fit into the"):
            bind_kernel(block, "float64", kernel="sell", backend="cuda")
        pool.set_limit(size=0)
        bind_kernel(block, "float64", kernel="sell", backend="cuda").multiply(x, y)


REFERENCE = (
    *(f"matrices/{name}.mtx" for name in ("494_bus", "arc130", "ash219", "lp_e226", "west0479")),
    *(
        f"matrices/{name}.mtx.gz"
        for name in (
            "1138_bus", "Franz6_id1959_aug", "M1-nedelec", "NotreDame_www", "arrow", "bayer10", "bcspwr10", "bcsstk13",
            "cryg2500", "jagmesh7", "lp_afiro", "mdual", "olm1000", "rajat01", "sherman3", "xenon1", "zenios",
        )
    ),
    *(f"graphs/{name}.txt.gz" for name in ("cnr-2000", "debian-bookworm-deps", "pgp-strong-2009", "wiki-Vote")),
)  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_matrices(cupy, ingested, name):
    with ingested(name, kind="matrix") as A:
        matrix, pattern = sort(A.to_scipy()), A.is_pattern
    rng = np.random.default_rng(12)
    for kernel, dtype in itertools.product(KERNELS, DTYPES):
        block = make_block(matrix, dtype, pattern=pattern)
        bound = bind_or_none(block, dtype, kernel, "cuda")
        if bound is not None:
            x, y = rng.normal(size=matrix.shape[1]).astype(dtype), rng.normal(size=matrix.shape[0]).astype(dtype)
            check(matrix, block, multiply(cupy, bound, x, 1.0, 0.0, y), x, 1.0, 0.0, y)


@pytest.mark.parametrize("precision", ["exact", "float64", "float32"])
def test_ranks_of_an_rmat_graph(cupy, tmp_path, precision):
    A = mg.generate("rmat", tmp_path / "g.zarr", scale=14, edge_factor=16)
    on_cpu, on_device = (mg.pagerank(A.on(b), precision=precision) for b in ("cpu", "cuda"))
    assert on_device.iterations == on_cpu.iterations
    bound = on_cpu.error_bound_l1 + on_device.error_bound_l1
    assert np.abs(on_device.values.astype(np.float64) - on_cpu.values).sum() <= bound
    assert on_device.error_bound_l1 == pytest.approx(on_cpu.error_bound_l1, rel=1e-2)
    assert "NVIDIA" in on_device.matrix["hardware"]
    if precision == "exact":
        assert on_device.digest() == on_cpu.digest()


def test_auto_is_the_device(cupy, tmp_path):
    A = mg.generate("rmat", tmp_path / "g.zarr", scale=8)
    assert "NVIDIA" in mg.pagerank(A).matrix["hardware"]
    x = np.arange(256.0)
    np.testing.assert_allclose(A @ x, mg.spmv(A.on("cpu"), x), rtol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(cupy, dtype):
    from mgspmv.kernels.cuda_products import sum_vector
    from mgspmv.kernels.reference import sum_pairwise

    for n in (0, 1, 255, 4096, 4097, 5_000_000):
        x = np.random.default_rng(8).normal(size=n).astype(dtype)
        total, wide = cupy.asnumpy(sum_vector(cupy.asarray(x))), x.astype(np.float64)
        assert total.tobytes() == np.asarray(sum_pairwise(x)).astype(dtype).tobytes(), n
        assert abs(total - wide.sum()) <= np.finfo(dtype).eps * 40 * (np.abs(wide).sum() + 1e-300), n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_dense_products(cupy, kernel, dtype):
    for shape in ((1, 1), (0, 5), (5, 0), (3, 5000), (5000, 3), (700, 1025), (64, 1024)):
        with naming(shape):
            check_dense(cupy, kernel, shape, dtype)


def check_dense(cupy, kernel, shape, dtype) -> None:
    from mgspmv.kernels.cuda_products import multiply_on_device

    rng = np.random.default_rng(9)
    A, x, b = (rng.normal(size=s).astype(dtype) for s in (shape, shape[1], shape[0]))
    for offset in (None, b):
        there = None if offset is None else cupy.asarray(offset)
        got = cupy.asnumpy(multiply_on_device(cupy.asarray(A), cupy.asarray(x), there, kernel))
        exact = A.astype(np.float64) @ x + (0 if offset is None else offset)
        bound = np.finfo(dtype).eps * (shape[1] + 4) * (np.abs(A).astype(np.float64) @ np.abs(x) + np.abs(b))
        assert (np.abs(got - exact) <= bound).all()
        expected = np.full(shape[0], np.nan, dtype)
        catalogue.KERNELS[kernel].reference(A, x, offset, expected)
        assert got.tobytes() == expected.tobytes()
