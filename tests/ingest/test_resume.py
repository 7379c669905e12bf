"""An ingest that is broken off and gone on with makes the store that one makes which is not."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError, ProgressError, SourceError, SourceNotFoundError, StoreError, StoreExistsError
from mgspmv.ingest.write import Room

columns, resume = import_module("mgspmv.ingest.columns"), import_module("mgspmv.ingest.resume")

N_EDGES = 4000
RNG = np.random.default_rng(5)
ENDS = RNG.integers(0, 40, (2, N_EDGES)) ** 2
WEIGHTS = RNG.random(N_EDGES).round(3)


class Broken(Exception):
    """What ends an ingest here."""


def find_reader(name):
    module, class_name = name.split(".")
    return getattr(import_module(f"mgspmv.ingest.{module}"), class_name)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Progress is kept after each batch, of which small files make many."""
    monkeypatch.setattr(resume, "PROGRESS_S", 0.0)
    monkeypatch.setattr(resume, "PROGRESS_PART", 1 << 60)
    keep = resume.Journal.keep

    def wait_and_keep(self, *read):
        if self._written is not None:
            self._written.result()  # else what comes while files are written is kept the next time
        keep(self, *read)

    monkeypatch.setattr(resume.Journal, "keep", wait_and_keep)
    for reader, name, value in [
        ("edge_list.EdgeListSource", "batch_bytes", 1500),
        ("matrix_market.MatrixMarketSource", "batch_bytes", 1500),
        ("parquet.ParquetSource", "batch_rows", 150),
    ]:
        monkeypatch.setitem(find_reader(reader).__init__.__kwdefaults__, name, value)


@pytest.fixture
def little(monkeypatch):
    """So little memory that entries, and names, go to files again and again."""
    monkeypatch.setattr(sys.modules["mgspmv.api.stores"], "find_room", lambda *_: Room(60_000, 2, None))


def break_off(source, store, after, **options):
    """Ingest until so many batches were read."""

    def count(phase, done, total):
        heard.append(phase)
        if len(heard) > after:
            raise Broken

    heard: list[str] = []
    with pytest.raises(Broken):
        mg.ingest(source, store, resume=True, on_progress=count, **options)
    return heard


def ingest_to_compare(source, **options):
    return mg.ingest(source, MemoryStore(), **options)


def write_text(path, label=str, *, weights=False, delimiter=" ", part=slice(None), head=""):
    lines = [
        delimiter.join([label(a), label(b), *([str(w)] if weights else [])])
        for a, b, w in zip(*ENDS[:, part].tolist(), WEIGHTS[part].tolist(), strict=True)
    ]
    text = (head + "\n".join(lines) + "\n").encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text))
    return path


def write_several(folder):
    thirds = np.linspace(0, N_EDGES, 4).astype(int)
    for k in range(3):
        write_text(folder / f"part-{k}.csv", delimiter=",", part=slice(*thirds[k : k + 2]), head="# a part\nsrc,dst\n")
    return folder / "part-*.csv"


def write_matrix(path, symmetry="general", layout="coordinate"):
    matrix = scipy.sparse.random(60, 60, 0.5, random_state=3, format="coo")
    if symmetry == "symmetric":
        matrix = (matrix + matrix.T).tocoo()
    scipy.io.mmwrite(path, matrix.toarray() if layout == "array" else matrix, symmetry=symmetry)
    return path


def write_parquet(path, make=lambda ends: ends, *, part=slice(None), **options):
    table = {"src": make(ENDS[0, part]), "dst": make(ENDS[1, part]), "weight": WEIGHTS[part]}
    pq.write_table(pa.table(table), path, **options)
    return path


def write_several_parquet(folder):
    for k, part in enumerate((slice(0, 1300), slice(1300, 1300), slice(1300, N_EDGES))):
        write_parquet(folder / f"part-{k}.parquet", part=part, row_group_size=400)
    return folder / "*.parquet"


def make_names(ends):
    return pa.array([f"name {a}" for a in ends]).dictionary_encode()


