"""What the tables of `mgspmv bench spmv` say of the kernel that `auto` is, and of all matrices together."""

from __future__ import annotations

from mgspmv.bench.machines import Times
from mgspmv.bench.spmv import Record
from mgspmv.bench.tables import format_report


def make_record(matrix: str, kernel: str, ms: float | None, rank: int | None = None, nnz: int = 2_000_000) -> Record:
    """Timed, or refused, with warm caches."""
    times = {} if ms is None else {"warm": Times(ms * 1e-3, ms * 1e-3, 3)}
    rates = {"bytes_per_s": {"warm": 1e12}, "copy_share": {"warm": 0.5}, "roofline_share": {"warm": 0.75}}
    return Record(
        *(matrix, "band", "float32", kernel, 1000, 1000, nnz, False, 8_000_000),
        auto_rank=rank,
        problem="it does not suit" if ms is None else None,
        times=times,
        **(rates if ms else {}),
    )


def format_records(*records: Record) -> list[str]:
    return format_report({}, records, {}, "cuda", 4e12).splitlines()


RECORDS = (
    make_record("first", "cusparse-alg1", 2.0),
    make_record("first", "cusparse-alg2", 1.2),
    make_record("first", "csr-vector", 0.8, rank=1),
    make_record("first", "dia", 0.3, rank=0),
    make_record("first", "ell", 0.4),
    make_record("second", "cusparse-alg1", 1.0),
    make_record("second", "csr-vector", 2.0, rank=1),
    make_record("second", "dia", None, rank=0),
    make_record("second", "ell", 0.5),
)


def test_auto_is_in_italics_and_has_its_own_ratio():
    lines = format_records(*RECORDS)
    assert "| first | 1,000 | 2,000,000 | 0.8 | ***0.3*** | 0.4 | 1.2 | 4.00 | 4.00 | 1,000 | 50% | 75% |" in lines


def test_auto_is_the_next_where_the_first_cannot():
    lines = format_records(*RECORDS)
    assert "| second | 1,000 | 2,000,000 | *2* | – | **0.5** | 1 | 2.00 | 0.50 | 1,000 | 50% | 75% |" in lines


def test_means_and_the_least():
    small = [make_record("small", kernel, 9.0, nnz=10) for kernel in ("cusparse-alg1", "csr-vector", "dia", "ell")]
    lines = format_records(*RECORDS, *small)
    said = "2 matrices of 1,000,000 nonzeros or more: geometric mean"
    assert f"cuSPARSE / best, {said} 2.828, least 2.00 (second)" in lines
    assert f"cuSPARSE / auto, {said} 1.414, least 0.50 (second)" in lines


def test_no_kernel_is_auto_where_none_of_its_were_run():
    lines = format_records(make_record("first", "cusparse-alg1", 2.0), make_record("first", "ell", 1.0))
    assert "| first | 1,000 | 2,000,000 | **1** | 2 | 2.00 |  |  |  |  |" in lines
