"""PageRank steps on a device: each step beside the CPU's."""

from __future__ import annotations

import gc
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.kernels import bins, column_sorted_blocks, modules
from mgspmv.kernels.band_slices import split_rows
from mgspmv.kernels.column_sorted_blocks import ColumnSortedBlocks, build_column_sorted_blocks
from mgspmv.kernels.device import PieceReader, shared_memory
from mgspmv.kernels.layout import LayoutBuilder, MatrixLayout, SellSlices, build_sell_slices, hold_whole
from mgspmv.kernels.modules import choose_weight
from mgspmv.kernels.rank_products import PRODUCTS, cut_items
from mgspmv.kernels.rank_steps import KEPT_SUMS, RankRules, RankSteps, RankVectors
from mgspmv.kernels.streaming import ChunkStream
from mgspmv.model import CsrBlock
from mgspmv.plan import HELD_PIECES
from tests.support.blocks import classify_length, make_block, make_random, measures_pool, read_pieces, read_to_device
from tests.support.emulated import ON_BOTH, emulate, needs_compiler, use
from tests.support.matrices import GRAPHS, naming
from tests.support.pairwise import cover_pairs
from tests.support.played import PlayedDevice

ALPHA = 0.85
UNSTOPPED = RankRules(ALPHA, threshold=-1.0, by_largest=False)


def make_weights(block, seed=3):
    """The block with values between 0 and 1."""
    return replace(block, data=np.random.default_rng(seed).random(block.nnz) + 1e-3)


