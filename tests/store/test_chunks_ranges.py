"""Arrays that several processes write, each a range."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
from zarr.storage import MemoryStore

from mgspmv.errors import OptionError, StoreDamagedError
from mgspmv.store.chunks import write_range
from mgspmv.store.digests import digest_array
from mgspmv.store.write import begin_version


@pytest.fixture
def begin_array(tmp_path, small_chunks):
    """`begin_array(n)` is a version under construction with an array of n elements, and the elements."""
    places = []
    with ExitStack() as stack:

        def begin(n):
            version = stack.enter_context(begin_version(tmp_path / str(len(places))))
            places.append(version.place)
            version.create_array("indptr", n, np.int64)
            elements = np.random.default_rng(n).integers(0, 50, n)
            elements[: n // 2] = 0  # chunks of zeros are written too
            return version, elements

        yield begin


@pytest.mark.parametrize("cuts", [[], [0.5], [0.0, 0.3, 0.301, 0.302, 0.9, 1.0]])
def test_an_array_that_several_write(begin_array, cuts):
    for n in (0, 1, 99, 100, 101, 730):
        version, elements = begin_array(n)
        bounds = [0, *(int(cut * n) for cut in cuts), n]
        ranges = []
        for start, stop in pairwise(bounds):
            array = pickle.loads(pickle.dumps(version.address())).open("indptr")
            ranges.append(write_range(array, start, elements[start:stop], threads=2))
        version.finish_array("indptr", ranges[::-1])
        written = version.written["indptr"]
        assert written.digest == digest_array(elements), n
        chunks = version.place / version.group.path / "indptr" / "c"
        assert len(list(chunks.iterdir()) if n else []) == -(-n // 100)
        last = [(chunks / str(k)).read_bytes()[-4:] for k in range(-(-n // 100))]
        assert written.checksums.tobytes() == b"".join(last)
        np.testing.assert_array_equal(version.group["indptr"][:], elements)


def test_an_array_of_which_a_range_is_missing(begin_array):
    for lost in (0, 1, 2):
        version, elements = begin_array(730)
        ranges = [
            write_range(version.address().open("indptr"), start, elements[start:stop])
            for k, (start, stop) in enumerate([(0, 250), (250, 260), (260, 730)])
            if k != lost
        ]
        with pytest.raises(StoreDamagedError, match=r"indptr: \d of 8 chunks were not written"):
            version.finish_array("indptr", ranges)


def test_a_version_in_the_memory_of_this_process_has_no_address():
    with begin_version(MemoryStore()) as version, pytest.raises(OptionError, match="in the memory of"):
        version.address()