KINDS = {
    "near ids": lambda folder: write_text(folder / "e.txt"),
    "far ids": lambda folder: write_text(folder / "e.txt", lambda a: str(a**2 * 10**11 - 7)),
    "names": lambda folder: write_text(folder / "e.txt", lambda a: f"v{a}"),
    "weights": lambda folder: write_text(folder / "e.tsv", weights=True, delimiter="\t"),
    "a claim": lambda folder: write_text(folder / "e.txt", head="# Nodes: 5000 Edges: 4000\n"),
    "gzip": lambda folder: write_text(folder / "e.txt.gz", lambda a: f"v{a}"),
    "bzip2": lambda folder: write_text(folder / "e.txt.bz2", weights=True),
    "several files": write_several,
    "Matrix Market": lambda folder: write_matrix(folder / "m.mtx"),
    "a symmetric matrix": lambda folder: write_matrix(folder / "m.mtx", "symmetric"),
    "an array": lambda folder: write_matrix(folder / "m.mtx", layout="array"),
    "Parquet": lambda folder: write_parquet(folder / "e.parquet", row_group_size=700),
    "Parquet of names": lambda folder: write_parquet(folder / "e.parquet", make_names, row_group_size=10_000),
    "several Parquet files": write_several_parquet,
}


CORE = {("near ids", "much"), ("names", "little"), ("several files", "little"), ("Parquet of names", "much")}
BREAKS = [
    pytest.param(kind, memory, marks=() if (kind, memory) in CORE else pytest.mark.slow)
    for kind in KINDS
    for memory in ("much", "little")
]


@pytest.mark.parametrize(("kind", "memory"), BREAKS)
def test_the_store_is_that_of_an_ingest_without_a_break(kind, memory, tmp_path, request):
    (tmp_path / "in").mkdir()
    source = KINDS[kind](tmp_path / "in")
    wanted = ingest_to_compare(source, transpose=True)
    if memory == "little":
        request.getfixturevalue("little")
    for after in (1, 4, 7):
        break_off(source, tmp_path / "a.zarr", after, transpose=True)
        assert not (tmp_path / "a.zarr").exists()
    info = mg.ingest(source, tmp_path / "a.zarr", transpose=True, resume=True)
    assert info.digest == wanted.digest
    sources = [info.provenance["source"], wanted.provenance["source"]]
    for source in sources:
        source.pop("taken", None)  # lines that were read before the break are not counted
    assert sources[0] == sources[1]
    assert mg.verify(tmp_path / "a.zarr") == []
    assert {path.name for path in tmp_path.iterdir()} == {"in", "a.zarr"}


# --- what is done again, and what is not -----------------------------------------------------------------------------


def read_journal(folder):
    return json.loads(json.loads((folder / "journal.json").read_text())["journal"])


@pytest.mark.slow
def test_what_was_read_is_not_parsed_again(tmp_path, monkeypatch):
    source = write_text(tmp_path / "e.txt")
    break_off(source, tmp_path / "a.zarr", 9)
    n_given, *_ = read_journal(tmp_path / ".a.zarr.ingest")["state"]["place"]
    parsed, read = [], columns.read_columns
    monkeypatch.setattr(columns, "read_columns", lambda chunk, form: parsed.append(chunk.data) or read(chunk, form))
    mg.ingest(source, tmp_path / "a.zarr", resume=True)
    assert n_given >= 8 * 1400
    assert sum(map(len, parsed)) == source.stat().st_size - n_given
    assert set(b"".join(parsed).splitlines()) <= set(source.read_bytes()[n_given:].splitlines())