def make_graphs() -> dict[str, CsrBlock]:
    """Patterns, each with what a kernel treats in a way of its own."""
    rng, n = np.random.default_rng(7), 6000
    skewed = rng.zipf(1.5, n).clip(1, 5000) - 1
    hubs = np.where(np.arange(n) % 2000 == 77, 100_000, rng.integers(0, 3, n))
    near = (np.arange(n)[:, None] + np.array([0, 1, 77, 78, n - 1])) % n
    ring = (np.arange(n)[:, None] + np.delete(np.arange(-4, 5), 4)) % n
    ring = np.where(rng.random(ring.shape) < 0.1, rng.integers(0, n, ring.shape), ring)
    made = {name: make_block(hard, data=None) for name, hard in GRAPHS.items()}
    return made | {
        "skewed rows": make_random(skewed, n, data=None),
        "hub rows longer than a tile": make_random(hubs, n, data=None),  # with columns again and again
        "grid": CsrBlock(0, n, 5 * np.arange(n + 1), np.sort(near, axis=1).ravel().astype(np.int32), None),
        "ring with shortcuts": CsrBlock(
            0, n, 8 * np.arange(n + 1), np.sort(ring, axis=1).ravel().astype(np.int32), None
        ),
        "most vertices are dangling": replace(make_random(skewed, n // 10, data=None), n_cols=n),
        "no edges": make_random([0] * 700, 700, data=None),
        "only the last row": make_random([*[0] * 4000, 9], 4001, data=None),
    }


def build_layout(block, read, **options) -> MatrixLayout:
    """The layout of a square matrix of which every column is read."""
    import cupy

    rows = LayoutBuilder(block.indptr, read, **options)
    places = rows.place(cupy.ones(block.n_cols, np.int64))
    return rows.build_layout(places, places.columns, block.n_cols, None)


def build_low_blocks(block, read, by_place=None, **options) -> MatrixLayout:
    options["value"] = None if block.data is None else block.data.dtype
    layout = build_column_sorted_blocks(
        block.indptr,
        block.n_cols,
        read_pieces(block, read),
        order=by_place,
        columns=find_places(by_place),
        height=256,
        **options,
    )
    return hold_whole(layout, block.n_rows, by_place)


def build_binned(block, read, order) -> MatrixLayout:
    """All cells of fewer than `bins.LEAST_DENSE` entries are binned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "LEAST_COLUMNS", 1)
        patch.setattr(bins.CellRates, "pays", lambda *_: True)
        return build_layout(block, read, layout="column-sorted-blocks", order=order, bin_bytes=1 << 40)


def build_banded(block, read, **options) -> MatrixLayout:
    """Entries next to the diagonal are in slices; cells of fewer than 50 others are binned."""
    import cupy

    band, far = split_rows(cupy.asarray(block.indptr), read(0, block.n_rows))
    options["value"] = None if block.data is None else block.data.dtype
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "LEAST_COLUMNS", 1)
        patch.setattr(bins.CellRates, "pays", lambda *_: True)
        for module in (bins, column_sorted_blocks):
            patch.setattr(module, "LEAST_DENSE", 50)
        pieces = PieceReader(lambda *_: far, (0, block.n_rows))
        layout = build_column_sorted_blocks(far.indptr, block.n_cols, pieces, band=band, bin_bytes=1 << 40, **options)
    return hold_whole(layout, block.n_rows)


def place_by_degree(block):
    """The row at each place, on the device, where long rows come first."""
    import cupy

    classes = np.array([classify_length(length) for length in np.diff(block.indptr)])
    return cupy.asarray(np.argsort(-classes, kind="stable"), np.int32)


def find_places(by_place):
    """The place of each row; None where places are rows."""
    return None if by_place is None else by_place.argsort().astype(np.int32)


MANY = make_graphs()
LAYOUTS = {
    "blocks by degree": lambda block, read: build_layout(block, read, layout="column-sorted-blocks", order="degree"),
    "blocks in order": lambda block, read: build_layout(block, read, layout="column-sorted-blocks", order="none"),
    "low blocks": lambda block, read: build_low_blocks(block, read, place_by_degree(block)),
    "low blocks in order": build_low_blocks,
    "two blocks at a time": lambda block, read: build_low_blocks(block, read, is_near=True, n_resident=2),
    "bins by degree": lambda block, read: build_binned(block, read, "degree"),
    "bins in order": lambda block, read: build_binned(block, read, "none"),
    "a band and bins": build_banded,
    "a band and low blocks": lambda block, read: build_banded(block, read, height=256),
    "slices": lambda block, read: hold_whole(
        build_sell_slices(block.indptr, block.n_cols, read_pieces(block, read)), block.n_rows
    ),
    "coo": lambda block, read: build_layout(block, read, layout="coo"),
}
VALUES = pytest.mark.parametrize("is_pattern", [True, False], ids=["pattern", "values"])
BY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def make_graph(name, *, is_pattern: bool, dtype=np.float64):
    """The block as it is read, and the float64 out-weights of the graph."""
    block = MANY[name]
    if not is_pattern:
        block = make_weights(block)
    weight = np.bincount(block.indices, block.data, minlength=block.n_rows)
    return block if is_pattern else replace(block, data=block.data.astype(dtype)), weight.astype(np.float64)


def make_vectors(n, weight, *, kind="uniform", dtype=np.float64, seed=0) -> RankVectors:
    """Of one value for all vertices, or of one for each."""
    rng, one = np.random.default_rng(seed), np.array([1 / n])

    def draw() -> np.ndarray:
        vector = rng.random(n) ** 3
        return vector / vector.sum()

    made = {
        "uniform": lambda: (one, one, one),
        "x of one": lambda: (one, draw(), draw()),
        "dangling": lambda: (draw(), draw(), one),
        "personalization": lambda: (draw(), one, draw()),
        "all": lambda: (draw(), draw(), draw()),
        "dropped": lambda: (one, np.zeros(1), one),
    }
    x, dangling, personalization = made[kind]()
    return RankVectors(x.astype(dtype), weight, dangling, personalization)


def make_steps(layout, block, precision, offset=np.int64) -> RankSteps:
    return RankSteps(LAYOUTS[layout](block, read_to_device(block, offset)), precision)


def run_beside(steps, played, vectors, rules, n=12):
    """Start both and make n steps; the sums of each, the start's first."""
    return [[device.start(vectors, rules), *device.advance(n)] for device in (steps, played)]


def check_bits(steps, played, sums) -> None:
    got, wanted = sums
    assert got == wanted
    assert steps.ranks().dtype == np.float64
    assert steps.ranks().tobytes() == played.ranks().tobytes()
    assert steps.check_rows() == played.check_rows()
    assert played.check_rows().n_off == 0


def check_close(steps, played, sums) -> None:
    """In float32; what many roundings add up to, and for ranks that are next to nothing of the mean one."""
    got, wanted = sums
    assert len(got) == len(wanted)
    for own, other in zip(got, wanted, strict=True):
        assert own.change_l1 / 2**61 == pytest.approx(other.change_l1 / 2**61, rel=1e-5, abs=2e-6)
        assert own.change_linf / 2**61 == pytest.approx(other.change_linf / 2**61, rel=1e-5, abs=1e-6)
        assert own.dangling / 2**62 == pytest.approx(other.dangling / 2**62, rel=2e-6)
        assert own.n_wrong == other.n_wrong == 0
    ranks, wanted = steps.ranks(), played.ranks()
    assert steps.check_rows().n_off == 0
    assert steps.check_rows().sum == pytest.approx(float(ranks.astype(np.float64).sum()), rel=1e-12)
    assert ranks.dtype == np.float32
    np.testing.assert_allclose(ranks, wanted, rtol=1e-6, atol=1e-6 / len(ranks))


@pytest.mark.gpu
@VALUES
@BY_LAYOUT
def test_exact_steps_have_the_bits_of_the_cpu(layout, is_pattern):
    for name in MANY:
        with naming(name):
            check_exact_steps(name, layout, is_pattern)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "is_pattern"),
    [
        ("blocks by degree", True),
        ("bins by degree", True),
        ("bins in order", False),
        ("a band and bins", True),
        ("a band and low blocks", False),
        ("coo", True),
        ("coo", False),
    ],
)
def test_exact_steps_of_emulated_kernels_have_the_bits_of_the_cpu(layout, is_pattern, monkeypatch):
    emulate(monkeypatch)
    check_exact_steps("ring with shortcuts" if "band" in layout else "skewed rows", layout, is_pattern)


