"""Stores of others: impossible numbers under right checksums and digests, edited attributes and exchanged chunks.

Every command raises `StoreDamagedError`; none computes with such a store, and none reads memory beyond its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import ChecksumError, StoreDamagedError, StoreFormatError
from mgspmv.store import digests
from tests.support.stores import change_json, find_group, forget_records, put, seal
from tests.support.waiting import HANG_S

N = 40

Use = Callable[[Path, Path], Any]

RANKINGS: dict[str, Callable[[mg.Matrix], Any]] = {
    "pagerank": mg.pagerank,
    "spmv": lambda A: A @ np.ones(N),
    "katz": mg.katz,
    "eigenvector": lambda A: mg.eigenvector_centrality(A, max_iter=3),
    "stationary": lambda A: mg.stationary(A, lazy=0.5),
    "pagerank-batch": lambda A: mg.pagerank_batch(A, [[0], [1]]),
    "hits": mg.hits,
    "to_scipy": lambda A: A.to_scipy(),
}
COMMANDS: dict[str, Use] = {
    **{name: lambda store, out, rank=rank: rank(mg.open_matrix(store)) for name, rank in RANKINGS.items()},
    "reorder rcm": lambda store, out: mg.reorder(store, out / "r.zarr", method="rcm"),
    "reorder degree": lambda store, out: mg.reorder(store, out / "d.zarr", method="degree"),
    "subgraph": lambda store, out: mg.subgraph(store, out / "s.zarr", vertices=np.arange(N)),
    "subgraph of edges": lambda store, out: mg.subgraph(store, out / "e.zarr", min_weight=0.1),
    "export mtx": lambda store, out: mg.export(store, out / "a.mtx"),
    "export parquet": lambda store, out: mg.export(store, out / "a.parquet"),
    "export npz": lambda store, out: mg.export(store, out / "a.npz"),
    "update": lambda store, out: mg.update(store, insert=([0], [1], [0.5]), delete=([7], [0])),
    "ingest": lambda store, out: mg.ingest(store, out / "i.zarr"),
}
TRANSPOSED: dict[str, Use] = {
    "hits": COMMANDS["hits"],
    "pagerank --reverse": lambda store, out: mg.pagerank(mg.open_matrix(store).T),
    "A.T": lambda store, out: mg.open_matrix(store).T @ np.ones(N),
}


@pytest.fixture
def make_store(tmp_path, monkeypatch):
    """`make_store(kind)` is a store with a transpose and many chunks, each vertex with two edges of 0.5."""
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 16)

    def make(kind: str = "stochastic", transpose: bool = True) -> Path:
        src = np.repeat(np.arange(N), 2)
        places = ((src + np.tile([1, 7], N)) % N, src)
        matrix = sp.csr_array(sp.coo_array((np.full(2 * N, 0.5), places), shape=(N, N)))
        mg.ingest(matrix, tmp_path / "web.zarr", kind=kind, transpose=transpose, overwrite=True)
        return tmp_path / "web.zarr"

    return make


def assert_refused(store: Path, uses: dict[str, Use], said: str, error: type[Exception] = StoreDamagedError) -> None:
    for name, use in uses.items():
        out = store.parent / "out"
        out.mkdir(exist_ok=True)
        with pytest.raises(error) as caught:
            use(store, out)
        assert said in str(caught.value), name
        assert "web.zarr: " in str(caught.value), name
        assert list(out.iterdir()) == [], f"{name} left {list(out.iterdir())}"


# --- impossible numbers, recorded as if they were right --------------------------------------------------------------

PLANTED = {
    "far beyond": ("indices", {21: 50_000_000}, "element 21 is 50,000,000, which is outside 0..39"),
    "far before": ("indices", {21: -50_000_000}, "element 21 is -50,000,000, which is outside 0..39"),
    "a little beyond": ("indices", {79: N + 40}, "element 79 is 80, which is outside 0..39"),
    "the least": ("indices", {0: -(2**31)}, "element 0 is -2,147,483,648, which is outside 0..39"),
    "first pointer": ("indptr", {0: 1}, "do not ascend from 0 to the 80 entries"),
    "last pointer": ("indptr", {N: 79}, "do not ascend from 0 to the 80 entries"),
    "falling pointer": ("indptr", {20: 60}, "do not ascend from 0 to the 80 entries"),
    "pointer beyond": ("indptr", {20: 2**62}, "do not ascend from 0 to the 80 entries"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_numbers_that_nothing_has_are_refused_by_every_command(make_store, planted):
    name, elements, said = PLANTED[planted]
    store = make_store()
    put(store, name, elements)
    assert_refused(store, COMMANDS, said)
    assert any(name in problem for problem in mg.verify(store))
    graph = make_store("graph", transpose=False)
    put(graph, name, elements)
    assert_refused(graph, {"transpose": lambda store, out: mg.transpose(store)}, said)


@pytest.mark.parametrize("planted", PLANTED)
def test_and_in_the_transpose_by_those_that_read_it(make_store, planted):
    name, elements, said = PLANTED[planted]
    store = make_store("graph")
    put(store, f"transpose/{name}", elements)
    assert_refused(store, TRANSPOSED, said)
    assert any("transpose/" in problem for problem in mg.verify(store))
    mg.pagerank(mg.open_matrix(store))  # which does not


def test_memory_of_the_process_is_not_in_products(make_store):
    """What is beside a vector in memory does not get into a product."""
    store = make_store("matrix")
    put(store, "indices", np.arange(2 * N, dtype=np.int32) + N)
    assert_refused(store, {"spmv": COMMANDS["spmv"]}, "element 0 is 40, which is outside 0..39")


@pytest.mark.parametrize("planted", ["far beyond", "far before", "first pointer"])
def test_workers_refuse_them(make_store, in_process, planted):
    name, elements, said = PLANTED[planted]
    client = in_process(2)
    for array, rank in ((name, mg.pagerank), (name, mg.katz), (f"transpose/{name}", mg.hits)):
        store = make_store("graph")
        put(store, array, elements)
        with pytest.raises(StoreDamagedError) as caught:
            rank(mg.open_matrix(store).on(client, timeout=HANG_S))
        assert said in str(caught.value), rank


@pytest.mark.gpu
@pytest.mark.parametrize("planted", PLANTED)
def test_a_device_computes_with_none_of_them(make_store, planted):
    name, elements, said = PLANTED[planted]
    on_device: dict[str, Use] = {
        "pagerank": lambda store, out: mg.pagerank(mg.open_matrix(store).on("cuda")),
        "spmv": lambda store, out: mg.spmv(mg.open_matrix(store).on("cuda"), np.ones(N)),
        "pagerank of a pattern": lambda store, out: mg.pagerank(mg.open_matrix(store).on("cuda"), weight=False),
    }
    store = make_store("graph")
    put(store, name, elements)
    assert_refused(store, on_device, said)
    store = make_store("graph")
    put(store, f"transpose/{name}", elements)
    hits: dict[str, Use] = {"hits": lambda store, out: mg.hits(mg.open_matrix(store).on("cuda"))}
    assert_refused(store, hits, said)


@pytest.mark.parametrize("size", [digests.CHUNK_ELEMENTS, 2], ids=["within a piece", "between two pieces"])
def test_other_arrays_that_are_looked_up_in(make_store, tmp_path, monkeypatch, size):
    store = make_store("graph")
    put(store, "out_degree", {3: -1})
    with pytest.raises(StoreDamagedError, match=r"out_degree.*element 3 is -1, which is outside 0\.\.80"):
        mg.pagerank(mg.open_matrix(store), weight=False)
    for ids in (np.arange(4) * 2 + 1, np.array(["a", "b", "c", "d"], object)):
        mg.ingest((ids[[0, 1, 2]], ids[[1, 2, 3]]), tmp_path / "named.zarr", overwrite=True)
        put(tmp_path / "named.zarr", "vertex_ids", {1: ids[2]})
        monkeypatch.setattr(digests, "CHUNK_ELEMENTS", size)
        A = mg.open_matrix(tmp_path / "named.zarr")
        said = "the ids must ascend, but the id of row 2 is not greater than that of row 1"
        with pytest.raises(StoreDamagedError, match=said):
            _ = A.vertex_ids
        with pytest.raises(StoreDamagedError, match=said):
            mg.pagerank(A, personalization=ids[:1].tolist())


# --- edited attributes -----------------------------------------------------------------------------------------------

EDITS: dict[str, dict[str, Any]] = {
    "values left out": {"dtype": None},
    "values of another dtype": {"dtype": "int64"},
    "another kind": {"kind": "graph"},
    "a kind that there is not": {"kind": "rtochastic"},
    "a number as kind": {"kind": 1},
    "an object as kind": {"kind": {"x": 1}},
    "an order": {"order": "rcm"},
    "a shape of four": {"shape": [N, N, 1, 1]},
    "fewer columns": {"shape": [N, N - 1]},
    "a wider index": {"index_dtype": "int64"},
    "ids": {"vertex_ids": "int64"},
    "digest": {"digest": "0" * 64},
    "digests of arrays": {"array_digests": {}},
}
"""Told by the digest of the matrix, which is as old as the format."""
OTHER_EDITS: dict[str, dict[str, Any]] = {
    "least value": {"min_weight": -1.0},
    "rule": {"duplicates": "keep"},
    "transpose": {"has_transpose": False},
    "entries": {"nnz": 2 * N - 1},
    "bytes": {"nbytes": 1},
    "created": {"created": "2000-01-01T00:00:00+00:00"},
    "provenance": {"provenance": {}},
    "version": {"version": "v000009-00000000"},
    "checksums of chunks": {"chunk_checksums": None},
}


@pytest.mark.parametrize("edit", EDITS | OTHER_EDITS)
def test_edited_attributes_are_found_when_a_store_is_opened(make_store, edit):
    changes = (EDITS | OTHER_EDITS)[edit]
    store = make_store()
    for is_old in (False, True):
        if is_old:
            forget_records(store)
        path = find_group(store) / "zarr.json"
        sound = path.read_bytes()
        change_json(path, lambda document: document["attributes"]["mgspmv"].update(changes))
        if not is_old or edit in EDITS:
            with pytest.raises(StoreDamagedError, match=r"web\.zarr: .*; (ingest again|open it again)"):
                mg.open_matrix(store)
            assert len(mg.verify(store)) == 1
        path.write_bytes(sound)
        mg.open_matrix(store)


def test_an_order_that_is_taken_away(make_store):
    store = make_store("graph")
    mg.reorder(store, method="degree")
    path = find_group(store) / "zarr.json"
    change_json(path, lambda document: document["attributes"]["mgspmv"].update(order=None))
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="are damaged"):
            mg.open_matrix(store)
        forget_records(store)
    change_json(path, lambda document: document["attributes"]["mgspmv"].pop("order"))
    with pytest.raises(StoreDamagedError, match="are damaged"):
        mg.open_matrix(store)


@pytest.mark.parametrize("name", ["data", "indices", "out_weight", "transpose/indices"])
def test_bytes_in_another_order(make_store, name):
    store = make_store()

    def change(document: Any) -> None:
        document["codecs"][0]["configuration"]["endian"] = "big"

    change_json(find_group(store) / name / "zarr.json", change)
    with pytest.raises(StoreDamagedError, match=rf"/{name} has elements of encoding .*instead of little endian"):
        mg.open_matrix(store)


WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    "kind": (None, [], "Graph"),
    "shape": (None, 5, [N], ["40", N], [-N, N], [N, 2**63], [N, 2.0], [True, N], {"0": N}),
    "nnz": (None, "80", -1, 80.0, 2**64, True),
    "dtype": ("float16", 5, {"x": 1}, []),
    "index_dtype": (None, "int8", 4),
    "duplicates": (None, "maybe", 3),
    "vertex_ids": ("float64", 1),
    "min_weight": ("x", [], 10**400, True),
    "has_transpose": (None, 1, "no"),
    "version": (None, 7),
    "format_version": (None, "1", -1),
    "digest": (None, 5, []),
    "nbytes": (None, -1, 1e30),
    "order": ("alphabetical", 5, []),
    "created": (5, []),
    "provenance": (None, [], 7, {"report": []}, {"report": {"name": 5}}),
    "array_digests": (None, [], "x"),
    "chunk_checksums": ([], "x", {}, {"indptr": "AAAA"}, 5),
}


@pytest.mark.parametrize("field", WRONG_TYPES)
def test_fields_of_other_types_are_named_whatever_the_digests_say(make_store, field):
    store = make_store()
    path = find_group(store) / "zarr.json"
    sound = path.read_bytes()
    for value in WRONG_TYPES[field]:
        for is_sealed in (False, True):
            if is_sealed:
                try:
                    seal(store, **{field: value})
                except (AttributeError, TypeError):  # no digest can be made of it
                    continue
            change_json(path, lambda document, value=value: document["attributes"]["mgspmv"].update({field: value}))
            with pytest.raises(StoreDamagedError, match=r"web\.zarr: .*versions/v000001"):
                mg.open_matrix(store)
            if field != "chunk_checksums" or not is_sealed:
                with pytest.raises(StoreDamagedError):
                    mg.list_versions(store)
            path.write_bytes(sound)


def test_metadata_that_are_too_deep_or_too_large(make_store):
    store = make_store()
    deep = "[" * 100_000 + "]" * 100_000
    for name, field, value in (
        ("", '"created": "', f'"x": {deep}, "created": "'),
        ("indices", '"fill_value": 0', f'"fill_value": {deep}'),
        ("indices", '"fill_value": 0', f'"fill_value": 1{"0" * 400}'),
        ("indices", '"shape": [', f'"shape": [1{"0" * 20}, '),
        ("out_degree", '"chunk_shape": [', '"chunk_shape": [0, '),
    ):
        path = find_group(store) / name / "zarr.json"
        sound = path.read_text()
        assert field in sound
        path.write_text(sound.replace(field, value, 1))
        with pytest.raises(StoreDamagedError, match=r"web\.zarr: "):
            mg.open_matrix(store)
        path.write_text(sound)


@pytest.mark.parametrize(
    "root",
    [
        {"older": 5},
        {"older": {"x": 1}},
        {"older": "v000001-00000000"},
        {"older": [None]},
        {"current": 5},
        {"current": ["v"]},
        {"current": "../../elsewhere"},
        {"format_version": []},
    ],
    ids=str,
)
def test_a_root_that_names_something_else(make_store, root):
    store = make_store()
    change_json(store / "zarr.json", lambda document: document["attributes"]["mgspmv"].update(root))
    for use in (mg.open_matrix, mg.list_versions):
        with pytest.raises((StoreDamagedError, StoreFormatError), match=r"web\.zarr"):
            use(store)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b'{"zarr_format": 3}', b"[" * 100_000], ids=range(5))
def test_versions_that_are_no_group(make_store, text):
    store = make_store("graph", transpose=False)
    (store / "versions" / "zarr.json").write_bytes(text)
    ways: tuple[Callable[[Path], Any], ...] = (
        mg.transpose,
        lambda store: mg.update(store, insert=([0], [1], [0.5])),
    )
    for use in ways:
        with pytest.raises(StoreDamagedError, match=r"web\.zarr: the attributes in versions/zarr\.json are damaged"):
            use(store)
    mg.pagerank(mg.open_matrix(store))  # which reads nothing of it, as the next call
    assert mg.drop_versions(store, keep=1) == []


# --- chunks in the place of others -----------------------------------------------------------------------------------


def exchange(store: Path, first: str, second: str) -> None:
    one, other = (find_group(store) / name for name in (first, second))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


@pytest.mark.parametrize("pair", [("indices/c/0", "indices/c/1"), ("indices/c/2", "transpose/indices/c/2")])
def test_chunks_in_the_place_of_others_are_found_by_every_command(make_store, pair):
    store = make_store()
    exchange(store, *pair)
    assert_refused(store, COMMANDS, "its CRC-32C differs from the one recorded for this chunk", ChecksumError)
    assert any("its CRC-32C differs from the one" in problem for problem in mg.verify(store))


def test_workers_find_them(make_store, in_process):
    store = make_store()
    exchange(store, "indices/c/0", "indices/c/1")
    client = in_process(2)
    said = "its CRC-32C differs from the one recorded for this chunk"
    with pytest.raises(ChecksumError, match=said):
        mg.pagerank(mg.open_matrix(store).on(client, timeout=HANG_S))
    with pytest.raises(ChecksumError, match=said), mg.open_matrix(store).distribute(client, timeout=HANG_S) as D:
        D @ np.ones(N)


@pytest.mark.parametrize("name", ["data", "indptr", "out_weight"])
def test_a_chunk_of_another_store(make_store, tmp_path, name):
    other = make_store("graph").rename(tmp_path / "other")
    put(other, name, {0: 0.25} if name != "indptr" else {1: 1})
    store = make_store("graph")
    (find_group(store) / name / "c" / "0").write_bytes((find_group(other) / name / "c" / "0").read_bytes())
    with pytest.raises(ChecksumError, match=f"{name}, elements 0 to 16 are damaged .its CRC-32C differs"):
        mg.pagerank(mg.open_matrix(store))


def test_a_store_of_the_time_before_is_read_and_says_what_it_lacks(make_store):
    store = make_store("graph")
    ranks = mg.pagerank(mg.open_matrix(store)).values
    forget_records(store)
    assert mg.pagerank(mg.open_matrix(store)).values.tolist() == ranks.tolist()
    assert mg.verify(store) == []
    exchange(store, "indices/c/0", "indices/c/1")
    assert "indices: the digest differs from the one written at ingest" in mg.verify(store)