@pytest.mark.slow
def test_row_groups_that_were_read_are_not_read_again(tmp_path, monkeypatch):
    source = write_parquet(tmp_path / "e.parquet", row_group_size=400)
    break_off(source, tmp_path / "a.zarr", 9)
    n_given, *_ = read_journal(tmp_path / ".a.zarr.ingest")["state"]["place"]
    assert n_given > 1000
    asked, iterate = [], pq.ParquetFile.iter_batches

    def record(self, n, groups, *rest, **more):
        asked.append(list(groups))
        return iterate(self, n, groups, *rest, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    mg.ingest(source, tmp_path / "a.zarr", resume=True)
    assert asked == [list(range(n_given // 400, 10))]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "memory"), [("degree", "little"), ("rcm", "much")])
def test_an_order_is_found_again(method, memory, tmp_path, request):
    source = write_text(tmp_path / "e.txt", weights=True)
    options = {"order": method, "transpose": True}
    wanted = ingest_to_compare(source, **options)
    if memory == "little":
        request.getfixturevalue("little")
    for phase in ("order", "renumber", "sort and write", "write the transpose"):

        def interrupt(now, done, total, phase=phase):
            if now == phase and done:
                raise Broken

        with pytest.raises(Broken):
            mg.ingest(source, tmp_path / "a.zarr", resume=True, on_progress=interrupt, **options)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True, **options).digest == wanted.digest
    assert mg.verify(tmp_path / "a.zarr") == []


@pytest.mark.slow
@pytest.mark.parametrize("label", [str, lambda a: f"v{a}"], ids=["integers", "names"])
def test_a_list_of_vertices_is_kept_with_what_was_read(label, tmp_path):
    source = write_text(tmp_path / "e.txt", label)
    (tmp_path / "list").write_text("".join(f"{label(a**2)}\n" for a in range(50)))
    options = {"vertices": tmp_path / "list"}
    wanted = ingest_to_compare(source, **options)

    def interrupt(phase, done, total):
        if phase == "sort and write":
            raise Broken

    break_off(source, tmp_path / "a.zarr", 3, **options)
    with pytest.raises(Broken):
        mg.ingest(source, tmp_path / "a.zarr", resume=True, on_progress=interrupt, **options)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True, **options).digest == wanted.digest


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("names", "Parquet") else pytest.mark.slow) for kind in KINDS]
)
def test_a_source_that_was_read_is_not_read_again(kind, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    source = KINDS[kind](tmp_path / "in")
    wanted = ingest_to_compare(source)

    def interrupt(phase, done, total):
        if phase == "sort and write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mg.ingest(source, tmp_path / "a.zarr", resume=True, on_progress=interrupt)
    for reader in ("edge_list.EdgeListSource", "matrix_market.MatrixMarketSource", "tables.TableSource"):
        monkeypatch.delattr(find_reader(reader), "batches")
    info = mg.ingest(source, tmp_path / "a.zarr", resume=True)
    assert info.digest == wanted.digest
    assert info.provenance["source"] == wanted.provenance["source"]


def test_names_that_do_not_fit_are_kept_in_runs(little, tmp_path):
    source = KINDS["names"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 9)
    kept = read_journal(tmp_path / ".a.zarr.ingest")["state"]["vertices"]
    assert len(kept["spilled"]["runs"]) > 3
    assert len(kept["names"]) == 1  # of the last batch, for which the next makes room


@pytest.mark.slow
def test_memory_and_threads_may_be_others(tmp_path, monkeypatch):
    source = KINDS["names"](tmp_path)
    wanted = ingest_to_compare(source)
    for memory, threads in [(1 << 40, 3), (60_000, 1), (1 << 40, 2), (200_000, 1)]:
        monkeypatch.setattr(
            sys.modules["mgspmv.api.stores"], "find_room", lambda *_, m=memory, t=threads: Room(m, t, None)
        )
        break_off(source, tmp_path / "a.zarr", 4)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True).digest == wanted.digest


def test_progress_is_kept_every_so_many_seconds(tmp_path, monkeypatch):
    source = KINDS["near ids"](tmp_path)
    monkeypatch.setattr(resume, "PROGRESS_S", 60.0)
    break_off(source, tmp_path / "a.zarr", 9)
    assert not (tmp_path / ".a.zarr.ingest").exists()  # nothing was kept by then


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"order": "degree"}, {"symmetrize": True}, {"self_loops": "drop"}, {"dtype": "float32"}]
)
def test_options(options, tmp_path):
    source = KINDS["weights"](tmp_path)
    wanted = ingest_to_compare(source, **options)
    break_off(source, tmp_path / "a.zarr", 6, **options)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True, **options).digest == wanted.digest


@pytest.mark.parametrize("make", [pa.string(), pa.int64()], ids=str)
def test_a_table_without_rows(make, tmp_path):
    source = tmp_path / "e.parquet"
    pq.write_table(pa.table({"a": pa.array([], make), "b": pa.array([], make)}), source)
    break_off(source, tmp_path / "a.zarr", 3)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True).digest == ingest_to_compare(source).digest


def test_a_cluster_does_not_go_on(tmp_path):
    with pytest.raises(OptionError, match="resume=True is for an ingest in this process"):
        mg.ingest(KINDS["near ids"](tmp_path), tmp_path / "a.zarr", resume=True, client=object())


