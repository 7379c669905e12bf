"""Checks of every invariant of a store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mgspmv.errors import StoreDamagedError, StoreError
from mgspmv.ingest.values import find_least
from mgspmv.model import STOCHASTIC_TOLERANCE, MatrixInfo, Progress, index_dtype
from mgspmv.store.digests import digest_array
from mgspmv.store.locations import StoreLike
from mgspmv.store.read import ZarrMatrix, open_store, read_recorded
from mgspmv.store.stored_matrix import StoredMatrix


def verify_store(store: StoreLike, report: Progress | None = None) -> list[str]:
    """Read all of a store and check it; this takes the memory of the whole store, twice that with a transpose.

    Returns
    -------
    Problems and their positions, one line each; empty if there are none.

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : no store to check
    """
    report = report or (lambda phase, done, total: None)
    try:
        stored = open_store(store)
    except StoreDamagedError as error:
        return [str(error)]
    info, digests = stored.info, read_recorded(stored)["array_digests"]
    arrays, problems = _read_arrays(stored, digests, "", report)
    if "vertex_ids" in arrays:
        problems += _check_ids(arrays["vertex_ids"])
    if "order" in arrays:
        problems += _check_order(arrays["order"])
    needed = {name for name in stored.arrays if name != "vertex_ids" and not name.startswith("transpose/")}
    if not arrays.keys() >= needed:
        return problems
    if wrong := list(_check_csr(info, arrays)):
        return problems + wrong
    problems += _check_attributes(stored, {name: arrays[name] for name in needed})
    problems += _check_values(info, arrays)
    if info.kind != "matrix":
        problems += _check_columns(info, arrays)
    if info.has_transpose:
        problems += _check_transpose(stored, digests, arrays, report)
    return problems


def _read_arrays(
    stored: StoredMatrix, digests: dict[str, str], prefix: str, report: Progress
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the arrays that can be read, and the problems of all arrays."""
    arrays, problems = {}, []
    for name in sorted(name for name in stored.arrays if not name.startswith("transpose/")):
        report(f"verify {prefix}{name}", 0, None)
        try:
            arrays[name] = stored.read_array(name, checks=False)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_array(arrays[name]) != digests.get(prefix + name):
            problems.append(f"{prefix}{name}: the digest differs from the one written at ingest")
    return arrays, problems


def _check_csr(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    indptr, indices = arrays["indptr"], arrays["indices"]
    steps = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != info.nnz or (steps < 0).any():
        said = f"indptr: must ascend from 0 to nnz = {info.nnz}"
        yield next(_find_wrong("row", steps < 0, said), said)
        return
    outside = (indices < 0) | (indices >= info.shape[1])
    if outside.any():
        yield from _find_wrong("entry", outside, f"indices: must be in 0..{info.shape[1] - 1}")
        return
    first = np.zeros(info.nnz, dtype=bool)
    first[indptr[:-1][steps > 0]] = True
    gaps = np.diff(indices, prepend=indices[:1])
    falls = ~first & (gaps < 0 if info.duplicates == "keep" else gaps <= 0)
    yield from _find_wrong("entry", falls, "indices: must ascend in each row")


def _check_attributes(stored: ZarrMatrix, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    info = stored.info
    nbytes = sum(array.nbytes for array in arrays.values())
    if nbytes != info.nbytes:
        yield f"attributes: the arrays take {nbytes} bytes, but the attributes state {info.nbytes}"
    shape = stored.group.attrs.get("shape")
    if not info.is_pattern and shape != list(info.shape):
        yield f"attributes: the shape for anndata must be {list(info.shape)}, not {shape}"


def _check_values(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    data = arrays.get("data")
    if find_least(data) != info.min_weight:
        yield f"data: the least value is {find_least(data)}, but the attributes state {info.min_weight}"
    if data is not None and info.kind != "matrix":
        yield from _find_wrong("entry", ~np.isfinite(data), f"data: the weights of a {info.kind} must be finite")


def _check_columns(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    n_cols = info.shape[1]
    indices, data = arrays["indices"], arrays.get("data")
    degree = total = np.bincount(indices, minlength=n_cols)
    wrong = degree != arrays["out_degree"]
    yield from _find_wrong("column", wrong, "out_degree: must be the number of entries in each column")
    if data is not None:
        total = np.bincount(indices, weights=data, minlength=n_cols)
        scale = np.bincount(indices, weights=np.abs(data), minlength=n_cols)
        wrong = ~(np.abs(total - arrays["out_weight"]) <= 1e-9 * scale)
        yield from _find_wrong("column", wrong, "out_weight: must be the sum of each column")
    if info.kind == "stochastic":
        wrong = (degree > 0) & ~(np.abs(total - 1) <= STOCHASTIC_TOLERANCE)
        yield from _find_wrong("column", wrong, "data: each column of a stochastic matrix must sum to 1")
        if data is not None:
            yield from _find_wrong("entry", data < 0, "data: entries of a stochastic matrix must not be negative")


def _check_transpose(
    stored: ZarrMatrix, digests: dict[str, str], arrays: dict[str, np.ndarray], report: Progress
) -> list[str]:
    info = stored.info
    found, problems = _read_arrays(stored.transpose(), digests, "transpose/", report)
    from scipy.sparse import csr_array

    values = arrays.get("data", np.ones(info.nnz, bool))
    turned = csr_array((values, arrays["indices"], arrays["indptr"]), shape=info.shape).tocsc()
    indices = turned.indices.astype(index_dtype(info.shape[0]), copy=False)
    right = {"indptr": turned.indptr.astype(np.int64, copy=False), "indices": indices, "data": turned.data}
    for name in sorted(found.keys() & right.keys()):
        if digest_array(found[name]) != digest_array(right[name]):
            problems.append(f"transpose/{name}: differs from the transpose of the matrix")
    return problems


def _check_ids(ids: np.ndarray) -> Iterator[str]:
    falls = np.concatenate([[False], ids[1:] <= ids[:-1]])
    yield from _find_wrong("vertex", falls, "vertex_ids: must ascend")


def _check_order(order: np.ndarray) -> Iterator[str]:
    n = len(order)
    wrong = (order < 0) | (order >= n)
    if not wrong.any():
        wrong = np.bincount(order, minlength=n)[order] > 1
    yield from _find_wrong("row", wrong, f"order: must hold each of 0..{n - 1} once")


def _find_wrong(unit: str, wrong: np.ndarray, problem: str) -> Iterator[str]:
    """Yield a problem with the position of the first wrong element, if there is one."""
    if wrong.any():
        yield f"{problem}, wrong at {unit} {int(np.flatnonzero(wrong)[0])}"