@ON_BOTH
@pytest.mark.parametrize("layout", ["bins in order", "slices", "coo"])
def test_small_weights_give_the_same_bits(device, layout, monkeypatch):
    use(device, monkeypatch)
    _, weight = make_graph("grid", is_pattern=True)
    assert choose_weight(weight) == choose_weight(weight[:0]) == np.uint32  # too few to be worth looking
    monkeypatch.setattr(modules, "MANY_WEIGHTS", len(weight))
    assert choose_weight(weight) == choose_weight(weight + 250) == np.uint8
    assert choose_weight(weight + 251) == np.uint32
    check_exact_steps("grid", layout, True, replace(UNSTOPPED, weight=choose_weight(weight)))


@needs_compiler
@pytest.mark.slow
@VALUES
def test_steps_of_emulated_entries(is_pattern, monkeypatch):
    """In `exact` with the bits of the CPU, in `float32` with those of blocks; and their residuals."""
    emulate(monkeypatch)
    for name in MANY:
        with naming(name):
            check_exact_steps(name, "coo", is_pattern)
            check_float32_steps(name, "coo", is_pattern)
            check_entries_beside_blocks(name, is_pattern)


def check_entries_beside_blocks(name, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern, dtype=np.float32)
    vectors, found = make_vectors(block.n_rows, weight, kind="all", dtype=np.float32), []
    for layout in ("coo", "low blocks in order"):
        steps = make_steps(layout, block, "float32")
        sums = [steps.start(vectors, UNSTOPPED), *steps.advance(3)]
        found.append((sums, steps.ranks().tobytes(), steps.residual(0.25)))
    assert found[0] == found[1]