def test_a_self_loop_that_was_seen_is_not_forgotten(tmp_path):
    (tmp_path / "e.txt").write_text("7 7\n" + "1 2\n" * 5000)
    break_off(tmp_path / "e.txt", tmp_path / "a.zarr", 3, self_loops="error")
    with pytest.raises(SourceError, match="vertex 7 has a self loop"):
        mg.ingest(tmp_path / "e.txt", tmp_path / "a.zarr", resume=True, self_loops="error")


@pytest.mark.parametrize("suffix", ["txt", "parquet"])
def test_a_bad_place_after_the_break_is_named(suffix, tmp_path):
    ends, bad = [3] * 3000, 2500
    if suffix == "txt":
        (tmp_path / "e.txt").write_text("".join(f"{a} {'x' if k == bad else 1}\n" for k, a in enumerate(ends)))
    else:
        others = [None if k == bad else 1 for k in range(len(ends))]
        pq.write_table(pa.table({"src": ends, "dst": others}), tmp_path / "e.parquet", row_group_size=200)
    break_off(tmp_path / f"e.{suffix}", tmp_path / "a.zarr", 5)
    with pytest.raises(SourceError, match="line 2501" if suffix == "txt" else "row 2500 has nothing"):
        mg.ingest(tmp_path / f"e.{suffix}", tmp_path / "a.zarr", resume=True)
    assert (tmp_path / ".a.zarr.ingest/journal.json").exists()


def test_a_list_of_vertices(tmp_path):
    source = KINDS["names"](tmp_path)
    (tmp_path / "v.txt").write_text("".join(f"v{a * a}\n" for a in range(50)))
    options = {"vertices": tmp_path / "v.txt"}
    wanted = ingest_to_compare(source, **options)
    break_off(source, tmp_path / "a.zarr", 6, **options)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True, **options).digest == wanted.digest
    break_off(source, tmp_path / "b.zarr", 6, **options)
    (tmp_path / "v.txt").write_text("v1\n")
    with pytest.raises(ProgressError, match=r"v\.txt was changed since \(bytes was"):
        mg.ingest(source, tmp_path / "b.zarr", resume=True, **options)


def test_a_store_that_was_there_stays_until_the_new_one_is_whole(tmp_path):
    source = KINDS["near ids"](tmp_path)
    before = mg.generate("rmat", tmp_path / "a.zarr", scale=4)
    break_off(source, tmp_path / "a.zarr", 6, overwrite=True)
    assert mg.open_matrix(tmp_path / "a.zarr").info == before
    with pytest.raises(StoreExistsError):
        mg.ingest(source, tmp_path / "a.zarr", resume=True)
    info = mg.ingest(source, tmp_path / "a.zarr", resume=True, overwrite=True)
    assert info.digest == ingest_to_compare(source).digest


# --- where it is kept, and for how long ------------------------------------------------------------------------------


def test_an_ingest_without_a_break_leaves_nothing(tmp_path):
    source = KINDS["near ids"](tmp_path)
    info = mg.ingest(source, tmp_path / "new/folder/a.zarr", resume=True)
    assert info.digest == ingest_to_compare(source).digest
    assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["a.zarr"]


def test_without_resume_what_was_left_is_removed(tmp_path):
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    assert (tmp_path / ".a.zarr.ingest").is_dir()
    mg.ingest(source, tmp_path / "a.zarr")
    assert {path.name for path in tmp_path.iterdir()} == {"e.txt", "a.zarr"}


