"""Digests of matrices."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from zarr.storage import MemoryStore

from tests.support.arrays import write_store
from tests.support.stores import (
    INTEGER_IDS,
    STRING_IDS,
    digest,
    make_arrays,
    make_scipy,
    make_stochastic,
    make_transpose,
)


def test_digest_is_the_matrix_and_nothing_else():
    matrix = make_scipy(12, 12)
    same = digest(make_arrays(matrix, "graph"))
    assert digest(make_arrays(matrix, "graph"), provenance={"created": "later"}) == same
    assert digest(make_arrays(matrix, "graph"), transpose=make_transpose(matrix)) == same
    place = MemoryStore()
    write_store(place, make_arrays(make_scipy(4, 4)))
    assert write_store(place, make_arrays(matrix, "graph"), overwrite=True).digest == same


def test_digest_differs_when_anything_differs():
    matrix = make_stochastic(6)
    other_value, other_place = matrix.copy(), matrix.copy()
    other_value.data[3] = np.nextafter(other_value.data[3], 2)
    other_place.indices[-1] = 5 if other_place.indices[-1] < 5 else 4
    wider = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(6, 7))
    bits = make_arrays(matrix)
    integers = np.frombuffer(INTEGER_IDS.tobytes(), dtype=np.int64)
    digests = [
        digest(make_arrays(matrix, "graph")),
        digest(make_arrays(matrix, "stochastic")),
        digest(bits),
        digest(make_arrays(wider)),
        digest(make_arrays(matrix, pattern=True)),
        digest(make_arrays(matrix, "graph", pattern=True)),
        digest(make_arrays(other_value)),
        digest(make_arrays(other_place)),
        digest(make_arrays(matrix.astype(np.float32))),
        digest(dataclasses.replace(bits, data=bits.data.view(np.int64))),
        digest(make_arrays(matrix, index_dtype=np.int64)),
        digest(make_arrays(matrix, "graph", ids=STRING_IDS)),
        digest(make_arrays(matrix, "graph", ids=integers)),
    ]
    assert len(set(digests)) == len(digests)