@ON_BOTH
@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_entries_of_one_row_and_of_no_rows(precision, device, monkeypatch):
    use(device, monkeypatch)
    for n, n_arcs in ((0, 0), (1, 0), (1, 9)):
        block = make_random([n_arcs] * n, n, data=None)
        dtype = np.float32 if precision == "float32" else np.float64
        vectors = make_vectors(max(1, n), np.full(n, float(n_arcs)), dtype=dtype)
        steps, played = make_steps("coo", block, precision), PlayedDevice(block, precision)
        got, wanted = run_beside(steps, played, vectors, UNSTOPPED, 3)
        assert got == wanted
        assert steps.ranks().tobytes() == played.ranks().tobytes()
        assert steps.residual(0.0) == pytest.approx(played.residual(0.0), rel=1e-6, abs=1e-15)


@ON_BOTH
@VALUES
def test_entries_of_rows_in_pieces(is_pattern, device, monkeypatch):
    use(device, monkeypatch)
    import cupy

    block, weight = make_graph("hub rows longer than a tile", is_pattern=is_pattern)
    rows, cuts = LayoutBuilder(block.indptr, read_to_device(block), layout="coo"), [0, 1000, 2500, block.n_rows]
    places = rows.place(cupy.ones(block.n_rows, np.int64), cuts)
    pieces = {k: rows.build_share(places, places.columns, places.n_sent, k) for k in range(3)}
    value = None if is_pattern else block.data.dtype
    laid = MatrixLayout((block.n_rows,) * 2, block.nnz, value, "coo", places, ChunkStream(pieces, None, 3))
    steps, played = RankSteps(laid, "exact"), PlayedDevice(block)
    check_bits(steps, played, run_beside(steps, played, make_vectors(block.n_rows, weight, kind="all"), UNSTOPPED, 4))
    assert steps.residual(0.25) == pytest.approx(played.residual(0.25), rel=1e-6, abs=1e-15)


@ON_BOTH
def test_entries_at_addresses_that_are_not_aligned(device, monkeypatch):
    use(device, monkeypatch)
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors, found = make_vectors(block.n_rows, weight), []
    for n_before in range(3):
        laid = LAYOUTS["coo"](block, read_to_device(block))
        own = laid.feed.kept[0]
        shifted = np.append(np.zeros(n_before, np.int32), block.indices)
        put = read_to_device(CsrBlock(0, block.n_rows, np.array([0, len(shifted)]), shifted, None))
        columns = put(0, 1).indices[n_before:]
        laid.feed.kept[0] = replace(own, columns=columns)
        steps = RankSteps(laid, "exact")
        found.append([steps.start(vectors, UNSTOPPED), *steps.advance(3), steps.ranks().tobytes()])
    assert found[0] == found[1] == found[2]


@ON_BOTH
@pytest.mark.parametrize("layout", ["coo", "low blocks"])
def test_products_that_are_too_large_stop_a_run(layout, device, monkeypatch):
    """A contribution of 2^120, which no sum of products in fixed point has room for; a run after it is not affected."""
    use(device, monkeypatch)
    n = 300
    block = CsrBlock(0, n, np.arange(n + 1), (np.arange(n, dtype=np.int32) + 1) % n, np.ones(n, np.float32))
    vectors = make_vectors(n, np.ones(n), dtype=np.float32)
    wrong = replace(vectors, weight=np.where(np.arange(n) == 77, 2.0**-120, 1.0))
    steps = make_steps(layout, block, "float32")
    wanted = [steps.start(vectors, UNSTOPPED), *steps.advance(4)]
    assert steps.start(wrong, UNSTOPPED).n_wrong == 0
    [last] = steps.advance(4)
    assert last.n_wrong > 0
    assert [steps.start(vectors, UNSTOPPED), *steps.advance(4)] == wanted


def check_exact_steps(name, layout, is_pattern, rules=UNSTOPPED) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern)
    steps, played = make_steps(layout, block, "exact"), PlayedDevice(block)
    vectors = make_vectors(block.n_rows, weight)
    assert steps.start(vectors, rules) == played.start(vectors, rules)
    for _ in range(4):
        check_bits(steps, played, (steps.advance(1), played.advance(1)))
    check_bits(steps, played, (steps.advance(13), played.advance(13)))


