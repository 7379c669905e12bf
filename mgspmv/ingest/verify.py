"""Every invariant of a store, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mgspmv.errors import StoreDamagedError, StoreError
from mgspmv.ingest.build import STOCHASTIC_TOLERANCE, transpose_arrays
from mgspmv.model import CsrArrays, MatrixInfo
from mgspmv.store import StoredMatrix, StoreLike, digest_array, open_store, read_array_digests


def verify_store(store: StoreLike, report: Callable[[str, int, int | None], None] | None = None) -> list[str]:
    """Read all of a store and check it; memory as for loading it whole.

    Returns
    -------
    What is wrong and where, a line each; nothing when all is well.

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : there is no store to be checked
    """
    report = report or (lambda phase, done, total: None)
    try:
        stored = open_store(store)
    except StoreDamagedError as error:
        return [str(error)]
    problems: list[str] = []
    arrays = _read_arrays(stored, "", problems, report)
    whole = set(arrays) >= {"indptr", "indices"}
    if whole:
        problems += _check_csr(stored.info, arrays, "")
    if whole and not problems:
        problems += _check_columns(stored.info, arrays)
        if stored.info.has_transpose:
            problems += _check_transpose(stored, arrays, report)
    if "vertex_ids" in arrays:
        problems += _check_ids(arrays["vertex_ids"])
    return problems


def _read_arrays(
    stored: StoredMatrix, prefix: str, problems: list[str], report: Callable[[str, int, int | None], None]
) -> dict[str, np.ndarray]:
    digests = read_array_digests(stored)
    arrays = {}
    for name in sorted(stored.group.array_keys()):
        report(f"verify {prefix}{name}", 0, None)
        try:
            arrays[name] = stored.read_array(name)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_array(arrays[name]) != digests.get(prefix + name):
            problems.append(f"{prefix}{name}: the digest differs from the one written at ingest")
    return arrays


def _check_csr(info: MatrixInfo, arrays: dict[str, np.ndarray], prefix: str) -> Iterator[str]:
    indptr, indices = arrays["indptr"], arrays["indices"]
    steps = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != info.nnz or (steps < 0).any():
        yield f"{prefix}indptr: must ascend from 0 to nnz = {info.nnz}" + _place("row", steps < 0)
        return
    outside = (indices < 0) | (indices >= info.shape[1])
    if outside.any():
        yield f"{prefix}indices: must be in 0..{info.shape[1] - 1}" + _place("entry", outside)
    first = np.zeros(info.nnz, dtype=bool)
    first[indptr[:-1][steps > 0]] = True
    gaps = np.diff(indices, prepend=indices[:1])
    falls = ~first & (gaps < 0 if info.duplicates == "keep" else gaps <= 0)
    if falls.any():
        yield f"{prefix}indices: must ascend in each row" + _place("entry", falls)


def _check_columns(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    data = arrays.get("data")
    if data is not None and info.kind != "matrix" and not np.isfinite(data).all():
        yield "data: a graph's weights must be finite" + _place("entry", ~np.isfinite(data))
    if data is not None and len(data) and float(data.min()) != info.min_weight and not np.isnan(data).any():
        yield f"data: the least value is {data.min()}, the attributes say {info.min_weight}"
    if info.kind == "matrix":
        return
    degree = np.bincount(arrays["indices"], minlength=info.shape[1])
    wrong = degree != arrays["out_degree"]
    if wrong.any():
        yield "out_degree: must be the number of entries in each column" + _place("column", wrong)
    total = degree if data is None else np.bincount(arrays["indices"], weights=data, minlength=info.shape[1])
    if data is not None:
        scale = np.bincount(arrays["indices"], weights=np.abs(data), minlength=info.shape[1])
        wrong = np.abs(total - arrays["out_weight"]) > 1e-9 * scale
        if wrong.any():
            yield "out_weight: must be the sum of each column" + _place("column", wrong)
    if info.kind == "stochastic":
        wrong = (degree > 0) & (np.abs(total - 1) > STOCHASTIC_TOLERANCE)
        if wrong.any():
            yield "data: each column of a stochastic matrix must sum to 1" + _place("column", wrong)


def _check_transpose(
    stored: StoredMatrix, arrays: dict[str, np.ndarray], report: Callable[[str, int, int | None], None]
) -> list[str]:
    problems: list[str] = []
    digests = read_array_digests(stored)
    transposed = stored.transpose()
    for name in sorted(transposed.group.array_keys()):
        report(f"verify transpose/{name}", 0, None)
        try:
            transposed.read_array(name)
        except StoreError as error:
            problems.append(str(error))
    info = stored.info
    matrix = CsrArrays(
        info.kind, info.shape, arrays["indptr"], arrays["indices"], arrays.get("data"), duplicates=info.duplicates
    )
    right = transpose_arrays(matrix)
    for name in ("indptr", "indices", "data"):
        array = getattr(right, name)
        if array is not None and digest_array(array) != digests.get(f"transpose/{name}"):
            problems.append(f"transpose/{name}: is not that of the transpose of this matrix")
    return problems


def _check_ids(ids: np.ndarray) -> Iterator[str]:
    falls = ids[1:] <= ids[:-1]
    if falls.any():
        yield "vertex_ids: must ascend" + _place("vertex", falls)


def _place(unit: str, wrong: np.ndarray) -> str:
    return f"; {unit} {int(np.flatnonzero(wrong)[0])} does not" if wrong.any() else ""
