"""Digests of vectors: the formula by plain integers, whatever threads do; who holds something else than was sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.exchange import digests
from mgspmv.exchange.digests import digest_elements, digest_slices, find_difference
from mgspmv.model import Digests

MASK = 2**64 - 1
DTYPES = ["int64", "float64", "float32", "uint32"]


def digest_plainly(vector):
    """The formula, in Python's integers."""
    total = 0
    for k, word in enumerate(vector.view(f"uint{8 * vector.itemsize}").tolist()):
        word = (word + (k + 1) * 0x9E3779B97F4A7C15) & MASK
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
        total += word ^ word >> 31
    return total & MASK


def make_vector(n, dtype, seed=0):
    raw = np.random.default_rng(seed).bytes(n * np.dtype(dtype).itemsize)
    return np.frombuffer(raw, dtype)


def test_the_formula():
    for dtype in DTYPES:
        for n in (0, 1, 2, 1000):
            vector = make_vector(n, dtype)
            assert digest_elements(vector) == digest_plainly(vector), n
            assert (n == 0) == (digest_elements(vector) == 0), n


@pytest.fixture(params=[1 << 20, 64], ids=["one piece", "pieces"])
def piece(request, monkeypatch):
    """Elements that a thread takes at a time."""
    monkeypatch.setattr(digests, "_PIECE", request.param)


def test_pieces_of_threads_make_no_difference(piece):
    for rows in [None, np.int32, np.int64]:
        vector = make_vector(1000, "float64")
        chosen = None if rows is None else np.flatnonzero(np.arange(1000) % 3).astype(rows)
        wanted = digest_plainly(vector if chosen is None else vector[chosen])
        for threads in (1, 3):
            assert digest_elements(vector, chosen, threads) == wanted, threads


def test_many_vectors_row_by_row(piece):
    for rows in [None, np.int32, np.int64]:
        for dtype in DTYPES:
            vectors = make_vector(900, dtype).reshape(225, 4)
            chosen = None if rows is None else np.flatnonzero(np.arange(225) % 3).astype(rows)
            wanted = digest_plainly(vectors.reshape(-1) if chosen is None else vectors[chosen].reshape(-1))
            for threads in (1, 3):
                assert digest_elements(vectors, chosen, threads) == wanted, (dtype, threads)
            assert digest_slices(vectors, (0, 5, 225))[1] == digest_plainly(vectors[5:].reshape(-1)), dtype


@given(st.integers(0, 299), st.integers(0, 63), st.sampled_from(DTYPES))
def test_a_flipped_bit_is_always_seen(k, bit, dtype):
    vector = make_vector(300, dtype)
    raw = bytearray(vector.tobytes())
    raw[k * vector.itemsize + bit // 8 % vector.itemsize] ^= 1 << bit % 8
    assert digest_elements(np.frombuffer(raw, dtype)) != digest_elements(vector)


def test_places_count():
    vector = np.arange(10.0)
    assert digest_elements(vector[::-1].copy()) != digest_elements(vector)
    assert digest_elements(np.zeros(3)) != digest_elements(np.zeros(4))
    assert digest_elements(np.array([0.0])) != digest_elements(np.array([-0.0]))


def test_slices():
    vector = make_vector(20, "int64")
    assert digest_slices(vector, (0, 0, 7, 20)) == (0, digest_plainly(vector[:7]), digest_plainly(vector[7:]))


def test_who_differs():
    same = [Digests((1, 2, 3), (1, 4, 7)), Digests((4, 5, 6), (2, 5, 8)), Digests((7, 8, 9), (3, 6, 9))]
    assert find_difference(same) is None
    for receiver in range(3):
        for sender in range(3):
            held = list(same[receiver].held)
            held[sender] += 1
            changed = [Digests(own.sent, tuple(held) if k == receiver else own.held) for k, own in enumerate(same)]
            assert find_difference(changed) == (sender, receiver)