@pytest.mark.gpu
@cover_pairs(
    layout=["low blocks", "blocks in order", "slices", "coo"],
    kind=["uniform", "x of one", "dangling", "personalization", "all", "dropped"],
    is_pattern={"pattern": True, "values": False},
)
def test_vectors_and_single_values(layout, kind, is_pattern):
    for name in ("most vertices are dangling", "only the last row", "empty columns"):
        block, weight = make_graph(name, is_pattern=is_pattern)
        assert (weight == 0).any()
        vectors = make_vectors(block.n_rows, weight, kind=kind)
        steps, played = make_steps(layout, block, "exact", np.int32), PlayedDevice(block)
        check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED))
        single = make_vectors(block.n_rows, weight, kind=kind, dtype=np.float32)
        data = None if is_pattern else block.data.astype(np.float32)
        block = replace(block, data=data)
        steps, played = make_steps(layout, block, "float32", np.int32), PlayedDevice(block, "float32")
        check_close(steps, played, run_beside(steps, played, single, UNSTOPPED))


@pytest.mark.gpu
@VALUES
@BY_LAYOUT
def test_float32_steps_are_close_and_have_the_same_bits_again(layout, is_pattern):
    for name in MANY:
        with naming(name):
            check_float32_steps(name, layout, is_pattern)


def check_float32_steps(name, layout, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern, dtype=np.float32)
    steps, played = make_steps(layout, block, "float32"), PlayedDevice(block, "float32")
    vectors = make_vectors(block.n_rows, weight, dtype=np.float32)
    sums = run_beside(steps, played, vectors, UNSTOPPED)
    check_close(steps, played, sums)
    first = steps.ranks().tobytes()
    for again in (steps, make_steps(layout, block, "float32")):
        assert [again.start(vectors, UNSTOPPED), *again.advance(12)] == sums[0]
        assert again.ranks().tobytes() == first


@pytest.mark.gpu
@VALUES
@pytest.mark.parametrize("order", ["degree", "none"])
def test_blocks_that_are_split_over_several_items(order, is_pattern):
    """Rows with most of the entries are in one block, which has items for several multiprocessors."""
    lengths = np.random.default_rng(3).integers(0, 8, 3000)
    lengths[:200] = 4000
    block = make_random(lengths, 3000, data=None)
    block = block if is_pattern else make_weights(block)
    by_place = place_by_degree(block) if order == "degree" else None
    layout = build_low_blocks(block, read_to_device(block), by_place)
    items = cut_items(layout.feed.kept[0].block_chunks, 12, shared_memory()[0])
    assert items.parts[0] > 10
    assert items.parts[1:].max() == 1
    weight = np.bincount(block.indices, block.data, minlength=3000).astype(np.float64)
    steps, played = RankSteps(layout, "exact"), PlayedDevice(block)
    vectors = make_vectors(3000, weight, kind="all")
    check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED))
    mass = 0.25
    assert steps.residual(mass) == pytest.approx(played.residual(mass), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["low blocks", "slices", "coo"])
