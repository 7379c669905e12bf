"""Generators, compared with a model in Python integers, with statistics, and with grids of SciPy and NetworkX."""

from __future__ import annotations

import json
import threading

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from mgspmv.errors import OptionError
from mgspmv.ingest import generate
from mgspmv.ingest.budget import ANY_ROOM
from mgspmv.ingest.generate import RmatSource, UniformSource, banded, make_generator, stencil2d, stencil3d

WRAP = 2**64

SMALL = {
    "rmat": {"scale": 6, "edge_factor": 4},
    "uniform": {"n_vertices": 50, "n_edges": 300},
    "stencil2d": {"nx": 4, "ny": 3},
    "stencil3d": {"nx": 2, "ny": 3, "nz": 4},
    "banded": {"n": 9, "bandwidth": 2},
}

# Edges of the recipe's first version. If these change, every published graph changes.
PINNED_RMAT = [(724117, 149329), (181362, 516750), (462321, 42433), (40863, 302024), (742713, 71477), (934623, 883231)]
PINNED_RMAT_PLAIN = [(138756, 103488), (287268, 132104), (49208, 266652)]
PINNED_UNIFORM = [
    (368, 943, 0.46696631092582597),
    (45, 777, 0.03433104011282451),
    (219, 774, 0.04596985715818458),
]


def read_all(source):
    """Rows, columns and values of all batches."""
    batches = list(source.batches())
    rows, cols = (np.concatenate([getattr(b, name) for b in batches]) for name in ("rows", "cols"))
    has_values = {b.values is not None for b in batches}
    assert len(has_values) == 1
    return rows, cols, np.concatenate([b.values for b in batches]) if has_values.pop() else None


def to_csr(source):
    rows, cols, values = read_all(source)
    values = np.ones(len(rows)) if values is None else values
    return sp.coo_array((values, (rows, cols)), shape=source.layout().shape).tocsr()


def assert_same(a, b):
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left, right)


def word(key, t):
    z = (key + (t + 1) * 0x9E3779B97F4A7C15) % WRAP
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WRAP
    return z ^ z >> 31