def test_what_is_not_ours_stays(tmp_path):
    source = KINDS["near ids"](tmp_path)
    other = tmp_path / ".a.zarr.ingest"
    other.mkdir()
    (other / "entries").write_text("of somebody else")
    mg.ingest(source, tmp_path / "a.zarr")
    assert (other / "entries").read_text() == "of somebody else"
    (other / "notes").write_text("likewise")
    mg.ingest(source, tmp_path / "a.zarr", overwrite=True, resume=True)
    assert [path.name for path in other.iterdir()] == ["notes"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory://a.zarr", "in memory", "{folder}/x/a.zarr"])
def test_in_a_folder_of_its_own(store, tmp_path):
    source, scratch = KINDS["near ids"](tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    place = MemoryStore() if store == "in memory" else store.format(folder=tmp_path)
    break_off(source, place, 6, scratch=scratch)
    (kept,) = scratch.iterdir()
    n_given, *_ = read_journal(kept)["state"]["place"]
    assert n_given > 1400
    info = mg.ingest(source, place, scratch=scratch, resume=True, overwrite=True)
    assert info.digest == ingest_to_compare(source).digest
    assert list(scratch.iterdir()) == []


def test_stores_of_one_name_in_a_folder_for_both(tmp_path):
    source = KINDS["near ids"](tmp_path)
    for place in ("a/web.zarr", "b/web.zarr"):
        break_off(source, tmp_path / place, 6, scratch=tmp_path)
    assert len(list(tmp_path.glob(".web.zarr-*.ingest"))) == 2


def test_a_place_where_nothing_can_be_written(tmp_path):
    source = KINDS["near ids"](tmp_path)
    (tmp_path / ".a.zarr.ingest").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot keep progress in .*\.a\.zarr\.ingest: .*name another place"):
        mg.ingest(source, tmp_path / "a.zarr", resume=True)


def test_a_full_disk(tmp_path, monkeypatch):
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)

    def fail(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match=r"no space left on device; .* bytes of .* are free; make room"):
            mg.ingest(source, tmp_path / "a.zarr", resume=True)
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True).digest == ingest_to_compare(source).digest


