"""The highest of many: one rule, whatever array module looks for them, and in whatever order they lie."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.kernels.highest import LEAST_GROUP, order_highest, select_each, select_highest
from mgspmv.order import restore

NAMES = ("arange", "asarray", "concatenate", "empty", "flatnonzero", "isnan", "maximum", "minimum", "nonzero")
NAMES += ("partition", "where")
KINDS = ("random", "ties", "nan", "few", "equal", "all nan", "infinite")


def make_values(kind, n, dtype=np.float64, seed=3):
    rng = np.random.default_rng(seed)
    values = rng.random(n)
    if kind == "ties":
        values = np.round(values, 2)
    elif kind == "nan":
        values[rng.random(n) < 0.3] = np.nan
    elif kind == "few":
        values[rng.random(n) < 0.999] = 0.0
    elif kind == "equal":
        values[:] = 0.25
    elif kind == "all nan":
        values[3:] = np.nan
    elif kind == "infinite":
        values[rng.random(n) < 0.3], values[rng.random(n) < 0.3], values[::7] = np.inf, -np.inf, np.nan
    return values.astype(dtype)


def sort_all(values):
    """Positions by a full sort."""
    return np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable")


def test_highest_puts_nan_last():
    assert select_highest(np.array([np.nan, 1.0, np.inf, np.nan]), 3).tolist() == [2, 1, 0]
    assert select_highest(np.empty(0), 3).tolist() == []


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_ties_are_by_the_number_in_the_source_wherever_the_rows_are(kind, dtype):
    """By nothing but what CuPy has too; little more than what is selected is got."""
    n, rng, got = 5000, np.random.default_rng(4), []
    assert n // LEAST_GROUP**2 > 20  # so that 1 and 20 are found by groups, and 100 in a sample
    xp = SimpleNamespace(**{name: getattr(np, name) for name in NAMES})
    order = rng.permutation(n).astype(np.int32)
    vectors = np.stack([make_values(kind, n, dtype, seed) for seed in range(3)])

    def get(array):
        got.append(array.size)
        return array

    for k in (1, 20, 100, 700, n, n + 1):
        numbers, highest = select_each(vectors, k, order, xp, get)
        assert (numbers.dtype, highest.dtype) == (np.int64, dtype)
        for own_numbers, own, vector in zip(numbers, highest, vectors, strict=True):
            source = restore(vector, order)
            wanted = sort_all(source)[:k]
            assert own_numbers.tolist() == select_highest(source, k).tolist() == wanted.tolist()
            assert own.tobytes() == source[wanted].tobytes()
        assert max(got) <= max(min(k, n), 3 * 5 * (n * k) ** 0.5)  # of 3 vectors, and at most 4 groups for each of k
        assert sum(got) <= 3 * 2 * n  # ranks and numbers
        got.clear()
        unnumbered, _ = select_each(vectors, k, None, xp, get)
        assert unnumbered.tolist() == [sort_all(vector)[:k].tolist() for vector in vectors]
        got.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_of_parts_hold_the_highest_of_all(kind):
    """As workers find them, each in its rows."""
    n, k = 900, 40
    values, order = make_values(kind, n), np.random.default_rng(5).permutation(n)
    stored = values[order]
    for bounds in ((0, n), (0, 10, 10, 500, n)):
        parts = [select_each(stored[None, a:b], k, order[a:b]) for a, b in pairwise(bounds)]
        numbers, ranks = (np.concatenate([part[i][0] for part in parts]) for i in (0, 1))
        places = order_highest(ranks, numbers, k)
        assert numbers[places].tolist() == sort_all(values)[:k].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_selects_the_same(kind, dtype):
    import cupy

    n = 100_000
    vectors = np.stack([make_values(kind, n, dtype, seed) for seed in range(4)])
    order = np.random.default_rng(6).permutation(n).astype(np.int32)
    for k in (1, 100, 30_000, n + 1):
        for numbers in (None, order):
            wanted = select_each(vectors, k, numbers)
            on_device = None if numbers is None else cupy.asarray(numbers)
            found = select_each(cupy.asarray(vectors), k, on_device, cupy, cupy.asnumpy)
            for one, other in zip(found, wanted, strict=True):
                assert one.dtype == other.dtype
                assert one.tobytes() == other.tobytes()
