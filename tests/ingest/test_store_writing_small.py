"""Small inputs, which other code than the compiled functions serves, give the same stores."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import SourceError
from tests.support.later import FUNCTIONS, serving
from tests.support.pairwise import cover_pairs


def draw(values, *, seed=1, n=40, nnz=400):
    """Edges with many duplicates and loops."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, n, (2, nnz))
    drawn = {"none": None, "int64": rng.integers(-5, 5, nnz), "float64": rng.standard_normal(nnz)}[values]
    return (rows, cols) if drawn is None else (rows, cols, drawn)


@cover_pairs(
    values=["none", "int64", "float64"],
    duplicates=["sum", "first", "keep"],
    form=["text", "arrays"],
    ids=["dense", "sparse", "negative"],
    symmetrize={"symmetrized": True, "as given": False},
)
def test_stores_are_the_same(values, duplicates, form, ids, symmetrize, tmp_path):
    columns, duplicates = draw(values), "first" if (values, duplicates) == ("none", "sum") else duplicates
    shift = {"dense": lambda i: i, "sparse": lambda i: i * 10**12 + 7, "negative": lambda i: i - 20}[ids]
    columns = (shift(columns[0]), shift(columns[1]), *columns[2:])
    source = columns
    if form == "text":
        source = tmp_path / "edges.txt"
        source.write_text("# made\n" + "".join(f"{' '.join(map(str, line))}\n" for line in zip(*columns, strict=True)))
    digests = set()
    for is_compiled in (True, False):
        with serving(is_compiled):
            store = tmp_path / f"{is_compiled}.zarr"
            A = mg.ingest(source, store, kind="graph", duplicates=duplicates, symmetrize=symmetrize)
            digests.add((A.info.digest, str(A.ingest_report)))
    assert len(digests) == 1


@pytest.mark.parametrize(("is_compiled", "values"), list(product([True, False], ["none", "float64"])))
def test_the_first_duplicate_is_named(is_compiled, values, tmp_path):
    columns = draw(values)
    with serving(is_compiled), pytest.raises(SourceError) as caught:
        mg.ingest(columns, tmp_path / "a.zarr", kind="graph", duplicates="error")
    rows, cols = columns[:2]
    places, counts = np.unique(cols * 40 + rows, return_counts=True)  # a row of the store has the edges to a vertex
    first = places[counts > 1][0]
    assert re.findall(r"\d+", str(caught.value))[-2:] == [str(first % 40), str(first // 40)]


def test_all_are_covered():
    asked = "_read_lines _compact _count _find _mark _pack _replace scatter_buckets"
    assert {function.__name__ for function in FUNCTIONS if function._limit} == set(asked.split())
