"""Pipelines at the command line."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.support.commands import invoke, invoke_json, start
from tests.support.waiting import HANG_S

QUICKSTART = """
folder = "q"
[matrix.g]
generate = "rmat"
parameters = {scale = 16, seed = 1}
[run]
tol = 1e-6
top = 10
"""


def test_run():
    Path("q.toml").write_text(QUICKSTART)
    small = ["--set", "matrix.g.parameters.scale=7", "--set", "run.alpha=0.5"]
    stdout, stderr = invoke("run", "q.toml", *small, "--dry-run")
    assert "not made yet" in stdout
    assert "q in q: 0 of 2 steps are kept" in stdout
    assert not Path("q").exists()
    stdout, stderr = invoke("run", "q.toml", *small)
    for shown in ("\n  10 ", "iterations", "128 x 128, ", "q/g.zarr", "q/g/pagerank", "q: 2 made, in "):
        assert shown in stdout
    assert stderr == ""
    answer = invoke_json("run", "q.toml", *small)
    assert [step["state"] for step in answer["steps"]] == ["kept", "kept"]
    assert answer["steps"][1]["record"]["options"]["alpha"] == 0.5
    answer = invoke_json("run", "q.toml", *small, "--set", "run.max_iter=1", "--dry-run")
    assert [step["state"] for step in answer["steps"]] == ["kept", "to make"]
    answer = invoke_json("run", "q.toml", *small, "--set", "run.max_iter=1", code=5)
    assert answer["error"]["type"] == "StepsFailedError"
    assert [step["state"] for step in answer["steps"]] == ["kept", "failed"]
    stdout, stderr = invoke("run", "q.toml", *small, "--set", "run.max_iter=1", code=5)
    assert "PageRank did not converge: L1 change" in stdout
    [line] = stderr.splitlines()
    assert line.startswith("error: g/pagerank: PageRank did not converge: L1 change")
    for wrong in ("alpha", "=0.9"):
        assert f"--set {wrong}: expected KEY=VALUE" in invoke("run", "q.toml", "--set", wrong, code=2)[1]


@pytest.mark.slow
def test_a_terminal_shows_the_steps_of_a_run():
    Path("q.toml").write_text(QUICKSTART)
    Path("bad.txt").write_text("1 2\n1\n")
    more = ["--set", "matrix.g.parameters.scale=7", "--set", "matrix.bad.source=bad.txt"]
    terminal, stderr = pty.openpty()
    with start("run", "q.toml", *more, stdout=subprocess.PIPE, stderr=stderr) as process:
        os.close(stderr)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 4096):
                shown += part
        stdout, _ = process.communicate(timeout=HANG_S)
    os.close(terminal)
    assert process.returncode == 3
    assert b"g (1 of 4): " in shown
    assert "(1 of 4)" not in stdout


def test_run_of_which_all_fails():
    Path("q.toml").write_text(QUICKSTART)
    more = ["--set", 'matrix.g={source="none.txt"}']
    said = "g: none.txt: there is no such file; check the path"
    assert invoke("run", "q.toml", *more, code=3) == ("", f"error: {said}\n")
    answer = invoke_json("run", "q.toml", *more, code=3)
    assert answer["error"]["message"] == said
    assert [step["state"] for step in answer["steps"]] == ["failed", "skipped"]


def test_run_that_is_interrupted(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mgspmv.pipeline.make_matrix", interrupt)
    Path("q.toml").write_text(QUICKSTART)
    _, stderr = invoke("run", "q.toml", code=130)
    assert "interrupted; no step is done yet; run it again to resume" in stderr


def test_a_run_shows_what_sources_are_warned_of():
    table = pa.table({"src": [0, 1], "dst": [1, 2], "weight": [1254192988, 1254203000]})
    pa.parquet.write_table(table, "when.parquet")
    Path("w.toml").write_text('folder = "w"\n[matrix.g]\nsource = "when.parquet"\n[run]\n')
    lines = invoke("run", "w.toml")[0].splitlines()
    assert [line for line in lines if "g: warning: column 3 'weight' looks like times (2009-09-29 .. " in line]