def test_one_process_at_a_time(tmp_path):
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    kept = sorted((path.name, path.read_bytes()) for path in (tmp_path / ".a.zarr.ingest").iterdir())
    with open(tmp_path / ".a.zarr.ingest/lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ProgressError, match=r"another process keeps its progress in .*; wait for its end"):
            mg.ingest(source, tmp_path / "a.zarr", resume=True)
        mg.ingest(source, tmp_path / "a.zarr")  # the other's is not removed
        assert sorted((path.name, path.read_bytes()) for path in (tmp_path / ".a.zarr.ingest").iterdir()) == kept
    mg.ingest(source, tmp_path / "a.zarr", resume=True, overwrite=True)
    assert not (tmp_path / ".a.zarr.ingest").exists()


def test_a_lock_that_another_has_just_removed(tmp_path, monkeypatch):
    lock, removed = fcntl.flock, []

    def remove_first(file, how):
        if not removed:
            removed.append((tmp_path / "kept/lock").unlink())
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with resume._lock(tmp_path / "kept"):
        assert (tmp_path / "kept/lock").exists()
        with pytest.raises(ProgressError), resume._lock(tmp_path / "kept"):
            pass
    assert len(removed) == 1


# --- what is refused -------------------------------------------------------------------------------------------------


def append(path):
    with open(path, "ab") as file:
        file.write(b"1 2\n")


CHANGES = {
    "more lines": (lambda folder: append(folder / "e.txt"), {}, r"e\.txt was changed since \(bytes was"),
    "another time": (lambda folder: os.utime(folder / "e.txt", (5, 5)), {}, r"e\.txt was changed since \(mtime_ns was"),
    "another option": (lambda folder: None, {"symmetrize": True}, "symmetrize was False and is True"),
    "another way to read": (lambda folder: None, {"n_vertices": 2000}, "n_vertices was None and is 2000"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_ingest_is_refused(name, tmp_path):
    change, options, message = CHANGES[name]
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    change(tmp_path)
    left = sorted((path.name, path.stat().st_size) for path in (tmp_path / ".a.zarr.ingest").iterdir())
    with pytest.raises(ProgressError, match=rf"{message}.*Nothing is lost: .*leave out resume=True, or remove"):
        mg.ingest(source, tmp_path / "a.zarr", resume=True, **options)
    assert left == sorted((path.name, path.stat().st_size) for path in (tmp_path / ".a.zarr.ingest").iterdir())
    info = mg.ingest(source, tmp_path / "a.zarr", **options)
    assert info.digest == ingest_to_compare(source, **options).digest


def test_other_files_are_refused(tmp_path):
    pattern = write_several(tmp_path)
    break_off(pattern, tmp_path / "a.zarr", 6)
    files = sorted(tmp_path.glob("part-*"))
    with pytest.raises(ProgressError, match="it was of 3 files, and there are 2"):
        mg.ingest(files[:2], tmp_path / "a.zarr", resume=True)
    with pytest.raises(ProgressError, match=r"it read .*part-0\.csv where .*part-1\.csv is now"):
        mg.ingest([files[1], files[0], files[2]], tmp_path / "a.zarr", resume=True)
    assert mg.ingest(files, tmp_path / "a.zarr", resume=True).digest == ingest_to_compare(files).digest


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


DAMAGES = [("journal.json", cut), ("journal.json", flip), ("entries", cut), ("entries", flip), ("entries", Path.unlink)]
DAMAGES += [("vertices", flip), ("vertices", Path.unlink), ("marks", cut), ("marks", flip)]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_damage_is_refused(name, damage, tmp_path):
    source = KINDS["names" if name == "vertices" else "near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    (path,) = (tmp_path / ".a.zarr.ingest").glob(f"{name}*")
    damage(path)
    with pytest.raises(ProgressError, match=r"damaged.*Nothing is lost"):
        mg.ingest(source, tmp_path / "a.zarr", resume=True)
    assert mg.ingest(source, tmp_path / "a.zarr").digest == ingest_to_compare(source).digest


def test_without_a_journal_all_begins(tmp_path):
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    (tmp_path / ".a.zarr.ingest/journal.json").unlink()
    assert mg.ingest(source, tmp_path / "a.zarr", resume=True).digest == ingest_to_compare(source).digest


def test_another_format_is_refused(tmp_path, monkeypatch):
    source = KINDS["near ids"](tmp_path)
    break_off(source, tmp_path / "a.zarr", 6)
    monkeypatch.setattr(resume, "FORMAT", 3)
    with pytest.raises(ProgressError, match=r"another version of mgspmv kept it \(format 2, and this one has 3\)"):
        mg.ingest(source, tmp_path / "a.zarr", resume=True)


def test_a_text_that_ends_before_the_place(tmp_path):
    """Of the same size and date."""
    source = tmp_path / "e.txt"
    source.write_bytes(b"1 2\n" * 5000)
    break_off(source, tmp_path / "a.zarr", 13)
    was = source.stat()
    source.write_bytes(b"1 2\r\n" * 4000)
    os.utime(source, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(SourceError, match=r"it ends [0-9]+ bytes before the place that was read up to; ingest again"):
        mg.ingest(source, tmp_path / "a.zarr", resume=True)


SOURCES = {
    "a DataFrame": lambda folder: pd.DataFrame({"src": [1], "dst": [2]}),
    "a SciPy matrix": lambda folder: scipy.sparse.eye(3, format="csr"),
    "arrays": lambda folder: (np.array([1]), np.array([2])),
    "npz": lambda folder: (
        scipy.sparse.save_npz(folder / "m.npz", scipy.sparse.eye(3, format="csr")) or folder / "m.npz"
    ),
}


def test_sources_that_are_read_from_their_begin_only(tmp_path):
    for make in SOURCES.values():
        with pytest.raises(OptionError, match=r"is read from its begin only: resume=True is for .*; leave it out"):
            mg.ingest(make(tmp_path), tmp_path / "a.zarr", resume=True)
        assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.zarr"))


def test_a_zarr_group_is_read_from_its_begin_only(tmp_path):
    mg.generate("rmat", tmp_path / "a.zarr", scale=4, weights=True)
    mg.export(tmp_path / "a.zarr", tmp_path / "b.zarr", format="binsparse")
    with pytest.raises(OptionError, match="is read from its begin only"):
        mg.ingest(tmp_path / "b.zarr", tmp_path / "c.zarr", resume=True)


def test_a_store_without_a_folder(tmp_path):
    source = KINDS["near ids"](tmp_path)
    with pytest.raises(OptionError, match=r"in no local folder; name a folder for it by scratch=$"):
        mg.ingest(source, MemoryStore(), resume=True)


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(SourceNotFoundError):
        mg.ingest([tmp_path / "none.csv"], tmp_path / "a.zarr", format="edge-list", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="is a pipe, which can be read once only"):
        mg.ingest(tmp_path / "pipe", tmp_path / "a.zarr", format="edge-list", resume=True)


def test_a_remote_source(tmp_path):
    data = write_text(tmp_path / "e.txt").read_bytes()
    with fsspec.open("memory://resumed/e.txt", "wb") as file:
        file.write(data)
    wanted = ingest_to_compare("memory://resumed/e.txt")
    break_off("memory://resumed/e.txt", tmp_path / "a.zarr", 6)
    break_off("memory://resumed/e.txt", tmp_path / "b.zarr", 6)
    assert mg.ingest("memory://resumed/e.txt", tmp_path / "a.zarr", resume=True).digest == wanted.digest
    with fsspec.open("memory://resumed/e.txt", "wb") as file:
        file.write(data)
    with pytest.raises(ProgressError, match=r"memory://resumed/e\.txt was changed since \(created was"):
        mg.ingest("memory://resumed/e.txt", tmp_path / "b.zarr", resume=True)


def test_a_remote_source_that_does_not_tell_whether_it_changed(tmp_path, monkeypatch):
    with fsspec.open("memory://resumed/f.txt", "wb") as file:
        file.write(b"1 2\n")
    monkeypatch.setattr(import_module("mgspmv.ingest.remote"), "MARKS", ("ETag",))
    with pytest.raises(OptionError, match="does not tell whether this file changed"):
        mg.ingest("memory://resumed/f.txt", tmp_path / "a.zarr", resume=True)


@pytest.mark.parametrize(
    ("url", "error"), [("memory://resumed/none", SourceNotFoundError), ("no-such-protocol://a", OptionError)]
)
def test_urls_that_lead_nowhere(url, error):
    with pytest.raises(error):
        import_module("mgspmv.ingest.remote").describe_url(url)


# --- killed ----------------------------------------------------------------------------------------------------------

INGEST = """
    import sys
    from importlib import import_module
    import mgspmv as mg
    resume = import_module("mgspmv.ingest.resume")
    resume.PROGRESS_S = 0.02
    mg.ingest(sys.argv[1], sys.argv[2], resume=True, overwrite=True, threads=2)
"""


def wait_for_progress(folder, process):
    """Until a process has kept more than is there now, or ended."""
    before = find_time(folder)
    while process.poll() is None and find_time(folder) in (before, None):
        time.sleep(0.005)


def find_time(folder):
    try:
        return (folder / "journal.json").stat().st_mtime_ns
    except FileNotFoundError:
        return None


KILLED = """
    import os, signal, sys
    from importlib import import_module
    import mgspmv as mg
    module, name, n = import_module(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    owner = getattr(module, sys.argv[6]) if len(sys.argv) > 6 else module
    real, calls = getattr(owner, name), []

    def kill_at_last(*args, **options):
        calls.append(1)
        if len(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    setattr(owner, name, kill_at_last)
    mg.ingest(sys.argv[1], sys.argv[2], resume=True)
"""


def kill_before(call, source, store, n=1):
    """Ingest until a function is called for the n-th time."""
    module, *owner, name = call.split(":")
    command = [sys.executable, "-c", textwrap.dedent(KILLED), source, store, module, name, str(n), *owner]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A source, a store of it, and what an ingest left beside that was killed between naming and removing."""
    folder = tmp_path_factory.mktemp("left")
    kill_before("mgspmv.ingest.resume:_remove", KINDS["names"](folder), folder / "a.zarr")
    assert sorted(path.name for path in (folder / ".a.zarr.ingest").iterdir()) == [
        "entries", "journal.json", "lock", "version", "vertices",
    ]  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"resume": True}])
def test_killed_when_the_store_is_whole_it_leaves_nothing_for_long(options, left, tmp_path):
    folder = shutil.copytree(left, tmp_path / "f")
    info = mg.open_matrix(folder / "a.zarr").info
    assert info.digest == ingest_to_compare(folder / "e.txt").digest
    assert mg.verify(folder / "a.zarr") == []
    with pytest.raises(StoreExistsError):
        mg.ingest(folder / "e.txt", folder / "a.zarr", **options)
    assert {path.name for path in folder.iterdir()} == {"e.txt", "a.zarr"}
    assert mg.open_matrix(folder / "a.zarr").info == info


@pytest.mark.slow
def test_what_was_left_does_not_hinder_an_ingest_of_another_source(left, tmp_path):
    folder = shutil.copytree(left, tmp_path / "f")
    (folder / "e.txt").write_text("1 2\n")
    info = mg.ingest(folder / "e.txt", folder / "a.zarr", resume=True, overwrite=True)
    assert info.nnz == 1
    assert {path.name for path in folder.iterdir()} == {"e.txt", "a.zarr"}


@pytest.mark.slow
def test_what_was_left_is_known_by_an_older_version_too(left, tmp_path):
    folder = shutil.copytree(left, tmp_path / "f")
    mg.update(folder / "a.zarr", insert=pd.DataFrame({"a": ["v0"], "b": ["v1"]}))
    with pytest.raises(StoreExistsError):
        mg.ingest(folder / "e.txt", folder / "a.zarr")
    assert not (folder / ".a.zarr.ingest").exists()


@pytest.mark.slow
def test_what_another_process_works_with_stays(left, tmp_path):
    folder = shutil.copytree(left, tmp_path / "f")
    with open(folder / ".a.zarr.ingest/lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreExistsError):
            mg.ingest(folder / "e.txt", folder / "a.zarr")
    assert len([*(folder / ".a.zarr.ingest").iterdir()]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 4])
def test_removing_that_is_broken_off_leaves_nothing_for_long(n, left, tmp_path, monkeypatch):
    folder, unlink, removed = shutil.copytree(left, tmp_path / "f"), Path.unlink, []

    def break_at_last(path):
        removed.append(path.name)
        if len(removed) == n:
            raise Broken
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", break_at_last)
        with pytest.raises(Broken):
            resume._remove(folder / ".a.zarr.ingest")
    assert (folder / ".a.zarr.ingest/journal.json").exists() == (n == 1)
    with pytest.raises(StoreExistsError):
        mg.ingest(folder / "e.txt", folder / "a.zarr")
    assert {path.name for path in folder.iterdir()} == {"e.txt", "a.zarr"}


@pytest.mark.slow
def test_killed_before_the_store_is_named_it_goes_on(tmp_path, monkeypatch):
    source = KINDS["names"](tmp_path)
    kill_before("mgspmv.store.writers:Writer:name", source, tmp_path / "a.zarr")
    assert (tmp_path / ".a.zarr.ingest/version").exists()
    monkeypatch.setattr(find_reader("edge_list.EdgeListSource"), "batches", lambda self: pytest.fail("read again"))
    info = mg.ingest(source, tmp_path / "a.zarr", resume=True)
    monkeypatch.undo()
    assert info.digest == ingest_to_compare(source).digest
    assert {path.name for path in tmp_path.iterdir()} == {"e.txt", "a.zarr"}


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(tmp_path, monkeypatch):
    """By SIGKILL, three times, a random time after it got on, while it reads, numbers, sorts and writes; maybe when the
    store is whole and what was kept is not yet gone."""
    monkeypatch.undo()  # batches are as large as in the processes that are killed
    rng, moments = np.random.default_rng(1), random.Random(3)
    ends = rng.integers(0, 200_000, (2, 2_000_000))
    labels = pa.array([f"name-{k}" for k in range(200_000)])
    table = pa.table([labels.take(pa.array(own)) for own in ends], ["a", "b"])
    form = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    pa.csv.write_csv(table, tmp_path / "e.csv", form)
    wanted = ingest_to_compare(tmp_path / "e.csv")
    folder, places = tmp_path / ".a.zarr.ingest", [0]
    command = [sys.executable, "-c", textwrap.dedent(INGEST), tmp_path / "e.csv", tmp_path / "a.zarr"]
    for _ in range(3):
        with subprocess.Popen(command) as process:
            wait_for_progress(folder, process)
            time.sleep(moments.uniform(0, 0.8))
            process.kill()
        if process.returncode != -signal.SIGKILL or not folder.exists():
            break
        places.append(read_journal(folder)["state"]["place"][0])
    assert places == sorted(places)
    assert places[1] > 0
    if folder.exists():
        subprocess.run(command, check=True)
    info = mg.open_matrix(tmp_path / "a.zarr").info
    assert info.digest == wanted.digest
    sources = [info.provenance["source"], wanted.provenance["source"]]
    for source in sources:
        source.pop("taken", None)  # lines that were read before the break are not counted
    assert sources[0] == sources[1]
    assert mg.verify(tmp_path / "a.zarr") == []
    assert {path.name for path in tmp_path.iterdir()} == {"e.csv", "a.zarr"}
