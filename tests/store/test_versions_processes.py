"""Two writers of a store that are processes: one is stopped by SIGSTOP, or both begin at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mgspmv as mg
from tests.support import stopped
from tests.support.stopped import pack, perform

pytestmark = pytest.mark.slow

BEGUN = [(0, 1), (1, 2)]
INSERT = {"a": (2, 3), "b": (3, 4)}


class Writer:
    """One that works in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.hear() == "ready"

    def say(self, *said: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def run_writer() -> Iterator[Writer]:
    command = [sys.executable, stopped.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Writer(process)


WORKS = ("update", "ingest", "overwrite")


def make_begun(place):
    mg.ingest(pack(*BEGUN), place, n_vertices=8)


def look(place):
    entries = mg.open_matrix(place).to_scipy().tocoo()
    return sorted(zip(entries.col.tolist(), entries.row.tolist(), strict=True))


def check(place, work, done):
    """That it holds what those did that were successful, in some order; and that nothing is left after the next."""
    begun = [] if work == "ingest" else BEGUN
    if work == "update":
        wanted = [sorted(begun + [INSERT[name] for name in done])]
    else:
        wanted = [sorted([INSERT[name], (7, 7)]) for name in done]
    assert look(place) in wanted
    assert mg.verify(place) == []
    info = mg.update(place, insert=pack((6, 5)), keep=1).info
    assert sorted(os.listdir(place)) == ["versions", "zarr.json"]
    assert sorted(os.listdir(f"{place}/versions")) == [info.version, "zarr.json"]


@pytest.mark.parametrize("work", WORKS)
def test_a_writer_that_is_stopped_and_continues(work, tmp_path):
    at = 1
    with run_writer() as first:
        while True:
            place = str(tmp_path / str(at))
            if work != "ingest":
                make_begun(place)
            first.say(work, place, INSERT["a"], at)
            answer = first.hear()
            if answer == "done":
                break
            assert answer == "stopped"
            answer = perform(work, place, INSERT["b"])
            done = ["b"] * (answer == "done")
            first.say()
            if first.hear() == "done":
                done.append("a")
            assert done, at
            check(place, work, done)
            at += 7
    assert at > 20


@pytest.mark.parametrize("work", WORKS)
def test_of_two_that_begin_at_once_one_wins(work, tmp_path):
    with run_writer() as first, run_writer() as second:
        for k in range(4):
            place = str(tmp_path / str(k))
            if work != "ingest":
                make_begun(place)
            for name, writer in (("a", first), ("b", second)):
                writer.say(work, place, INSERT[name], None)
            answers = {"a": first.hear(), "b": second.hear()}
            assert all(answer == "done" or answer.startswith("StoreError: ") for answer in answers.values()), answers
            done = [name for name, answer in answers.items() if answer == "done"]
            assert done, answers
            check(place, work, done)
