"""Stochastic matrices are refused where an entry is negative, or a column does not sum to 1."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError

NEGATIVE = (
    "entries of a left-stochastic matrix must be 0 or more, but row {}, column {} has {}; correct it, or ingest with"
)


def make_matrix(entries):
    rows, columns, values = zip(*entries, strict=True)
    return sp.coo_array((np.array(values, np.float64), (rows, columns)), shape=(3, 3))


def test_ingest_refuses_a_negative_entry(tmp_path):
    matrix = make_matrix([(0, 0, 2.0), (1, 0, -1.0), (1, 1, 1.0)])
    with pytest.raises(SourceError, match=NEGATIVE.format(1, 0, -1.0)):
        mg.ingest(matrix, kind="stochastic")
    (tmp_path / "a.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 2\n2 1 -1\n2 2 1\n", encoding="utf-8"
    )
    with pytest.raises(SourceError, match=NEGATIVE.format(1, 0, -1.0)):
        mg.ingest(tmp_path / "a.mtx", tmp_path / "a.zarr", kind="stochastic")
    assert not (tmp_path / "a.zarr").exists()


def test_duplicates_are_summed_before_signs_are_looked_at():
    matrix = make_matrix([(0, 0, 1.5), (0, 0, -0.5), (1, 1, 1.0)])
    assert mg.ingest(matrix, kind="stochastic").to_scipy().toarray()[0, 0] == 1.0


@pytest.mark.parametrize("order", ["none", "degree"])
def test_places_are_those_of_the_source(order):
    matrix = make_matrix([(0, 0, 1.0), (2, 1, 1.25), (1, 1, -0.25)])
    with pytest.raises(SourceError, match=NEGATIVE.format(1, 1, -0.25)):
        mg.ingest(matrix, kind="stochastic", order=order)


def test_update_refuses_a_negative_entry():
    A = mg.ingest(make_matrix([(0, 0, 1.0), (1, 1, 1.0)]), kind="stochastic")
    with pytest.raises(SourceError, match=NEGATIVE.format(2, 2, -1.0)):
        mg.update(A, insert=make_matrix([(0, 2, 2.0), (2, 2, -1.0)]))


def test_columns_that_do_not_sum_to_1_are_refused_with_a_remedy():
    remedy = r"if its rows sum to 1, transpose it\), or ingest with kind='graph'"
    with pytest.raises(SourceError, match=f"column 0 sums to 1.5; normalize it .{remedy}"):
        mg.ingest(make_matrix([(0, 0, 0.5), (0, 1, 0.5), (1, 1, 1.0), (2, 0, 1.0)]), kind="stochastic")


def test_verify_and_stationary_refuse_negative_entries_of_stores_that_have_them(monkeypatch):
    monkeypatch.setattr(sys.modules["mgspmv.ingest.build"], "_check_signs", lambda matrix, block: None)
    A = mg.ingest(make_matrix([(0, 0, 2.0), (1, 0, -1.0), (1, 1, 1.0), (2, 2, 1.0)]), kind="stochastic")
    assert any("must not be negative" in problem for problem in mg.verify(A))
    with pytest.raises(OptionError, match=r"has negative entries, the least is -1\.0"):
        mg.stationary(A)