def test_steps_in_uneven_portions_are_those_of_one_go(layout):
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors = make_vectors(block.n_rows, weight)
    steps, played = make_steps(layout, block, "exact"), PlayedDevice(block)
    wanted = run_beside(steps, played, vectors, UNSTOPPED, KEPT_SUMS + 61)
    check_bits(steps, played, wanted)
    assert len(wanted[0]) == KEPT_SUMS + 62
    ranks, sums = steps.ranks().tobytes(), [steps.start(vectors, UNSTOPPED)]
    portions = (1, 2, 3, 5, 7, 130, 0, 4, KEPT_SUMS - 91)
    assert sum(portions) == KEPT_SUMS + 61
    for n in portions:
        sums += steps.advance(n)
    assert sums == wanted[0]
    assert steps.ranks().tobytes() == ranks


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize("by_largest", [False, True])
@pytest.mark.parametrize("layout", ["low blocks", "slices", "coo"])
def test_no_step_is_made_after_the_stop(layout, by_largest, precision):
    block, weight = make_graph("skewed rows", is_pattern=True)
    dtype = np.float32 if precision == "float32" else np.float64
    vectors = make_vectors(block.n_rows, weight, dtype=dtype)
    steps = make_steps(layout, block, precision)
    sums = [steps.start(vectors, UNSTOPPED), *steps.advance(6)]
    changes = [(s.change_linf if by_largest else s.change_l1) / 2**61 for s in sums[1:]]
    assert (np.diff(changes) < 0).all()
    ranks = {}
    for k in range(1, 7):
        steps.start(vectors, UNSTOPPED)
        steps.advance(k)
        ranks[k] = steps.ranks().tobytes()
    for k, n in product((1, 4, 5, 6), (40, 6)):
        threshold = np.nextafter(changes[k - 1], np.inf)
        assert [steps.start(vectors, RankRules(ALPHA, threshold, by_largest)), *steps.advance(n)] == sums[: k + 1]
        assert steps._arrays.state.get().tolist() == [0, 0, k, 1]
        assert steps.ranks().tobytes() == ranks[k]
        assert steps.advance(3) == []
        assert steps.ranks().tobytes() == ranks[k]
    steps.start(vectors, RankRules(ALPHA, changes[3], by_largest))  # a change of just the threshold is not below it
    assert len(steps.advance(9)) == 5


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["blocks by degree", "slices", "coo"])
@pytest.mark.parametrize(("begin", "wanted"), [(2, 1), (1, 1), (0, 2)], ids=["start", "first step", "second step"])
def test_ranks_that_are_not_finite_stop_it(begin, wanted, layout):
    """Rank goes round from a vertex on, and at the last one it is divided by a weight that is next to nothing."""
    block = CsrBlock(0, 3, np.arange(4), np.array([2, 0, 1], np.int32), np.array([5e-324, 1.0, 1.0]))
    x, one = np.zeros(3), np.array([1.0, 0.0, 0.0])
    x[begin] = 1
    vectors = RankVectors(x, np.array([1.0, 1.0, 5e-324]), one, one)
    steps, played = make_steps(layout, block, "exact"), PlayedDevice(block)
    got, expected = run_beside(steps, played, vectors, RankRules(ALPHA, 1e-6, by_largest=False), 10)
    assert len(got) == len(expected) == 1 + wanted
    first = 2 - begin  # of x that are wrong; what comes of them is not said
    for sums in (got, expected):
        assert [s.n_wrong for s in sums[: first + 1]] == [0] * first + [1]
    assert steps._arrays.state.get().tolist() == [0, 0, wanted, 2]
    assert steps.advance(2) == []


def find_residual(block, vectors, x, mass) -> float:
    """|G(x) - x| in L1 by rational numbers."""
    n, alpha = block.n_rows, Fraction(ALPHA)
    d, p = (to_fractions(np.broadcast_to(v, n)) for v in (vectors.dangling, vectors.personalization))
    rank, weight = to_fractions(x), to_fractions(vectors.weight)
    data = to_fractions(np.ones(block.nnz) if block.data is None else block.data)
    total = Fraction(0)
    for i in range(n):
        new = alpha * Fraction(mass) * d[i] + (1 - alpha) * p[i]
        for k in range(block.indptr[i], block.indptr[i + 1]):
            j = block.indices[k]
            new += alpha * data[k] * rank[j] / weight[j] if weight[j] else 0
        total += abs(new - rank[i])
    return float(total)


def to_fractions(vector) -> list[Fraction]:
    return [Fraction(value) for value in vector.tolist()]


