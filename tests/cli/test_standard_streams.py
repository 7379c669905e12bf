"""Standard output and error that are full or closed, in processes of their own."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from tests.support.commands import ENVIRONMENT, PROGRAM, TINY_RMAT, invoke

LOST = "error: cannot write the answer to /dev/stdout: "
FULL = f"{LOST}no space left on device; it is a device that takes nothing; name a file\n"
CLOSED = f"{LOST}it is closed; redirect it to a file\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("info r.zarr > /dev/full", 4, FULL),
        ("info r.zarr --json > /dev/full", 4, FULL),
        ("pagerank r.zarr -q -o - > /dev/full", 4, FULL),
        ("--help > /dev/full", 4, FULL),
        ("info r.zarr >&-", 4, CLOSED),
        ("info r.zarr --json >&-", 4, CLOSED),
        ("pagerank r.zarr -q >&-", 0, ""),
        ("info r.zarr --json 2>&-", 0, ""),
        ("info r.zarr --json 2> /dev/full", 0, ""),
        ("info none.zarr 2> /dev/full", 4, ""),
        ("info none.zarr >&- 2>&-", 4, ""),
    ],
)
def test_an_answer_that_is_lost_is_an_error_and_a_message_is_none(command, code, said):
    invoke(*TINY_RMAT)
    done = subprocess.run(
        f"{shlex.join(PROGRAM)} {command}", shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)
    if "--json 2>" in command:
        assert json.loads(done.stdout)["kind"] == "graph"


def test_a_log_on_a_full_disk_is_one_warning():
    invoke(*TINY_RMAT)
    answer, said = invoke("pagerank", "r.zarr", "--log", "/dev/full", "--log-level", "debug", "--json")
    assert json.loads(answer)["status"] == "converged"
    assert said == (
        "warning: the log /dev/full lacks lines: no space left on device; it is a device that takes nothing; name a "
        "file; the run goes on\n"
    )
