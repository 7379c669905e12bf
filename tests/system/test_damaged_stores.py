"""Stores whose metadata were edited, or whose numbers are impossible although their checksums are right: an error in
one line, or what the sound store gives; never the end of the process."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import mgspmv as mg
from tests.support.damage import Apart, Edit, check_outcome, edits
from tests.support.stores import find_group, seal

GRAPH = "d a 1\nb c 2\nc a 1.5\na c 3\nc d 1\na b 1\nd d 2\ne a 1\na e 4\nb f 1\nf b 2\n"
"""Strongly connected and aperiodic."""


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _solve(method: Callable[..., Any], store: Path, **options: Any) -> str:
    with mg.open_matrix(store) as matrix:
        found = method(matrix, **options)
    solutions = found if isinstance(found, tuple) else (found,)
    return _digest(*((own.digest(), [str(name) for name, _ in own.top(4)]) for own in solutions))


def _hits(store: Path) -> str:
    with mg.open_matrix(store) as matrix:
        found = mg.hits(matrix)
    return _digest(found.hubs.digest(), found.authorities.digest())


def _batch(store: Path) -> str:
    with mg.open_matrix(store) as matrix:
        batch = mg.pagerank_batch(matrix, alpha=[0.5, 0.85])
    return _digest(batch.digest(), batch.top(3))


def _multiply(store: Path) -> str:
    with mg.open_matrix(store) as matrix:
        return _digest((matrix @ np.arange(1.0, matrix.shape[1] + 1)).tobytes())


def _make(store: Path, make: Callable[[Path], Any]) -> str:
    """The digest of a store that is made of one."""
    target = store.with_name("made.zarr")
    shutil.rmtree(target, ignore_errors=True)
    make(target)
    with mg.open_matrix(target) as made:
        return made.info.digest


def _update(store: Path) -> str:
    with mg.open_matrix(store) as matrix:
        first, weight = matrix.vertex_ids[0], "" if matrix.is_pattern else " 7"
    source = store.with_name("more.txt")
    source.write_text(f"{first} {first}{weight}\n")
    with mg.update(store, insert=source) as made:
        return made.info.digest


def _transpose(store: Path) -> str:
    with mg.transpose(store) as matrix:
        return _digest((matrix.T @ np.arange(1.0, matrix.shape[0] + 1)).tobytes())


def _export(store: Path, suffix: str) -> str:
    target = store.with_name(f"exported{suffix}")
    mg.export(store, target, overwrite=True)
    if suffix == ".parquet":
        return _digest(pq.read_table(target).to_pydict())
    if suffix == ".npz":
        matrix = sp.load_npz(target).tocsr()
        return _digest(*(array.tobytes() for array in (matrix.indptr, matrix.indices, matrix.data)))
    return _digest([line for line in target.read_text().splitlines() if not line.startswith("%")])


CALLS: dict[str, Callable[[Path], str]] = {
    "pagerank": lambda store: _solve(mg.pagerank, store),
    "pagerank exact=no": lambda store: _solve(mg.pagerank, store, precision="float32"),
    "pagerank-batch": _batch,
    "spmv": _multiply,
    "hits": _hits,
    "katz": lambda store: _solve(mg.katz, store, alpha=0.01),
    "eigenvector": lambda store: _solve(mg.eigenvector_centrality, store, max_iter=1000),
    "stationary": lambda store: _solve(mg.stationary, store, max_iter=1000),
    "reorder degree": lambda store: _make(store, lambda to: mg.reorder(store, to, method="degree")),
    "reorder rcm": lambda store: _make(store, lambda to: mg.reorder(store, to, method="rcm")),
    "subgraph": lambda store: _make(store, lambda to: mg.subgraph(store, to, min_weight=0.5)),
    "ingest": lambda store: _make(store, lambda to: mg.ingest(store, to)),
    "export mtx": lambda store: _export(store, ".mtx"),
    "export parquet": lambda store: _export(store, ".parquet"),
    "export npz": lambda store: _export(store, ".npz"),
    "update": _update,
    "transpose": _transpose,
}


def call(name: str, store: Path) -> str:
    """By name, as functions made on the way cannot be sent to another process."""
    return CALLS[name](store)


@dataclass(frozen=True)
class Sample:
    """A store, and what calls give."""

    path: Path
    sound: dict[str, str]
    """By the names of calls, but for those that do not suit it."""


def make_stores(folder: Path, apart: Apart) -> dict[str, Sample]:
    """By name."""
    (folder / "edges.txt").write_text(GRAPH)
    chain = sp.csr_array([[0.5, 0.25, 0.0, 0.5], [0.5, 0.25, 1.0, 0.0], [0.0, 0.25, 0.0, 0.0], [0.0, 0.25, 0.0, 0.5]])
    wide = sp.csr_array([[1.5, 0, 2, 0, 0], [0, 0, -3, 0, 4], [0, 0.5, 0, 0, 1]])
    sources = {
        "weighted": (folder / "edges.txt", {"weights": True, "order": "degree", "transpose": True}),
        "pattern": (folder / "edges.txt", {"weights": False}),
        "chain": (chain, {"kind": "stochastic"}),
        "matrix": (wide, {"kind": "matrix", "transpose": True}),
    }
    made = {}
    for name, (source, options) in sources.items():
        path = folder / f"{name}.zarr"
        mg.ingest(source, path, **options)
        with copy(path) as own:
            outcomes = {own_call: apart.call(call, own_call, _renew(path, own)) for own_call in CALLS}
        sound = {key: outcome.said for key, outcome in outcomes.items() if outcome.kind == "value"}
        made[name] = Sample(path, sound)
    return made


def _renew(path: Path, own: Path) -> Path:
    shutil.rmtree(own)
    shutil.copytree(path, own)
    return own


@contextmanager
def copy(path: Path) -> Iterator[Path]:
    """A copy to be damaged, in the same folder."""
    own = path.with_name("damaged.zarr")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(path, own)
    yield own
    shutil.rmtree(own)


def _put(place: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


EXTREMES = (-1, 5, 40, 10**6, -(10**6), 2**31 - 1, -(2**31), 2**62)
NUMBERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{f"element {place} is {value:g}": _put(place, value) for place in (0, 2, -1) for value in EXTREMES},
    **{f"element 1 is {value:g}": _put(1, value) for value in (np.nan, np.inf, -np.inf, -1.5, 0.0, 1e308)},
    "all one more": lambda array: array + 1,
    "all one less": lambda array: array - 1,
    "all 0": lambda array: array * 0,
    "all the same": lambda array: array * 0 + array[0],
    "reversed": lambda array: array[::-1].copy(),
    "two exchanged": lambda array: array[[1, 0, *range(2, len(array))]],
    "doubled": lambda array: array * 2,
}
WORDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "first renamed": lambda array: np.array(["zz", *array[1:]], object),
    "repeated": lambda array: np.array([array[1], *array[1:]], object),
    "reversed": NUMBERS["reversed"],
    "empty": lambda array: np.array([""] * len(array), object),
}


def damage_numbers(store: Path, number: int, how: int) -> str:
    """Write other elements into an array through Zarr, which makes right checksums; what was done."""
    group = find_group(store)
    arrays = sorted(path.parent for path in group.rglob("c"))
    path = arrays[number % len(arrays)]
    array: Any = zarr.open_array(path, mode="r+").with_config({"write_empty_chunks": True})
    changes = WORDS if array.dtype.kind in "OUT" else NUMBERS
    name = list(changes)[how % len(changes)]
    with np.errstate(all="ignore"):
        try:
            array[:] = changes[name](np.asarray(array[:]))
        except (OverflowError, ValueError):  # no such number in this dtype
            name = "nothing"
    return f"{path.relative_to(group)}: {name}"


def damage_metadata(store: Path, edit: Edit) -> str:
    """Edit one of the zarr.json of a store; what was done."""
    files = sorted(store.rglob("zarr.json"))
    path = files[edit.file % len(files)]
    text, said = edit.apply(path.read_bytes())
    path.write_bytes(text)
    return f"{path.relative_to(store)}: {said}"


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    found = Apart()
    yield found
    found.close()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, apart: Apart) -> dict[str, Sample]:
    made = make_stores(tmp_path_factory.mktemp("stores"), apart)
    assert {name: len(own.sound) for name, own in made.items()} == {
        "weighted": 16,
        "pattern": 14,
        "chain": 15,
        "matrix": 7,
    }
    return made


def draw_call(data: Any, stores: dict[str, Sample]) -> tuple[str, Sample, str]:
    name = data.draw(st.sampled_from(sorted(stores)))
    return name, stores[name], data.draw(st.sampled_from(sorted(stores[name].sound)))


@pytest.mark.slow
@pytest.mark.fuzz
@settings(max_examples=60)
@given(data=st.data())
def test_edited_metadata_are_an_error_or_change_nothing(stores, apart, data):
    name, sample, made = draw_call(data, stores)
    with copy(sample.path) as store:
        said = damage_metadata(store, data.draw(edits))
        found = apart.call(call, made, store)
    check_outcome(found, sample.sound[made], f"{name}, {made}: {said}")


@pytest.mark.slow
@pytest.mark.fuzz
@settings(max_examples=60)
@given(data=st.data(), number=st.integers(0, 30), how=st.integers(0, len(NUMBERS) - 1))
def test_other_numbers_than_were_recorded_are_an_error_where_they_are_read(stores, apart, data, number, how):
    name, sample, made = draw_call(data, stores)
    with copy(sample.path) as store:
        said = damage_numbers(store, number, how)
        found = apart.call(call, made, store)
    check_outcome(found, sample.sound[made], f"{name}, {made}: {said}")


@pytest.mark.slow
@pytest.mark.fuzz
@settings(max_examples=60)
@given(data=st.data(), number=st.integers(0, 30), how=st.integers(0, len(NUMBERS) - 1))
def test_numbers_that_were_recorded_end_no_process(stores, apart, data, number, how):
    """As by somebody who makes stores to attack their readers; numbers that are possible are another store."""
    name, sample, made = draw_call(data, stores)
    with copy(sample.path) as store:
        said = damage_numbers(store, number, how)
        seal(store)
        found = apart.call(call, made, store)
    assert found.kind in ("value", "error"), f"{name}, {made}: {said}: {found}"
    assert "\n" not in found.said
