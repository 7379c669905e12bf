"""Ids of vertices are found, and told, without all of them."""

from __future__ import annotations

import numpy as np
import pytest

import mgspmv as mg
from mgspmv import lookup
from mgspmv.errors import MissingChunkError, OptionError, UnknownIdError

N = 300


@pytest.fixture
def small(monkeypatch):
    """Chunks of which a few ids make many."""
    for module in ("store.digests", "lookup"):
        monkeypatch.setattr(f"mgspmv.{module}.CHUNK_ELEMENTS", 8)


@pytest.fixture(params=["integers", "strings", "numbers"])
def named(request, small, tmp_path):
    """A matrix, and its ids."""
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.choice(10_000, N, replace=False)) - 5000
    ids = {"integers": numbers, "numbers": np.arange(N)}.get(request.param)
    ids = sorted(f"v{k}" for k in numbers) if ids is None else ids.tolist()
    ends = [ids[k] for k in rng.permutation(N)]
    (tmp_path / "a.txt").write_text("".join(f"{a} {b}\n" for a, b in zip(ends, ends[1:] + ends[:1], strict=True)))
    return mg.ingest(tmp_path / "a.txt", tmp_path / "a.zarr"), ids


def test_both_ways(named):
    A, ids = named
    some = np.random.default_rng(1).integers(0, N, 200).tolist()
    assert A.name_vertices(some).tolist() == [ids[k] for k in some]
    assert A.find_vertices([ids[k] for k in some]).tolist() == some
    assert A.find_vertices(ids).tolist() == list(range(N))
    assert A.name_vertices([]).tolist() == A.find_vertices([]).tolist() == []
    strangers = ["", "v", "zzz"] if isinstance(ids[0], str) else [-9999, 9999, 2**62]
    assert A.find_vertices([ids[3], *strangers, ids[0]]).tolist() == [3, -1, -1, -1, 0]


def test_few_chunks_are_read_for_few_vertices(named, tmp_path):
    """Those without which the vertices are not found."""
    A, ids = named
    chunks = sorted((tmp_path / "a.zarr").glob("versions/*/vertex_ids/c/*"))
    assert len(chunks) == (-(-N // 8) if A.info.vertex_ids is not None else 0)
    for look, least, most in (
        (lambda B: B.find_vertices([ids[17]]).tolist() == [17], 1, 6),
        (lambda B: B.name_vertices([200, 201]).tolist() == ids[200:202], 1, 1),
    ):
        needed = [chunk.name for chunk in chunks if not works_without(chunk, look)]
        assert least * bool(chunks) <= len(needed) <= most
    assert not chunks or needed == ["25"]


def works_without(chunk, look):
    B = mg.open_matrix(chunk.parents[4])
    hidden = chunk.rename(chunk.with_name("hidden"))
    try:
        return look(B)
    except MissingChunkError:
        return False
    finally:
        hidden.rename(chunk)


def test_an_unknown_id_is_told_with_a_near_one(named):
    A, ids = named
    lookup_ids = lookup.VertexLookup(A.stored)
    assert lookup_ids.find_all("seeds", ids[5:9]).tolist() == [5, 6, 7, 8]
    assert lookup_ids.find_all("seeds", []).tolist() == []
    if isinstance(ids[0], str):
        unknown = {ids[7] + "y": ids[7], "zebra": None}
    else:
        gap = next(k for k in range(ids[0], 10**4) if k not in ids)
        unknown = {10**6: ids[-1], -(10**6): ids[0], gap: min(ids, key=lambda id: abs(id - gap))}
    for label, near in unknown.items():
        for given in ([ids[3], label], np.array([ids[3], label], object if isinstance(label, str) else np.int64)):
            with pytest.raises(OptionError) as caught:
                lookup_ids.find_all("seeds", given)
            said, _, told = str(caught.value).partition("; near: ")
            assert said == f"seeds has the id {label!r}, which no vertex has"
            assert told == ("" if near is None else repr(near))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], "ids has the id 'a' but the ids of vertices are 64-bit integers; pass 64-bit integers"),
        ([1.5], "ids has the id 1.5 but"),
        ([2**64 - 1], f"ids has the id {2**64 - 1} but"),
        (np.array([2**64 - 1], np.uint64), f"ids has the id {2**64 - 1} but"),
        ([True], "ids has the id True but"),
        (7, "ids must be a list of ids, not 7"),
        ("10", "ids must be a list of ids, not '10'"),
        (np.array([[10]]), "ids must be a list of ids, not array"),
    ],
)
def test_wrong_ids(small, tmp_path, ids, message):
    (tmp_path / "a.txt").write_text("10 20\n")
    mg.ingest(tmp_path / "a.txt", tmp_path / "a.zarr")
    with pytest.raises(OptionError, match=message):
        mg.open_matrix(tmp_path / "a.zarr").find_vertices(ids)


def test_integers_are_no_names_and_numbers_end(small, tmp_path):
    (tmp_path / "a.txt").write_text("a b\n")
    A = mg.ingest(tmp_path / "a.txt", tmp_path / "a.zarr", header=False)
    with pytest.raises(OptionError, match="ids has the id 1 but the ids of vertices are strings; pass strings"):
        A.find_vertices([1])
    for wrong in (2, -1):
        with pytest.raises(OptionError, match=f"vertex numbers must be in 0..1, not {wrong}"):
            A.name_vertices([0, wrong])


INTEGERS, STRINGS = np.array([-5, 0, 7, 2**40]), np.array(["Zug", "amsel", "drossel", "Ähre"], dtype=object)


@pytest.mark.parametrize(
    ("ids", "vertex_ids", "message"),
    [
        ([4], None, "p has the id 4, which no vertex has; near: 3"),
        ([-1], None, "p has the id -1, which no vertex has; near: 0"),
        ([0, 8], INTEGERS, "p has the id 8, which no vertex has; near: 7"),
        ([2**41], INTEGERS, f"p has the id {2**41}, which no vertex has; near: {2**40}"),
        (["drosel"], STRINGS, "p has the id 'drosel', which no vertex has; near: 'drossel'"),
        (["zzz", "Zug"], STRINGS, "p has the id 'zzz', which no vertex has"),
        ([""], STRINGS, "p has the id '', which no vertex has"),
        ([7], STRINGS, "p has the id 7 but the ids of vertices are strings; pass strings"),
        ([b"Zug"], STRINGS, "p has the id b'Zug' but the ids of vertices are strings; pass strings"),
    ],
)
def test_unknown_ids(ids, vertex_ids, message):
    with pytest.raises(OptionError) as caught:
        lookup.ArrayLookup(4, vertex_ids).find_all("p", ids)
    assert str(caught.value) == message


@pytest.mark.parametrize("vertex_ids", [None, INTEGERS], ids=["numbers", "integers"])
@pytest.mark.parametrize("label", ["0", 0.0, None, 2**70, True])
def test_ids_that_are_no_integers(label, vertex_ids):
    with pytest.raises(UnknownIdError) as caught:
        lookup.ArrayLookup(4, vertex_ids).find_all("p", [label])
    assert str(caught.value) == (
        f"p has the id {label!r} but the ids of vertices are 64-bit integers; pass 64-bit integers"
    )
