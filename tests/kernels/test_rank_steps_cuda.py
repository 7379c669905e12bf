"""PageRank on a device by each of its kernels beside the CPU's, from stores."""

from __future__ import annotations

import gc
from itertools import product

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import CapacityError, ConvergenceError, FormatError, OptionError
from mgspmv.kernels.layout import LayoutBuilder
from mgspmv.model import Status
from tests.support.blocks import measures_pool
from tests.support.matrices import GRAPHS, naming
from tests.support.oracles import rank_by_pushing, sum_arcs
from tests.support.pairwise import cover_pairs

pytestmark = pytest.mark.gpu

KERNELS = ("auto", "column-sorted-blocks", "sell-slices", "coo", "csr-split")
LAYOUTS = KERNELS[1:4]
N = 3000


@pytest.fixture(scope="module", autouse=True)
def _as_if_large():
    """In graphs as small as these every column would be near the diagonal, and rows would never be sorted; and none
    would be surveyed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mgspmv.kernels.layout.REACH", 8)
        patch.setattr("mgspmv.kernels.layout.SMALL_ENTRIES", 0)
        yield


def make_graph(arcs, **options):
    return mg.ingest(arcs, **{"kind": "graph", **options})


def make_arcs(n=N, n_arcs=40_000, seed=4):
    """Sources, targets and weights: vertices of very different degrees, some without out-edges."""
    rng = np.random.default_rng(seed)
    return rng.zipf(1.4, n_arcs) % (n - 200), rng.zipf(1.5, n_arcs) % n, rng.random(n_arcs) + 0.01


@pytest.fixture(scope="module")
def skewed():
    """By what it is: the graph with weights, without, renumbered, and with duplicates kept."""
    arcs = make_arcs()
    made = {
        "weights": make_graph(arcs, n_vertices=N),
        "pattern": make_graph(arcs, n_vertices=N, weights=False),
        "multigraph": make_graph(arcs, n_vertices=N, duplicates="keep"),
    }
    for order in ("rcm", "degree", "dealt"):
        made[order] = make_graph(arcs, n_vertices=N, order=order)
    return made


def check_bits(on_device, on_cpu) -> None:
    assert on_device.values.tobytes() == on_cpu.values.tobytes()
    assert (on_device.changes, on_device.status) == (on_cpu.changes, on_cpu.status)
    assert (on_device.digest(), on_device.iterations) == (on_cpu.digest(), on_cpu.iterations)
    assert "NVIDIA" in on_device.matrix["hardware"]


def check_close(on_device, on_cpu) -> None:
    """In float32: as near as the bounds of both say, and as near as the rounding of ranks has it."""
    assert on_device.status is on_cpu.status
    assert abs(on_device.iterations - on_cpu.iterations) <= 1
    distance = np.abs(on_device.values.astype(np.float64) - on_cpu.values)
    assert distance.sum() <= on_device.error_bound_l1 + on_cpu.error_bound_l1
    if on_device.iterations == on_cpu.iterations:
        assert (distance <= 2e-6 * (on_cpu.values + 1 / len(distance))).all()
        np.testing.assert_allclose(on_device.changes, on_cpu.changes, rtol=1e-3, atol=2e-6)


def run_both(A, kernel, **options):
    given = {"throw": False, **options}
    return mg.pagerank(A.on("cuda", kernel=kernel), **given), mg.pagerank(A.on("cpu"), **given)


def check_runs(A, kernel, **options) -> None:
    """The bits of both; and bounds that differ by what the CPU's allows for float64 sums, and that of layouts for fixed
    point."""
    on_device, on_cpu = run_both(A, kernel, **options)
    check_bits(on_device, on_cpu)
    if on_cpu.status is Status.NON_FINITE:
        assert on_device.error_bound_l1 == on_cpu.error_bound_l1 == np.inf
        return
    longest = np.diff(A.stored.read_array("indptr")).max(initial=0)
    sums, products = 2.0**-53 * (longest + 9), 2.0**-62 * (A.nnz + 9)
    less, more = (rounding / (1 - options.get("alpha", 0.85)) + 1e-14 for rounding in (sums, products))
    assert (1 - 1e-3) * on_cpu.error_bound_l1 - less <= on_device.error_bound_l1
    assert on_device.error_bound_l1 <= (1 + 1e-3) * on_cpu.error_bound_l1 + more


# --- beside the CPU --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_ranks_of_hard_graphs(kernel):
    for name, hard in GRAPHS.items():
        with naming(name):
            check_hard(hard, kernel)


def check_hard(hard, kernel) -> None:
    A = make_graph(
        (np.array(hard.rows, int), np.array(hard.cols, int), np.array(hard.values)), n_vertices=hard.shape[0]
    )
    for options in ({}, {"weight": False}, {"dangling": "uniform"}, {"dangling": "drop"}, {"norm": "fixed"}):
        check_runs(A, kernel, **options)
    check_close(*run_both(A, kernel, weight=False, precision="float32"))
    if kernel not in LAYOUTS or min(hard.values, default=1.0) > 0:
        check_close(*run_both(A, kernel, precision="float32"))


VECTORS = {
    "uniform": {},
    "personalization": {"personalization": np.arange(N) % 5, "alpha": 0.95},
    "mappings": {"personalization": {7: 1.0, 2999: 2.0}, "dangling": {0: 1, 5: 3}, "nstart": {1: 1, 2: 1, 2998: 5}},
    "dangling uniform": {"personalization": np.arange(N) ** 2, "dangling": "uniform"},
    "dangling dropped": {"dangling": "drop"},
}


@cover_pairs(
    name=["weights", "pattern", "multigraph", "rcm", "degree", "dealt"], vectors=VECTORS.keys(), kernel=KERNELS
)
def test_ranks_of_a_skewed_graph(skewed, name, vectors, kernel):
    A = skewed[name]
    modes = [{"tol": 1e-9}, {"tol": 1e-9, "norm": "linf"}, {"tol": 1e-5, "norm": "relative"}]
    for mode in (*modes, {"norm": "fixed", "max_iter": 27}):
        check_runs(A, kernel, **VECTORS[vectors], **mode)
    for mode in ({}, {"norm": "relative"}) if vectors == "uniform" else ({},):
        check_close(*run_both(A, kernel, precision="float32", tol=1e-5, **mode, **VECTORS[vectors]))


@measures_pool
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_solution_tells_what_it_took(skewed, kernel):
    memory = mg.pagerank(skewed["weights"].on("cuda", kernel=kernel)).memory
    assert memory.keys() == {"host_peak_bytes", "device_bytes", "held_bytes"}
    assert memory["device_bytes"][0] >= memory["held_bytes"][0] > 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["weights", "pattern", "dealt"])
def test_out_weights_that_are_given(skewed, name, kernel):
    weight = N + 1.25 * np.bincount(make_arcs()[0], make_arcs()[2], minlength=N)
    weight[weight.argmax()] = 2.0**33  # more than a count has room for
    check_runs(skewed[name], kernel, out_weight=weight, tol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_ranks_beside_scipy(skewed, precision, kernel):
    arcs = sum_arcs(*make_arcs(), (N, N))
    solution = mg.pagerank(skewed["weights"].on("cuda", kernel=kernel), precision=precision, tol=1e-6, max_iter=300)
    distance = np.abs(solution.values - rank_by_pushing(arcs)).sum()
    assert distance <= solution.error_bound_l1
    assert solution.error_bound_l1 < 2e-5


@pytest.mark.parametrize("kernel", KERNELS)
def test_stochastic_matrices(kernel):
    weights = np.random.default_rng(3).random((70, 70)) * (np.random.default_rng(4).random((70, 70)) < 0.2)
    weights[:, 5] = 0
    total = weights.sum(axis=0)
    A = make_graph(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0), kind="stochastic")
    check_runs(A, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_of_stored_weights(dtype, kernel):
    source, target, weight = make_arcs(500, 6000)
    A = make_graph((source, target, weight.astype(dtype)), n_vertices=500)
    assert A.info.dtype == np.dtype(dtype).name
    check_runs(A, kernel)
    check_close(*run_both(A, kernel, precision="float32"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matrix_that_is_read_piece_by_piece_has_the_same_ranks(skewed, layout, monkeypatch):
    for name, precision in product(("weights", "pattern", "rcm"), ("exact", "float32")):
        runs = []
        for piece_entries in (1 << 27, 20_000, 1000):
            monkeypatch.setattr("mgspmv.api.embedded.choose_piece", lambda *_, n=piece_entries, **options: n)
            skewed[name].close()
            runs.append(mg.pagerank(skewed[name].on("cuda", kernel=layout), precision=precision, tol=1e-5))
        skewed[name].close()
        assert len({(s.digest(), s.changes, s.error_bound_l1) for s in runs}) == 1


# --- how runs end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_iterations_than_the_device_keeps_sums_of(skewed, kernel):
    given = {"alpha": 0.999, "norm": "fixed", "max_iter": 601}
    on_device, on_cpu = run_both(skewed["weights"], kernel, **given)
    check_bits(on_device, on_cpu)
    assert [e.iteration for e in on_device.events] == list(range(1, 602))
    assert all(e.product_s[0] > 0 and e.memory_bytes[0] > 0 for e in on_device.events)


@pytest.mark.parametrize("kernel", KERNELS)
def test_max_iter_comes_first(skewed, kernel):
    free = mg.pagerank(skewed["pattern"].on("cuda", kernel=kernel), tol=1e-7)
    for max_iter in (1, free.iterations - 1):
        with pytest.raises(ConvergenceError) as caught:
            mg.pagerank(skewed["pattern"].on("cuda", kernel=kernel), tol=1e-7, max_iter=max_iter)
        reached = caught.value.solution
        assert (reached.status, reached.changes) == (Status.MAX_ITER, free.changes[:max_iter])
    last = mg.pagerank(skewed["pattern"].on("cuda", kernel=kernel), tol=1e-7, max_iter=free.iterations)
    assert last.digest() == free.digest()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_starts_where_it_jumps(kernel):
    """Vertices that no path leads to have no rank, on both."""
    A = make_graph((np.array([0, 1, 2, 3, 4]), np.array([1, 2, 0, 4, 3])))
    for precision, rtol in (("exact", 0), ("float64", 1e-12), ("float32", 1e-5)):
        if precision == "float64" and kernel in LAYOUTS:
            continue
        on_device, on_cpu = run_both(A, kernel, precision=precision, personalization={0: 1.0})
        np.testing.assert_allclose(on_device.values, on_cpu.values, rtol=rtol)
        assert (on_device.values > 0).tolist() == [True] * 3 + [False] * 2
        batch = mg.pagerank_batch(A.on("cuda"), [{0: 1.0}, {3: 1.0}], keep_top=4, precision=precision)
        assert batch.top_ids.tolist() == [[0, 1, 2, -1], [3, 4, -1, -1]]


@pytest.mark.parametrize("kernel", KERNELS)
def test_non_finite_is_never_a_success(kernel):
    """A rank over next to nothing."""
    A = make_graph((np.array([0, 1, 2, 0]), np.array([1, 2, 0, 2]), np.array([1.0, 5e-324, 1.0, 1.0])))
    on_device, on_cpu = run_both(A, kernel, precision="exact")
    assert on_device.status is on_cpu.status is Status.NON_FINITE
    assert on_device.error_bound_l1 == np.inf


# --- what is refused, and what is kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_layout_cannot_do(skewed, layout):
    with pytest.raises(FormatError, match=rf"^kernel '{layout}' adds in fixed point .*; pass kernel='csr-split' or"):
        mg.pagerank(skewed["weights"].on("cuda", kernel=layout), precision="float64")
    if layout != "coo":
        with pytest.raises(
            OptionError, match=rf"^kernel '{layout}' does not support products on backend 'cuda'; pass kernel="
        ):
            mg.spmv(skewed["weights"].on("cuda", kernel=layout), np.ones(N))
    tiny = make_graph((np.array([0, 1]), np.array([1, 0]), np.array([1.1e-38, 1.0])))
    with pytest.raises(FormatError, match=rf"^kernel '{layout}' needs float32 values of at least 1.18e-38"):
        mg.pagerank(tiny.on("cuda", kernel=layout), precision="float32")
    check_close(*run_both(tiny, "auto", precision="float32"))


def test_float64_takes_csr(skewed):
    for name in ("weights", "pattern"):
        auto, split = (
            mg.pagerank(skewed[name].on("cuda", kernel=kernel), precision="float64") for kernel in KERNELS[::4]
        )
        assert auto.digest() == split.digest()


@measures_pool
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_made_once_and_freed_when_the_matrix_is_closed(skewed, layout, monkeypatch):
    cupy = pytest.importorskip("cupy")
    made = []
    monkeypatch.setattr(
        "mgspmv.kernels.layout.LayoutBuilder", lambda *a, **k: made.append(k["layout"]) or LayoutBuilder(*a, **k)
    )
    A = skewed["pattern"]
    A.close()
    gc.collect()
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    for precision in ("exact", "float32", "exact"):
        mg.pagerank(A.on("cuda", kernel=layout), precision=precision)
    assert made == [layout]
    gc.collect()
    assert pool.used_bytes() >= before + 4 * A.nnz
    A.close()
    gc.collect()
    assert pool.used_bytes() <= before + 4096
    mg.pagerank(A.on("cuda", kernel=layout))
    assert made == [layout] * 2


def test_a_full_device():
    cupy = pytest.importorskip("cupy")
    n = 200_000
    A = make_graph((np.arange(n), (np.arange(n) * 7 + 1) % n), n_vertices=n)
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=2**20)
    with cupy.cuda.using_allocator(pool.malloc):
        for layout in LAYOUTS:
            with pytest.raises(CapacityError, match="does not fit into the"):
                mg.pagerank(A.on("cuda", kernel=layout))
    for layout in LAYOUTS:
        check_runs(A, layout)
