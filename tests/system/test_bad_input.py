"""Kinds of bad input, through Python, the command line and definitions of pipelines: each an error in one line that
says what to do, and none leaves a file behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv import errors
from mgspmv.errors import MgspmvError, StepsFailedError
from tests.support.commands import invoke

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
    """Of a pipeline, after its folder; empty where there is none to it."""


def rank(store: str = "ring.zarr", **options: Any) -> Callable[[], Any]:
    return lambda: mg.pagerank(mg.open_matrix(store), **options)


def ingest(source: str, **options: Any) -> Callable[[], Any]:
    return lambda: mg.ingest(source, "new.zarr", **options)


def save(path: str) -> Callable[[], Any]:
    return lambda: mg.pagerank(mg.open_matrix("ring.zarr")).save(path)


RING = '[matrix.ring]\nsource = "ring.txt"\n'


def read(source: str, *keys: str) -> str:
    """A definition that ranks a file."""
    return "\n".join([f'[matrix.ring]\nsource = "{source}"', *keys, "[run]"])


def opened(store: str, *keys: str) -> str:
    """A definition that ranks a store that is there."""
    return "\n".join([f'[matrix.ring]\nopen = "{store}"\n[run]', *keys])


def reached(*keys: str) -> str:
    """A cluster that nobody answers for."""
    return "\n".join(['[cluster]\nkind = "address"\naddress = "tcp://127.0.0.1:9"', *keys])


KINDS = {
    # stores
    "no store": Bad(
        rank("none.zarr"),
        "pagerank none.zarr",
        errors.StoreNotFoundError,
        "create one with `mgspmv ingest`",
        opened("none.zarr"),
    ),
    "a store that was never finished": Bad(
        rank("half.zarr"),
        "pagerank half.zarr",
        errors.StoreUnfinishedError,
        "run its `mgspmv ingest` again",
        opened("half.zarr"),
    ),
    "a group of something else": Bad(
        rank("other.zarr"),
        "info other.zarr",
        errors.StoreFormatError,
        "create one with `mgspmv ingest`",
        opened("other.zarr"),
    ),
    "a group of something else that is ranked": Bad(
        lambda: mg.pagerank("other.zarr"),
        "pagerank other.zarr",
        errors.SourceError,
        "this group is not a sparse matrix",
    ),
    "a chunk that was changed": Bad(
        rank("flipped.zarr"),
        "pagerank flipped.zarr",
        errors.ChecksumError,
        "ingest again",
        opened("flipped.zarr"),
    ),
    "a chunk that is missing": Bad(
        rank("lacking.zarr"),
        "pagerank lacking.zarr",
        errors.MissingChunkError,
        "ingest again",
        opened("lacking.zarr"),
    ),
    "a link that leads out of the store": Bad(
        rank("linked.zarr"),
        "pagerank linked.zarr",
        errors.StoreError,
        "replace it with a copy of its target",
        opened("linked.zarr"),
    ),
    "no such version": Bad(
        lambda: mg.open_matrix("ring.zarr", version=7),
        "",
        errors.StoreError,
        "it has v000001-",
    ),
    # sources
    "no source": Bad(
        ingest("none.txt"), "ingest none.txt new.zarr", errors.SourceNotFoundError, "none.txt", read("none.txt")
    ),
    "an empty file": Bad(
        ingest("empty.mtx"),
        "ingest empty.mtx new.zarr",
        errors.SourceError,
        "empty.mtx",
        read("empty.mtx"),
    ),
    "a token that is no number": Bad(
        ingest("token.mtx"),
        "ingest token.mtx new.zarr",
        errors.SourceError,
        "token.mtx, line 3",
        read("token.mtx"),
    ),
    "a file that was cut off": Bad(
        ingest("cut.mtx"),
        "ingest cut.mtx new.zarr",
        errors.SourceError,
        "cut.mtx",
        read("cut.mtx"),
    ),
    "a vertex that is out of range": Bad(
        ingest("range.mtx"),
        "ingest range.mtx new.zarr",
        errors.SourceError,
        "range.mtx, line 3",
        read("range.mtx"),
    ),
    "a weight that is not a number": Bad(
        ingest("nan.txt", weights=True),
        "ingest nan.txt new.zarr --weights",
        errors.SourceError,
        "nan.txt",
        read("nan.txt", "weights = true"),
    ),
    "a negative weight": Bad(
        rank("negative.zarr"),
        "pagerank negative.zarr",
        MgspmvError,
        "negative",
        opened("negative.zarr"),
    ),
    "a graph that is not square": Bad(
        ingest("wide.mtx", kind="graph"),
        "ingest wide.mtx new.zarr --kind graph",
        errors.SourceError,
        "square",
        read("wide.mtx", 'kind = "graph"'),
    ),
    "too little memory": Bad(
        ingest("ring.txt", memory=1000), "ingest ring.txt new.zarr --memory 1000B", errors.OptionError, "at least 1GiB"
    ),
    "a target that is there": Bad(
        lambda: mg.ingest("ring.txt", "ring.zarr"),
        "ingest ring.txt ring.zarr",
        errors.StoreExistsError,
        "overwrite",
        read("ring.txt", 'store = "ring.zarr"'),
    ),
    # runs
    "ranks of a matrix that is no graph": Bad(
        rank("matrix.zarr"),
        "pagerank matrix.zarr",
        errors.KindError,
        "square",
        opened("matrix.zarr"),
    ),
    "no such choice": Bad(
        rank(precision="float16"),
        "pagerank ring.zarr --precision float16",
        errors.OptionError,
        "float16",
        f'{RING}[run]\nprecision = "float16"',
    ),
    "alpha out of range": Bad(
        rank(alpha=1.5), "pagerank ring.zarr --alpha 1.5", errors.OptionError, "alpha", f"{RING}[run]\nalpha = 1.5"
    ),
    "a tolerance below 0": Bad(
        rank(tol=-1.0), "pagerank ring.zarr --tol -1", errors.OptionError, "tol", f"{RING}[run]\ntol = -1.0"
    ),
    "no iterations": Bad(
        rank(max_iter=-1),
        "pagerank ring.zarr --max-iter -1",
        errors.OptionError,
        "1, not -1",
        f"{RING}[run]\nmax_iter = -1",
    ),
    "a vertex that there is not": Bad(
        rank(personalization={77: 1.0}),
        "pagerank ring.zarr --personalization other.txt",
        MgspmvError,
        "77",
        opened("ring.zarr", 'personalization = "other.txt"'),
    ),
    "a vector that is too short": Bad(
        rank(nstart=np.ones(2)),
        "pagerank ring.zarr --nstart short.npy",
        errors.ShapeError,
        "3",
        opened("ring.zarr", 'nstart = "short.npy"'),
    ),
    "no such kernel": Bad(
        lambda: mg.pagerank(mg.open("ring.zarr").on("cpu", kernel="none")),
        "pagerank ring.zarr --kernel none",
        errors.OptionError,
        "none",
        f'{RING}[run]\nkernel = "none"',
    ),
    "dangling vertices that are an error": Bad(
        rank("dangling.zarr", dangling="error"),
        "pagerank dangling.zarr --dangling error",
        errors.DanglingError,
        "dangling",
        opened("dangling.zarr", 'dangling = "error"'),
    ),
    "a scheduler that does not answer": Bad(
        lambda: mg.pagerank(mg.open("ring.zarr").on("tcp://127.0.0.1:9", timeout=0.1)),
        "pagerank ring.zarr --scheduler tcp://127.0.0.1:9 --timeout 0.1",
        errors.SchedulerNotFoundError,
        "127.0.0.1:9",
        opened("ring.zarr", reached("timeout = 0.1")),
    ),
    "a time-out that makes no sense": Bad(
        lambda: mg.pagerank(mg.open("ring.zarr").on("tcp://127.0.0.1:9", timeout=0.0)),
        "pagerank ring.zarr --scheduler tcp://127.0.0.1:9 --timeout 0",
        errors.OptionError,
        "timeout",
        opened("ring.zarr", reached("timeout = 0.0")),
    ),
    "a checkpoint of another run": Bad(
        lambda: mg.pagerank(mg.open("ring.zarr"), 0.5, checkpoint=mg.Checkpoint("states", resume=True)),
        "pagerank ring.zarr --checkpoint states --resume --alpha 0.5",
        errors.CheckpointError,
        "alpha",
    ),
    # results
    "ranks that are there": Bad(
        save("ranks.csv"), "pagerank ring.zarr -o ranks.csv", errors.StoreExistsError, "overwrite"
    ),
    "a folder that is a file": Bad(
        save("ring.txt/ranks.csv"),
        "pagerank ring.zarr -o ring.txt/ranks.csv",
        MgspmvError,
        "ring.txt",
        opened("ring.zarr") + '\n[output]\nfolder = "ring.txt"',
    ),
    "a form of results that there is not": Bad(
        save("ranks.doc"),
        "pagerank ring.zarr -o ranks.doc",
        errors.OptionError,
        "parquet",
        f'{RING}[output]\nformats = ["doc"]',
    ),
}

DEFINITIONS = {
    "no such key": (f"{RING}[run]\nalhpa = 0.9", "alhpa"),
    "another type": (f'{RING}[run]\nalpha = "high"', "alpha"),
    "no TOML": ("[run\nalpha = 0.9", "TOML"),
    "no such matrix": (f'{RING}[run]\nmatrix = "none"', "none"),
    "a variable that is not set": (f'{RING}[matrix.web]\nsource = "${{MGSPMV_NOWHERE}}"', "MGSPMV_NOWHERE"),
    "two sources": (
        f'{RING}[matrix.web]\nsource = "ring.txt"\ngenerate = "rmat"\nparameters = {{scale = 3}}',
        "source and generate",
    ),
    "an output of no form": (f'{RING}[output]\nformats = ["doc"]', "doc"),
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
    before = list_contents(folder)
    yield folder
    assert list_contents(folder) == before


def list_contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Sizes and SHA-256 of all files, by path; folders too, and links by where they lead."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        held = path.read_bytes() if path.is_file() else b""
        found[str(path)] = len(held), str(path.readlink()) if path.is_symlink() else sha256(held).hexdigest()
    return found


def check_said(stderr: str, remedy: str) -> None:
    assert "Traceback" not in stderr
    [line] = stderr.splitlines()
    assert remedy in line


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input(kind, untouched):
    """Through Python, at the command line, in text and as JSON, and in a definition."""
    bad = KINDS[kind]
    with pytest.raises(bad.error) as caught:
        bad.call()
    assert isinstance(caught.value, MgspmvError)
    [line] = str(caught.value).splitlines()
    assert bad.remedy in line
    if bad.command:
        check_command(bad, caught.value.exit_code)
    if bad.definition:
        caught = check_definition(bad.definition, bad.remedy)
        if isinstance(caught, StepsFailedError):
            assert isinstance(caught.__cause__, bad.error)


def check_command(bad: Bad, code: int) -> None:
    stdout, stderr = invoke(*bad.command.split(), code=code)
    assert stdout == ""
    check_said(stderr, bad.remedy)
    stdout, _ = invoke(*bad.command.split(), "--json", code=code)
    told = json.loads(stdout)["error"]
    assert bad.remedy in told["message"]
    assert told["type"]


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_bad_definitions(kind, untouched):
    check_definition(*DEFINITIONS[kind])


def check_definition(definition: str, remedy: str) -> MgspmvError:
    """Run it three ways, and give the error; only records of the pipeline are left, if that, and are removed."""
    Path("p.toml").write_text(f'folder = "out"\n{definition}\n')
    try:
        with pytest.raises(MgspmvError) as caught:
            mg.run_pipeline("p.toml")
        [line] = str(caught.value).splitlines()
        assert remedy in line
        code = caught.value.exit_code
        stdout, stderr = invoke("run", "p.toml", code=code)
        assert stdout == ""
        check_said(stderr, remedy)
        stdout, _ = invoke("run", "p.toml", "--json", code=code)
        [line] = json.loads(stdout)["error"]["message"].splitlines()
        assert remedy in line
        left = [path.relative_to("out") for path in Path("out").rglob("*") if not path.is_dir()]
        assert {path.parts[0] for path in left} <= {".mgspmv"}
        assert not [path for path in left if path.suffix == ".part"]
        n_records = len([path for path in left if path.parent.name == "runs"])
        assert n_records == (3 if isinstance(caught.value, StepsFailedError) else 0)
        return caught.value
    finally:
        Path("p.toml").unlink()
        shutil.rmtree("out", ignore_errors=True)


def test_there_are_enough_kinds():
    """Of those that go all three ways."""
    assert sum(bool(bad.command and bad.definition) for bad in KINDS.values()) >= 24