@pytest.mark.gpu
@cover_pairs(
    layout=["low blocks", "blocks in order", "slices", "coo"],
    precision=["exact", "float32"],
    is_pattern={"pattern": True, "values": False},
)
def test_residual_bounds_the_true_one(layout, precision, is_pattern):
    """Also of values that were rounded to float32 when they were read."""
    dtype = np.float32 if precision == "float32" else np.float64
    whole = make_random(np.random.default_rng(2).zipf(1.6, 150).clip(1, 120) - 1, 150, data=None, seed=5)
    whole = whole if is_pattern else make_weights(whole)
    weight = np.bincount(whole.indices, whole.data, minlength=150).astype(np.float64)
    block = whole if is_pattern else replace(whole, data=whole.data.astype(dtype))
    for kind, n in product(("uniform", "all"), (1, 10, 150)):
        vectors = make_vectors(150, weight, kind=kind, dtype=dtype)
        steps, played = make_steps(layout, block, precision), PlayedDevice(block, precision)
        sums = run_beside(steps, played, vectors, UNSTOPPED, n)
        mass = sums[0][-1].dangling / 2**62
        got, true = steps.residual(mass), find_residual(whole, vectors, steps.ranks(), mass)
        rounding = 1e-6 if precision == "float32" else 1e-14
        assert true <= got <= true + rounding
        assert got == pytest.approx(played.residual(mass), rel=1e-3, abs=2 * rounding)


@pytest.mark.gpu
@BY_LAYOUT
def test_a_run_after_a_residual_and_after_a_release(layout):
    block, weight = make_graph("skewed rows", is_pattern=False)
    vectors = make_vectors(block.n_rows, weight, kind="all")
    steps = make_steps(layout, block, "exact")
    held = steps.nbytes
    assert held >= steps.layout.nbytes
    steps.compile()
    runs = []
    for end in (lambda: steps.residual(0.1), steps.release, steps.release):
        sums = [steps.start(vectors, UNSTOPPED), *steps.advance(7)]
        vector_bytes = 8 * block.n_rows * 6  # x, out-weights, dangling, personalization and z, twice
        if (own := getattr(steps.layout.feed.kept[0], "bins", None)) is not None:
            vector_bytes += 8 * own.n_octets * bins.OCTET
        assert held + vector_bytes <= steps.nbytes <= held + vector_bytes + 64 + 32 * (KEPT_SUMS + 1)
        runs.append((sums, steps.ranks().tobytes()))
        end()
    assert runs[0] == runs[1] == runs[2]
    assert steps.nbytes == held


@pytest.mark.gpu
def test_what_a_run_starts_with_is_not_changed():
    cupy = pytest.importorskip("cupy")
    block, weight = make_graph("skewed rows", is_pattern=True)
    steps, vectors = make_steps("slices", block, "exact"), make_vectors(block.n_rows, weight, kind="all")
    there = RankVectors(*map(cupy.asarray, vars(vectors).values()))
    before = {name: array.tobytes() for name, array in vars(vectors).items()}
    runs = []
    for given_vectors in (vectors, there, there):
        runs.append([steps.start(given_vectors, UNSTOPPED), *steps.advance(6)])
    assert runs[0] == runs[1] == runs[2]
    assert {name: array.tobytes() for name, array in vars(vectors).items()} == before
    assert {name: array.get().tobytes() for name, array in vars(there).items()} == before


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "kind", "is_ordered"),
    [
        ("grid", SellSlices, False),
        ("skewed rows", ColumnSortedBlocks, True),
        ("hub rows longer than a tile", ColumnSortedBlocks, True),
    ],
)
def test_the_layout_that_suits(name, kind, is_ordered, monkeypatch):
    block = MANY[name]
    assert build_layout(block, read_to_device(block)).name == "coo"
    monkeypatch.setattr("mgspmv.kernels.layout.REACH", 100)
    monkeypatch.setattr("mgspmv.kernels.layout.SMALL_ENTRIES", 0)
    by_degree = place_by_degree(block).tolist()
    for piece_entries in (None, 3000):
        layout = build_layout(block, read_to_device(block), piece_entries=piece_entries)
        assert type(layout.feed.kept[0]) is kind
        assert (None if layout.places.by_place is None else layout.places.by_place.tolist()) == (
            by_degree if is_ordered else None
        )
    for named in PRODUCTS:
        layout = build_layout(block, read_to_device(block), layout=named)
        assert (layout.name, layout.feed.kept[0].name) == (named, named)
    layout = build_layout(block, read_to_device(block), layout="column-sorted-blocks", order="degree")
    assert layout.places.by_place.tolist() == by_degree


