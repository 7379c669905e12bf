"""Kinds of bad input, through Python, the command line and definitions of pipelines: each an error in one line that
says what to do, and none leaves a file behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from commands import invoke

import mgspmv as mg
from mgspmv import errors
from mgspmv.errors import MgspmvError

CYCLE = "1 2\n2 3\n3 1\n1 3\n"
GENERAL = "%%MatrixMarket matrix coordinate real general\n"


@dataclass(frozen=True)
class Bad:
    """A kind of bad input."""

    call: Callable[[], Any]
    """Through Python."""
    command: str
    """At the command line, words without blanks; empty where it has no such option."""
    error: type[MgspmvError]
    remedy: str
    """Part of the message: what is wrong, or what to do."""
    definition: str = ""
    """Of a pipeline, after its folder; empty where there is none to it. `ring` is a matrix of each."""


def rank(store: str = "ring.zarr", **options: Any) -> Callable[[], Any]:
    return lambda: mg.pagerank(mg.open_matrix(store), **options)


def ingest(source: str, **options: Any) -> Callable[[], Any]:
    return lambda: mg.ingest(source, "new.zarr", **options)


def save(path: str) -> Callable[[], Any]:
    return lambda: mg.pagerank(mg.open_matrix("ring.zarr")).save(path)


KINDS = {
    # stores
    "no store": Bad(
        rank("none.zarr"), "pagerank none.zarr", errors.StoreNotFoundError, "make one with `mgspmv ingest`"
    ),
    "a store that was never finished": Bad(
        rank("half.zarr"), "pagerank half.zarr", errors.StoreUnfinishedError, "run its `mgspmv ingest` again"
    ),
    "a group of something else": Bad(
        rank("other.zarr"), "pagerank other.zarr", errors.StoreFormatError, "make one with `mgspmv ingest`"
    ),
    "a chunk that was changed": Bad(
        rank("flipped.zarr"), "pagerank flipped.zarr", errors.ChecksumError, "ingest again"
    ),
    "a chunk that is missing": Bad(
        rank("lacking.zarr"), "pagerank lacking.zarr", errors.MissingChunkError, "ingest again"
    ),
    "a link that leads out of the store": Bad(
        rank("linked.zarr"), "pagerank linked.zarr", errors.StoreError, "put a copy of what it leads to in its place"
    ),
    "no such version": Bad(
        lambda: mg.open_matrix("ring.zarr", version=7),
        "",
        errors.StoreError,
        "it has v000001-",
    ),
    # sources
    "no source": Bad(ingest("none.txt"), "ingest none.txt new.zarr", errors.SourceNotFoundError, "none.txt"),
    "an empty file": Bad(ingest("empty.mtx"), "ingest empty.mtx new.zarr", errors.SourceError, "empty.mtx"),
    "a token that is no number": Bad(
        ingest("token.mtx"), "ingest token.mtx new.zarr", errors.SourceError, "token.mtx, line 3"
    ),
    "a file that was cut off": Bad(ingest("cut.mtx"), "ingest cut.mtx new.zarr", errors.SourceError, "cut.mtx"),
    "a vertex that is out of range": Bad(
        ingest("range.mtx"), "ingest range.mtx new.zarr", errors.SourceError, "range.mtx, line 3"
    ),
    "a weight that is not a number": Bad(
        ingest("nan.txt", weights=True), "ingest nan.txt new.zarr --weights", errors.SourceError, "nan.txt"
    ),
    "a negative weight": Bad(rank("negative.zarr"), "pagerank negative.zarr", MgspmvError, "negative"),
    "a graph that is not square": Bad(
        ingest("wide.mtx", kind="graph"), "ingest wide.mtx new.zarr --kind graph", errors.SourceError, "square"
    ),
    "too little memory": Bad(
        ingest("ring.txt", memory=1000), "ingest ring.txt new.zarr --memory 1000B", errors.OptionError, "at least 1GiB"
    ),
    "a target that is there": Bad(
        lambda: mg.ingest("ring.txt", "ring.zarr"), "ingest ring.txt ring.zarr", errors.StoreExistsError, "overwrite"
    ),
    # runs
    "ranks of a matrix that is no graph": Bad(rank("matrix.zarr"), "pagerank matrix.zarr", errors.KindError, "square"),
    "no such choice": Bad(
        rank(precision="float16"),
        "pagerank ring.zarr --precision float16",
        errors.OptionError,
        "float16",
        '[run]\nprecision = "float16"',
    ),
    "alpha out of range": Bad(
        rank(alpha=1.5), "pagerank ring.zarr --alpha 1.5", errors.OptionError, "alpha", "[run]\nalpha = 1.5"
    ),
    "a tolerance below 0": Bad(
        rank(tol=-1.0), "pagerank ring.zarr --tol -1", errors.OptionError, "tol", "[run]\ntol = -1.0"
    ),
    "no iterations": Bad(
        rank(max_iter=-1), "pagerank ring.zarr --max-iter -1", errors.OptionError, "max_iter", "[run]\nmax_iter = -1"
    ),
    "a vertex that there is not": Bad(
        rank(personalization={77: 1.0}), "pagerank ring.zarr --personalization other.txt", MgspmvError, "77"
    ),
    "a vector that is too short": Bad(
        rank(nstart=np.ones(2)), "pagerank ring.zarr --nstart short.npy", errors.ShapeError, "3"
    ),
    "no such kernel": Bad(
        rank(kernel="none"), "pagerank ring.zarr --kernel none", errors.OptionError, "none", '[run]\nkernel = "none"'
    ),
    "dangling vertices that are an error": Bad(
        rank("dangling.zarr", dangling="error"),
        "pagerank dangling.zarr --dangling error",
        errors.DanglingError,
        "dangling",
    ),
    "a scheduler that does not answer": Bad(
        rank(client="tcp://127.0.0.1:9", timeout=1.0),
        "pagerank ring.zarr --scheduler tcp://127.0.0.1:9 --timeout 1",
        errors.SchedulerNotFoundError,
        "127.0.0.1:9",
    ),
    "a time-out that makes no sense": Bad(
        rank(client="tcp://127.0.0.1:9", timeout=0.0),
        "pagerank ring.zarr --scheduler tcp://127.0.0.1:9 --timeout 0",
        errors.OptionError,
        "timeout",
    ),
    "a checkpoint of another run": Bad(
        rank(checkpoint="states", resume=True, alpha=0.5),
        "pagerank ring.zarr --checkpoint states --resume --alpha 0.5",
        errors.CheckpointError,
        "alpha",
    ),
    # results
    "ranks that are there": Bad(
        save("ranks.csv"), "pagerank ring.zarr -o ranks.csv", errors.StoreExistsError, "overwrite"
    ),
    "a folder that is a file": Bad(
        save("ring.txt/ranks.csv"), "pagerank ring.zarr -o ring.txt/ranks.csv", MgspmvError, "ring.txt"
    ),
    "a form of results that there is not": Bad(
        save("ranks.doc"), "pagerank ring.zarr -o ranks.doc", errors.OptionError, ".parquet"
    ),
}

DEFINITIONS = {
    "no such key": ("[run]\nalhpa = 0.9", "alhpa"),
    "another type": ('[run]\nalpha = "high"', "alpha"),
    "no TOML": ("[run\nalpha = 0.9", "TOML"),
    "no such matrix": ('[run]\nmatrix = "none"', "none"),
    "a variable that is not set": ('[matrix.web]\npath = "${MGSPMV_NOWHERE}"', "MGSPMV_NOWHERE"),
    "two sources": ('[matrix.web]\npath = "ring.txt"\ngenerate = "rmat"', "generate"),
    "an output of no form": ('[output]\nformats = ["doc"]', "doc"),
}
"""What is wrong with a definition alone, and a part of the message."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With what is bad, and what is good."""
    folder = tmp_path_factory.mktemp("bad")
    texts = {
        "ring.txt": CYCLE,
        "ends.txt": "1 2\n",
        "empty.mtx": "",
        "token.mtx": f"{GENERAL}2 2 2\n1 x 1.0\n2 1 1.0\n",
        "cut.mtx": f"{GENERAL}2 2 2\n1 1 1.0\n",
        "range.mtx": f"{GENERAL}2 2 1\n1 9 1.0\n",
        "wide.mtx": f"{GENERAL}2 3 1\n1 3 1.0\n",
        "nan.txt": "1 2 nan\n",
        "negative.txt": "1 2 -1.5\n",
        "other.txt": "77 1\n",
        "ranks.csv": "id,rank\n1,1.0\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    np.save(folder / "short.npy", np.ones(2))
    ring = folder / "ring.zarr"
    mg.ingest(folder / "ring.txt", ring)
    mg.ingest(folder / "ends.txt", folder / "dangling.zarr")
    mg.ingest(folder / "negative.txt", folder / "negative.zarr", weights=True)
    mg.ingest(folder / "wide.mtx", folder / "matrix.zarr", kind="matrix")
    mg.pagerank(mg.open_matrix(ring), checkpoint=folder / "states")
    zarr.create_group(folder / "other.zarr")
    for name in ("half", "flipped", "lacking", "linked"):
        shutil.copytree(ring, folder / f"{name}.zarr")
    root = json.loads((folder / "half.zarr" / "zarr.json").read_text())
    root["attributes"]["mgspmv"]["current"] = None
    (folder / "half.zarr" / "zarr.json").write_text(json.dumps(root))
    chunks = {
        name: next((folder / f"{name}.zarr").glob("versions/v*/indices/c/0"))
        for name in ("flipped", "lacking", "linked")
    }
    raw = bytearray(chunks["flipped"].read_bytes())
    raw[-6] ^= 1
    chunks["flipped"].write_bytes(raw)
    chunks["lacking"].unlink()
    chunks["linked"].rename(folder / "elsewhere")
    chunks["linked"].symlink_to(folder / "elsewhere")
    return folder


@pytest.fixture
def untouched(folder, monkeypatch):
    """The folder, in which a test leaves no file and takes none away."""
    monkeypatch.chdir(folder)
    before = sorted(map(str, folder.rglob("*")))
    yield folder
    assert sorted(map(str, folder.rglob("*"))) == before


def check_said(stderr: str, remedy: str) -> None:
    assert "Traceback" not in stderr
    [line] = stderr.splitlines()
    assert remedy in line


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_through_python(kind, untouched):
    bad = KINDS[kind]
    with pytest.raises(bad.error) as caught:
        bad.call()
    assert isinstance(caught.value, MgspmvError)
    [line] = str(caught.value).splitlines()
    assert bad.remedy in line


@pytest.mark.parametrize("kind", [kind for kind, bad in KINDS.items() if bad.command])
def test_bad_input_at_the_command_line(kind, untouched):
    bad = KINDS[kind]
    with pytest.raises(bad.error) as caught:
        bad.call()
    code = caught.value.exit_code
    stdout, stderr = invoke(*bad.command.split(), code=code)
    assert stdout == ""
    check_said(stderr, bad.remedy)
    stdout, _ = invoke(*bad.command.split(), "--json", code=code)
    told = json.loads(stdout)["error"]
    assert bad.remedy in told["message"]
    assert told["type"]


@pytest.mark.parametrize("kind", [kind for kind, bad in KINDS.items() if bad.definition])
def test_bad_input_in_a_definition(kind, untouched):
    bad = KINDS[kind]
    check_definition(bad.definition, bad.remedy)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_bad_definitions(kind, untouched):
    check_definition(*DEFINITIONS[kind])


def check_definition(definition: str, remedy: str) -> None:
    """Refused before anything is made."""
    Path("p.toml").write_text(f'folder = "out"\n[matrix.ring]\npath = "ring.txt"\n{definition}\n')
    try:
        with pytest.raises(MgspmvError) as caught:
            mg.run_pipeline("p.toml")
        assert remedy in str(caught.value)
        stdout, stderr = invoke("run", "p.toml", code=caught.value.exit_code)
        assert stdout == ""
        check_said(stderr, remedy)
    finally:
        Path("p.toml").unlink()


def test_there_are_enough_kinds():
    assert len(KINDS) + len(DEFINITIONS) >= 24