def model_scramble(x, scale, keys):
    x = (x + keys[2]) % 2**scale
    for s in (3, 4, 5):
        x = x * (keys[s] | 1) % 2**scale
        x ^= x >> -(-scale // 2)
    return x


def model_rmat(e, scale, a, b, c, seed, scramble):
    keys = [word(seed, s) for s in range(6)]
    t_a, t_ab, t_abc = (int(2**21 * p + 0.5) for p in (a, a + b, a + b + c))
    n_words = -(-scale // 3)
    row = col = ""
    for k in range(n_words):
        bits = f"{word(keys[0], e * n_words + k):064b}"
        for u in (int(bits[at : at + 21], 2) for at in (0, 21, 42)):
            quadrant = (u >= t_a) + (u >= t_ab) + (u >= t_abc)
            row, col = row + "0011"[quadrant], col + "0101"[quadrant]
    ends = [int(bits[:scale], 2) for bits in (row, col)]
    return [model_scramble(x, scale, keys) for x in ends] if scramble else ends


def test_words_are_splitmix64():
    words = generate.random_words(np.uint64(1234567), np.arange(5, dtype=np.uint64))
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [word(1234567, t) for t in range(5)] == words.tolist()


def test_scale_words_is_the_high_half_of_the_product():
    words = np.concatenate(
        [generate.random_words(np.uint64(5), np.arange(200, dtype=np.uint64)), np.array([0, 1, WRAP - 1], np.uint64)]
    )
    for n in (1, 2, 3, 1000, 2**31 + 7, 2**32 - 1, 2**32, 2**40):
        assert generate.scale_words(words, n).tolist() == [w * n // WRAP for w in words.tolist()], n


@pytest.mark.parametrize("scramble", [True, False])
def test_rmat_follows_its_recipe(scramble):
    parameters = {"a": 0.45, "b": 0.25, "c": 0.1, "seed": 2**64 - 3, "scramble": scramble}
    for scale in (1, 2, 3, 4, 6, 11, 31, 32, 40):
        source = RmatSource(scale, **parameters)
        begin = source.n_slots - min(source.n_slots, 20)
        batch = source.make_entries(begin, source.n_slots)
        expected = [model_rmat(e, scale, **parameters) for e in range(begin, source.n_slots)]
        assert np.column_stack([batch.rows, batch.cols]).tolist() == expected, scale


def test_rmat_edges_are_these():
    batch = RmatSource(20).make_entries(0, 6)
    assert list(zip(batch.rows.tolist(), batch.cols.tolist(), strict=True)) == PINNED_RMAT
    batch = RmatSource(20, scramble=False, seed=2).make_entries(10**6, 10**6 + 3)
    assert list(zip(batch.rows.tolist(), batch.cols.tolist(), strict=True)) == PINNED_RMAT_PLAIN


def test_uniform_edges_are_these():
    batch = UniformSource(1000, 5, weights=True).make_entries(0, 3)
    assert list(zip(batch.rows.tolist(), batch.cols.tolist(), batch.values.tolist(), strict=True)) == PINNED_UNIFORM


def test_uniform_follows_its_recipe():
    source = UniformSource(2**33 + 1, 10**6, seed=7, weights=True)
    batch = source.make_entries(999_990, 1_000_000)
    places, values = word(7, 0), word(7, 1)
    for k, e in enumerate(range(999_990, 1_000_000)):
        assert batch.rows[k] == word(places, 2 * e) * (2**33 + 1) // WRAP
        assert batch.cols[k] == word(places, 2 * e + 1) * (2**33 + 1) // WRAP
        assert batch.values[k] == (word(values, e) // 2**11 + 1) / 2**53


@pytest.mark.parametrize("model", SMALL)
def test_entries_do_not_depend_on_batches(model):
    for options in ({}, {"pattern": True} if model.startswith("stencil") else {"weights": model != "banded"}):
        source = make_generator(model, **SMALL[model], **options)
        whole = read_all(source)
        for size in (1, 7, 64):
            source.batch_entries = size
            assert all(len(b.rows) <= size for b in source.batches())
            parts = read_all(source)
            assert (parts[2] is None) == (whole[2] is None)
            assert_same([p for p in parts if p is not None], [w for w in whole if w is not None])


def test_batches_are_made_by_other_threads_in_order(monkeypatch):
    source = make_generator("rmat", scale=6, edge_factor=4)
    source.batch_entries = 16
    source.prepare(3, ANY_ROOM)
    threads, make = set(), source.make_entries
    whole = make(0, 256).rows

    def spy(begin, end):
        threads.add(threading.get_ident())
        return make(begin, end)

    monkeypatch.setattr(source, "make_entries", spy)
    batches = list(source.batches())
    assert np.array_equal(np.concatenate([batch.rows for batch in batches]), whole)
    assert len(batches) == 16
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_scrambling_is_a_permutation(seed):
    keys = generate.derive_keys(seed)[2:]
    for scale in (1, 2, 3, 7, 12, 17):
        n = 2**scale
        ids = np.arange(n, dtype=np.uint64)
        scrambled = generate.scramble_ids(ids, np.uint64(n - 1), np.uint64((scale + 1) // 2), keys)
        assert np.array_equal(np.sort(scrambled), np.arange(n)), scale


def test_weights_are_uniform_in_0_1_and_leave_the_edges():
    plain, weighted = RmatSource(10), RmatSource(10, weights=True)
    assert_same(read_all(plain)[:2], read_all(weighted)[:2])
    values = read_all(weighted)[2]
    assert values.dtype == np.float64
    assert values.min() > 0
    assert values.max() <= 1
    assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_all_edges_in_one_quadrant():
    rows, cols, _ = read_all(RmatSource(5, a=0, b=0, c=1.0, scramble=False))
    assert set(rows) == {31}
    assert set(cols) == {0}


def band_of(n, value, diagonal):
    return sp.diags_array([value, diagonal, value], offsets=[-1, 0, 1], shape=(n, n))


def star_laplacian(*sides):
    """Kronecker sum of second differences, the last side fastest."""
    total = sp.csr_array((1, 1))
    for n in sides:
        total = sp.kron(total, sp.eye_array(n)) + sp.kron(sp.eye_array(total.shape[0]), band_of(n, -1.0, 2.0))
    return total


def box_laplacian(*sides):
    ones = sp.csr_array([[1.0]])
    for n in sides:
        ones = sp.kron(ones, band_of(n, 1.0, 1.0))
    return 3 ** len(sides) * sp.eye_array(ones.shape[0]) - ones


def test_stencil2d_is_the_laplacian():
    for sides in ((1, 1), (1, 5), (4, 1), (2, 2), (3, 5), (7, 4)):
        star, box = star_laplacian(*sides[::-1]), box_laplacian(*sides[::-1])
        np.testing.assert_array_equal(to_csr(stencil2d(*sides)).toarray(), star.toarray())
        np.testing.assert_array_equal(to_csr(stencil2d(*sides, points=9)).toarray(), box.toarray())


def test_stencil3d_is_the_laplacian():
    for sides in ((1, 1, 1), (3, 1, 2), (2, 3, 4), (4, 3, 2)):
        star, box = star_laplacian(*sides[::-1]), box_laplacian(*sides[::-1])
        np.testing.assert_array_equal(to_csr(stencil3d(*sides)).toarray(), star.toarray())
        np.testing.assert_array_equal(to_csr(stencil3d(*sides, points=27)).toarray(), box.toarray())


@pytest.mark.parametrize(
    ("source", "graph"),
    [
        (stencil2d(4, 3, pattern=True), nx.grid_graph((4, 3))),
        (stencil3d(2, 3, 4, pattern=True), nx.grid_graph((2, 3, 4))),
        (stencil2d(4, 3, points=9, pattern=True), nx.strong_product(nx.path_graph(3), nx.path_graph(4))),
        (stencil2d(1, 5, pattern=True), nx.grid_graph((1, 5))),
    ],
)
def test_pattern_stencil_is_the_grid_graph(source, graph):
    # grid_graph reverses its sides, so sorted nodes have the first side fastest.
    expected = nx.to_scipy_sparse_array(graph, nodelist=sorted(graph))
    np.testing.assert_array_equal(to_csr(source).toarray(), expected.toarray())


@pytest.mark.parametrize(("n", "bandwidth"), [(1, 0), (1, 3), (5, 0), (6, 2), (6, 5), (6, 100)])
def test_banded_has_all_entries_of_the_band(n, bandwidth):
    rows, cols, values = read_all(banded(n, bandwidth))
    inside = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= bandwidth
    assert_same((rows, cols), np.nonzero(inside))
    key, reach = word(1, 1), min(bandwidth, n - 1)
    for i, j, value in zip(rows.tolist(), cols.tolist(), values.tolist(), strict=True):
        assert value == (word(key, i * (2 * reach + 1) + j - i + reach) // 2**11 + 1) / 2**53
    assert_same(read_all(banded(n, bandwidth, weights=False))[:2], (rows, cols))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("rmatt", {}, "there is no generator 'rmatt'; did you mean 'rmat'? There are rmat, uniform, stencil2d,"),
        ("qqq", {}, "there is no generator 'qqq'; there are rmat, uniform, stencil2d, stencil3d, banded"),
        (
            "rmat",
            {"scal": 3},
            "generator rmat has no option 'scal'; did you mean 'scale'? There are scale, edge_factor",
        ),
        ("rmat", {}, "generator rmat also needs scale"),
        ("stencil3d", {"ny": 3}, "generator stencil3d also needs nx, nz"),
        ("rmat", {"scale": 0}, "scale must be an integer from 1 to 40, not 0"),
        ("rmat", {"scale": 41}, "scale must be an integer from 1 to 40, not 41"),
        ("rmat", {"scale": 3.0}, "scale must be an integer from 1 to 40, not 3.0"),
        ("rmat", {"scale": True}, "scale must be an integer from 1 to 40, not True"),
        ("rmat", {"scale": 3, "edge_factor": -1}, "edge_factor must be an integer from 0 to 65536, not -1"),
        ("rmat", {"scale": 3, "seed": 2**64}, "seed must be an integer from 0 to 18446744073709551615, not"),
        (
            "rmat",
            {"scale": 3, "a": 0.7},
            "a=, b= and c= must be numbers of at least 0 that sum to at most 1, not 0.7, 0.19",
        ),
        ("rmat", {"scale": 3, "b": -0.1}, "a=, b= and c= must be numbers of at least 0"),
        ("rmat", {"scale": 3, "c": "0.1"}, "a=, b= and c= must be numbers of at least 0"),
        ("rmat", {"scale": 3, "a": float("nan")}, "a=, b= and c= must be numbers of at least 0"),
        ("rmat", {"scale": 3, "scramble": "no"}, "scramble must be True or False, not 'no'"),
        ("rmat", {"scale": 3, "weights": 1}, "weights must be True or False, not 1"),
        ("uniform", {"n_vertices": 0, "n_edges": 1}, "n_vertices must be an integer from 1 to 1099511627776, not 0"),
        ("uniform", {"n_vertices": 1, "n_edges": -1}, "n_edges must be an integer from 0 to"),
        ("uniform", {"n_vertices": 1, "n_edges": 1, "weights": None}, "weights must be True or False, not None"),
        ("stencil2d", {"nx": 0, "ny": 3}, "nx must be an integer from 1 to"),
        ("stencil2d", {"nx": 3, "ny": 3, "points": 7}, "points must be one of 5, 9, not 7"),
        (
            "stencil2d",
            {"nx": 2**40, "ny": 2**40},
            "stencil2d would have 6044629098073145873530880 entries, but at most",
        ),
        ("stencil3d", {"nx": 3, "ny": 3, "nz": 3, "points": 9}, "points must be one of 7, 27, not 9"),
        ("stencil3d", {"nx": 3, "ny": 3, "nz": 3, "pattern": 0}, "pattern must be True or False, not 0"),
        ("banded", {"n": 0, "bandwidth": 1}, "n must be an integer from 1 to"),
        ("banded", {"n": 9, "bandwidth": 2**20 + 1}, "bandwidth must be an integer from 0 to 1048576, not 1048577"),
        ("banded", {"n": 9, "bandwidth": 1, "seed": -1}, "seed must be an integer from 0 to"),
        ("banded", {"n": 9, "bandwidth": 1, "weights": "x"}, "weights must be True or False, not 'x'"),
    ],
)
def test_refusals(model, options, message):
    with pytest.raises(OptionError) as caught:
        make_generator(model, **options)
    assert message in str(caught.value)


def test_numpy_integers_and_sums_with_rounding_are_taken():
    assert 0.33 + 0.56 + 0.11 > 1
    source = RmatSource(np.int32(4), a=np.float64(0.33), b=0.56, c=0.11, scramble=False)
    rows, cols, _ = read_all(source)
    assert not (rows & cols).any()
    json.dumps(source.layout().provenance)
