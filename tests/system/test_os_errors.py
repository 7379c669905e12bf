"""Errors of the operating system that an operator can mend: exit code 4, the path, the remedy, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import SourceAccessError, StoreError
from tests.support.commands import invoke
from tests.support.refusals import refuse

REMEDIES = {
    errno.ENOSPC: "no space left on device; inodes are free there; free some space, or choose a path on another disk",
    errno.EDQUOT: "disk quota exceeded; delete files there, request a larger quota, or",
    errno.EROFS: "read-only file system; mount its file system for writing, or choose a path on another disk",
    errno.EACCES: "permission denied; change its mode",
    errno.EPERM: "operation not permitted; change its mode",
    errno.EMFILE: "too many open files; raise the limit of open files",
    errno.ENFILE: "too many open files in system; close programs",
    errno.EFBIG: "file too large; raise the file size limit with `ulimit -f`",
    errno.EIO: "input/output error; check the system log",
    errno.ESTALE: "stale file handle; mount the file system again",
}

WRITERS = {
    "generate": ["generate", "rmat", "out/n.zarr", "--scale", "5"],
    "ingest": ["ingest", "edges.txt", "out/n.zarr"],
    "ingest again": ["ingest", "edges.txt", "out/g.zarr", "--overwrite"],
    "sort": ["ingest", "edges.txt", "n.zarr", "--scratch", "out"],
    "reorder": ["reorder", "g.zarr", "out/n.zarr"],
    "reorder in place": ["reorder", "out/g.zarr", "out/n.zarr"],
    "transpose": ["transpose", "out/g.zarr"],
    "update": ["update", "out/g.zarr", "--delete", "edges.txt"],
    "subgraph": ["subgraph", "g.zarr", "out/n.zarr", "--vertices", "ids.txt"],
    "Matrix Market": ["export", "g.zarr", "out/n.mtx"],
    "packed": ["export", "g.zarr", "out/n.mtx.gz"],
    "Parquet": ["export", "g.zarr", "out/n.parquet"],
    "npz": ["export", "g.zarr", "out/n.npz"],
    "anndata": ["export", "g.zarr", "out/n.zarr", "--format", "anndata"],
    "binsparse": ["export", "g.zarr", "out/n.zarr", "--format", "binsparse"],
    "ids": ["export", "g.zarr", "n.mtx", "--vertices", "out/n.txt"],
    "ranks as Zarr": ["pagerank", "g.zarr", "-o", "out/n.zarr"],
    "ranks as Parquet": ["pagerank", "g.zarr", "-o", "out/n.parquet"],
    "ranks as CSV": ["pagerank", "g.zarr", "-o", "out/n.csv"],
    "ranks again": ["pagerank", "g.zarr", "-o", "out/r.zarr", "--overwrite"],
    "batch as Zarr": ["pagerank-batch", "g.zarr", "--personalization", "seeds.csv", "-o", "out/n.zarr"],
    "batch as Parquet": ["pagerank-batch", "g.zarr", "--personalization", "seeds.csv", "-o", "out/n.parquet"],
    "product": ["spmv", "g.zarr", "x.npy", "-o", "out/n.npy"],
    "checkpoints": ["pagerank", "g.zarr", "--checkpoint", "out/n"],
    "log": ["info", "g.zarr", "--log", "out/n.jsonl"],
    "report": ["report", "r.parquet", "-o", "out/n.html"],
    "pipeline": ["run", "p.toml", "--set", "folder=out/n"],
}

READERS = {
    "store": (["info", "g.zarr"], "g.zarr/zarr.json"),
    "chunk": (["pagerank", "g.zarr"], "g.zarr/versions"),
    "export": (["export", "g.zarr", "n.mtx"], "g.zarr/versions"),
    "copy": (["reorder", "g.zarr", "n.zarr"], "g.zarr/versions"),
    "text": (["ingest", "edges.txt", "n.zarr"], "edges.txt"),
    "ranks": (["top", "r.zarr"], "r.zarr/zarr.json"),
    "start": (["pagerank", "g.zarr", "--nstart", "r.zarr"], "r.zarr/zarr.json"),
    "vector": (["spmv", "g.zarr", "x.npy", "-o", "n.npy"], "x.npy"),
    "personalization": (["pagerank", "g.zarr", "--personalization", "x.npy"], "x.npy"),
    "ids": (["subgraph", "g.zarr", "n.zarr", "--vertices", "ids.txt"], "ids.txt"),
    "seeds": (["pagerank-batch", "g.zarr", "--personalization", "seeds.csv", "-o", "n.zarr"], "seeds.csv"),
    "pipeline": (["run", "p.toml"], "p.toml"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with stores, ranks and sources, of which some are in `out`; the digest of the store there."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, make_files()


@pytest.fixture
def made(template, tmp_path, monkeypatch):
    """In a copy of that folder; the digests."""
    folder, digests = template
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return digests


def make_files():
    Path("edges.txt").write_text("1 2\n2 3\n3 1\n1 3\n3 5\n")
    Path("ids.txt").write_text("1\n2\n3\n")
    Path("seeds.csv").write_text("vector,vertex,weight\na,1,1\n")
    Path("p.toml").write_text('[matrix.g]\nsource = "edges.txt"\n[run]\ntol = 1e-3\n')
    np.save("x.npy", np.ones(4))
    Path("out").mkdir()
    for folder in ("", "out/"):
        info = mg.ingest("edges.txt", f"{folder}g.zarr", kind="graph").info
        ranks = mg.pagerank(mg.open_matrix(f"{folder}g.zarr"))
        ranks.save(f"{folder}r.zarr")
    ranks.save("r.parquet")
    return info.digest, ranks.digest()


def check(*args: str) -> str:
    """The one line of a command that ends with 4."""
    answer, said = invoke(*args, "--json", code=4)
    message: str = json.loads(answer)["error"]["message"]
    assert said.splitlines()[-1] == f"error: {message}"
    assert not re.search("not expected|Errno", message)
    return message


def check_kept(made) -> None:
    assert sorted(os.listdir("out")) == ["g.zarr", "r.zarr"]
    assert len(mg.list_versions("out/g.zarr")) == 1
    assert len(list(Path("out/g.zarr/versions").glob("v*"))) == 1
    assert not mg.verify("out/g.zarr")
    assert (mg.open_matrix("out/g.zarr").info.digest, mg.load_solution("out/r.zarr").digest()) == made


@pytest.mark.parametrize("events", [("open", "os.mkdir", "os.rename"), ("open", "os.rename")], ids=["folders", "files"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_room_for_what_is_written(made, name, events):
    with refuse(errno.ENOSPC, "out", events):
        message = check(*WRITERS[name])
    assert str(Path("out").absolute()) in message or "out" in message
    assert " inodes are free there; free some space, or choose a path on another disk" in message
    check_kept(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generate", "transpose", "update", "anndata", "ranks again"])
def test_no_room_from_some_file_on(made, name):
    for n_allowed in range(1, 100):
        with refuse(errno.ENOSPC, "out", ("open", "os.rename"), n_allowed=n_allowed):
            try:
                said = check(*WRITERS[name])
            except AssertionError:  # it ended with 0: there was room for all of it
                assert n_allowed > 2
                invoke("verify", "out/g.zarr")
                return
        assert "no space left on device; " in said, n_allowed
        check_kept(made)
    pytest.fail("it never had enough room")


@pytest.mark.parametrize("number", REMEDIES, ids=errno.errorcode.get)
def test_every_error_has_its_remedy(made, number):
    with refuse(number, "out"):
        message = check(*WRITERS["generate"])
        with pytest.raises(StoreError) as raised:
            mg.generate("rmat", "out/n.zarr", scale=5)
    assert isinstance(raised.value.__cause__, OSError)
    assert all(part in message for part in REMEDIES[number].split("; ")), message
    check_kept(made)


@pytest.mark.parametrize("name", READERS)
def test_no_permission_for_what_is_read(made, name):
    args, path = READERS[name]
    with refuse(errno.EACCES, path, reading=True):
        message = check(*args)
    assert path in message
    assert "permission denied; " in message
    assert message.endswith("change its mode or owner, or choose another path")
    assert not list(Path().glob("n.*"))


def test_a_source_has_its_own_error(made):
    with refuse(errno.EACCES, ".", reading=True), pytest.raises(SourceAccessError, match="permission denied") as raised:
        mg.ingest("edges.txt", "n.zarr")
    assert raised.value.source == "edges.txt"


@pytest.mark.parametrize("name", ["generate", "Matrix Market", "Parquet", "anndata", "ranks as Zarr", "log", "report"])
def test_names_that_are_too_long(made, name):
    args = [arg.replace("out/n", f"out/{'n' * 300}") for arg in WRITERS[name]]
    message = check(*args)
    assert message.endswith("file name too long; choose a shorter name")
    check_kept(made)


DISKS = {
    "full": ("size=400k", "inodes are free there; free some space"),
    "without inodes": ("nr_inodes=60", " 0 inodes are free there; free some space"),
    "read-only": ("size=400k", "mount its file system for writing"),
}


@pytest.mark.external("mount")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts disks")
@pytest.mark.parametrize("name", DISKS)
def test_disks(made, name):
    options, remedy = DISKS[name]
    Path("disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "disk"], check=True)
    try:
        digest = mg.generate("rmat", "disk/g.zarr", scale=6).info.digest
        mg.pagerank(mg.open_matrix("disk/g.zarr")).save("disk/r.zarr")
        if name == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", "disk"], check=True)
        else:
            _fill(Path("disk"), whole=name == "full")
        for args in (
            ["generate", "rmat", "disk/g.zarr", "--scale", "9", "--overwrite"],
            ["transpose", "disk/g.zarr"],
            ["reorder", "g.zarr", "disk/n.zarr"],
            ["export", "disk/g.zarr", "disk/n.mtx"],
            ["pagerank", "disk/g.zarr", "-o", "disk/r.zarr", "--overwrite"],
            ["pagerank", "disk/g.zarr", "-o", "disk/n.parquet"],
        ):
            message = check(*args)
            known = remedy, "0 B of disk are free; "
            assert any(said in message for said in known), args
        assert mg.open_matrix("disk/g.zarr").info.digest == digest
        assert not mg.verify("disk/g.zarr")
        assert mg.load_solution("disk/r.zarr").top(1)
        assert not [path for path in os.listdir("disk") if path not in ("g.zarr", "r.zarr", "fill")]
    finally:
        subprocess.run(["umount", "--lazy", "disk"], check=True)


def _fill(disk: Path, *, whole: bool) -> None:
    """Leave no room, or no inode."""
    (disk / "fill").mkdir()
    with suppress(OSError):
        for k in range(1 << 20):
            (disk / "fill" / str(k)).write_bytes(bytes(4096) if whole else b"")
