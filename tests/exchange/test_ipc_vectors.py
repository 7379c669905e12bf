"""Vectors of which processes of this host write parts, and those that cannot send theirs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mgspmv.exchange import ipc
from mgspmv.exchange.ipc import LEAST_BYTES, SharedVector, WrittenElements

N = LEAST_BYTES // 4
BOUNDS = (0, 1000, 1000, N)
WRITER = """
import sys
import numpy as np
from mgspmv.exchange.ipc import VectorAddress
host, pid, descriptor, device, inode = sys.argv[1:]
address = VectorAddress(host, int(pid), int(descriptor), (int(device), int(inode)))
print(address.write(3, np.arange(4, dtype=np.float32)).dtype)
"""


def make_parts(dtype):
    whole = np.random.default_rng(1).random(N).astype(dtype)
    return whole, [whole[a:b] for a, b in pairwise(BOUNDS)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sent", [[], [0], [2], [0, 1, 2]])
def test_parts_are_joined_wherever_they_are(dtype, sent, monkeypatch):
    monkeypatch.setattr(ipc, "WRITTEN_BYTES", 10_000)
    whole, parts = make_parts(dtype)
    with SharedVector(N) as vector:
        told = [
            part if k in sent else vector.address.write(start, part, threads=2)
            for k, (part, start) in enumerate(zip(parts, BOUNDS, strict=False))
        ]
        joined = vector.join(told, BOUNDS)
    assert all(isinstance(part, WrittenElements) != (k in sent) for k, part in enumerate(told))
    gc.collect()
    assert joined.dtype == dtype
    np.testing.assert_array_equal(joined, whole)
    joined[0] = 1  # a vector of the user


def test_another_process_writes_by_the_address():
    with SharedVector(N) as vector:
        at = vector.address
        words = [at.host, at.pid, at.descriptor, *at.file]
        made = subprocess.run([sys.executable, "-c", WRITER, *map(str, words)], stdout=subprocess.PIPE, check=True)
        joined = vector.join([WrittenElements(made.stdout.decode().strip())], (0, N))
    assert joined[:8].tolist() == [0, 0, 0, 0, 1, 2, 3, 0]


def test_a_process_that_cannot_write_says_so():
    values = np.ones(4)
    with SharedVector(N) as vector, open(os.devnull, "rb") as other:
        at = vector.address
        assert replace(at, host="another").write(0, values) is None
        assert replace(at, pid=2**22 + 1).write(0, values) is None
        assert replace(at, descriptor=other.fileno()).write(0, values) is None, "a descriptor of another file"
        assert at.write(0, [1.0]) is None, "no array"
        assert at.write(0, np.ones((2, 2))) is None, "no vector"
    assert at.write(0, values) is None, "the file was closed"


def test_small_vectors_have_no_file():
    with SharedVector(LEAST_BYTES // 8 - 1) as vector:
        assert vector.address is None
        assert vector.join([np.ones(2), np.zeros(1)], (0, 2, 3)).tolist() == [1, 1, 0]