@pytest.mark.gpu
def test_a_layout_made_at_once_reads_the_matrix_once():
    block, calls = MANY["skewed rows"], []
    read = read_to_device(block)

    def count(start, stop):
        calls.append((start, stop))
        return read(start, stop)

    for layout in (None, "column-sorted-blocks"):
        build_layout(block, count, layout=layout)
        assert calls == [(0, block.n_rows)]
        calls.clear()
    build_layout(block, count, layout="column-sorted-blocks", piece_entries=block.nnz // 4)
    n_pieces = len(set(calls[1:]))  # after some rows in the middle
    assert n_pieces >= 4
    assert len(calls) == 1 + 2 * n_pieces - HELD_PIECES


def watch_memory(cupy):
    """What notes, in a `with`, the most bytes of arrays on the device, beyond those that were there before."""
    pool = cupy.get_default_memory_pool()

    class Watch(cupy.cuda.MemoryHook):
        name = "Watch"
        before, peak_bytes = pool.used_bytes(), 0

        def malloc_postprocess(self, **_) -> None:
            self.peak_bytes = max(self.peak_bytes, pool.used_bytes() - self.before)

    return Watch()


@pytest.mark.gpu
@pytest.mark.slow
@measures_pool
@pytest.mark.parametrize(
    ("weights", "layout", "precision"),
    [
        (False, "column-sorted-blocks", "exact"),
        (True, "column-sorted-blocks", "float32"),
        (False, "sell-slices", "exact"),
        (False, "coo", "exact"),
    ],
)
def test_preparing_holds_two_pieces_of_the_matrix_at_a_time(tmp_path, monkeypatch, weights, layout, precision):
    """Beside the layout, and tables of the rows that are no larger than the vectors of a run."""
    cupy = pytest.importorskip("cupy")
    n, nnz = 1 << 16, 1 << 22
    piece_entries = nnz // 4
    rng = np.random.default_rng(1)
    source, target = rng.integers(0, n, (2, nnz))
    arcs = (source, target, rng.random(nnz) + 0.5) if weights else (source, target)
    mg.ingest(arcs, tmp_path / "g.zarr", n_vertices=n, duplicates="keep")
    monkeypatch.setattr("mgspmv.api.embedded.choose_piece", lambda *_, **options: piece_entries)
    A = mg.open_matrix(tmp_path / "g.zarr")
    dtype, entry_bytes = ("float32", 8) if weights else (None, 4)
    make_small(tmp_path, weights=weights).bind_steps(dtype, precision, layout)  # what CuPy keeps is there from now on
    gc.collect()
    watch = watch_memory(cupy)
    with watch:
        steps = A.bind_steps(dtype, precision, layout)
    vector_bytes = (8 + 8 + 8 + 4 + 2 * 8) * n
    piece_bytes = HELD_PIECES * entry_bytes * piece_entries + 4 * n
    assert steps.layout.nbytes >= nnz * entry_bytes
    assert watch.peak_bytes >= steps.layout.nbytes + entry_bytes * nnz // 4  # so it did see the pieces
    assert watch.peak_bytes <= 1.1 * steps.layout.nbytes + vector_bytes + piece_bytes


def make_small(folder, *, weights):
    arcs = (np.arange(9), (np.arange(9) + 1) % 9, np.ones(9))
    return mg.ingest(arcs, folder / "small.zarr", weights=None if weights else False)
