"""Small files that other programs read otherwise, or not: what they hold here, in Python and at the command line."""

from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import SourceError
from tests.support.commands import invoke

SQUARE = sp.random_array((6, 6), density=0.5, rng=5, format="csc")


def save_npz(format):
    """Arrays as `scipy.sparse.save_npz` writes them, the name of the format in another form."""
    parts = {name: getattr(SQUARE, name) for name in ("indptr", "indices", "data")}
    file = io.BytesIO()
    np.savez(file, format=format, shape=np.array(SQUARE.shape), **parts)
    return file.getvalue()


READ = {
    "bom.mtx": (
        b"\xef\xbb\xbf%%MatrixMarket matrix coordinate real general\r\n2 2 1\r\n1 1 1.5\r\n",
        [[1.5, 0], [0, 0]],
    ),
    "single.mtx": (
        b"%MatrixMarket matrix coordinate pattern symmetric\n4 4 2\n2 1\n3 1\n",
        [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
    ),
    "skewarr.mtx": (
        b"%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3\n",
        [[0, -1, -2], [1, 0, -3], [2, 3, 0]],
    ),
    "symboth.mtx": (
        b"%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 2 4\n2 1 4\n3 3 1\n",
        [[0, 8, 0], [8, 0, 0], [0, 0, 1]],
    ),
    "old.npz": (save_npz(np.bytes_("csc")), SQUARE.toarray().tolist()),
    "infinite.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 inf\n2 1 -inf\n",
        [[np.inf, 0], [-np.inf, 0]],
    ),
}
REFUSED = {
    "short.mtx": (
        b"%%MatrixMarket matrix coordinate pattern general\n4 4 5\n2 1\n3 1\n",
        "line 2: '4 4 5': expected 5 entries, the file ends after 2; it is cut short or its size line is wrong",
    ),
    "patvals.mtx": (
        b"%%MatrixMarket matrix coordinate pattern symmetric\n%bio\n3 3 2\n2 1 0.5\n3 1 0.7\n",
        "line 4: '2 1 0.5': expected 'row column', found 3 columns",
    ),
    "obj.npz": (save_npz(np.array("csr", object)), "Object arrays cannot be loaded when allow_pickle=False"),
    "ui.mtx": (
        b"%%MatrixMarket matrix coordinate unsigned-integer general\n2 2 2\n1 1 18446744073709551615\n2 1 3\n",
        "line 3: '1 1 18446744073709551615': expected value to be a 64-bit integer",
    ),
    "gb1.mtx": (
        b"%%MatrixMarket matrix coordinate integer general\n%%GraphBLAS type float\n2 2 2\n1 1 inf\n2 1 -inf\n",
        "line 4: '1 1 inf': expected value to be a 64-bit integer, found 'inf'",
    ),
    "isum.mtx": (
        b"%%MatrixMarket matrix coordinate integer general\n2 2 3\n1 2 4611686018427387904\n1 2 4611686018427387904\n"
        b"2 1 1\n",
        "the sum of duplicate entries does not fit into int64",
    ),
}
IN_FLOAT64 = {
    "ui.mtx": [[1.8446744073709552e19, 0], [3, 0]],
    "gb1.mtx": [[np.inf, 0], [-np.inf, 0]],
    "isum.mtx": [[0, 9223372036854775808], [1, 0]],
}
"""Of those that are refused."""
UNREAD_BY_SCIPY = ("bom.mtx",)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, (content, _) in (READ | REFUSED).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def read_store():
    return mg.open_matrix("s.zarr").to_scipy().toarray().tolist()


@pytest.mark.parametrize("name", READ)
def test_files_that_are_read(name):
    wanted = READ[name][1]
    if name not in UNREAD_BY_SCIPY:
        found = sp.load_npz(name) if name.endswith(".npz") else scipy.io.mmread(name)
        assert (found if isinstance(found, np.ndarray) else found.toarray()).tolist() == wanted
    mg.ingest(name, "s.zarr")
    assert read_store() == wanted
    invoke("ingest", name, "s.zarr", "--overwrite")
    assert read_store() == wanted


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(name, folder):
    message = REFUSED[name][1]
    with pytest.raises(SourceError) as caught:
        mg.ingest(name, "s.zarr")
    assert message in str(caught.value)
    assert ("float64" in str(caught.value)) == (name in IN_FLOAT64)
    _, stderr = invoke("ingest", name, "s.zarr", code=3)
    assert message in " ".join(stderr.split())
    assert not (folder / "s.zarr").exists()


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_files_that_float64_holds(name):
    mg.ingest(name, "s.zarr", dtype="float64")
    assert read_store() == IN_FLOAT64[name]
    invoke("ingest", name, "s.zarr", "--dtype", "float64", "--overwrite")
    assert read_store() == IN_FLOAT64[name]


def test_signs_of_zeros_do_not_depend_on_the_type():
    """Integers have no -0.0, read as float64 or not."""
    for symmetry, entry in (("general", "2 1 -0"), ("skew-symmetric", "2 1 0")):
        text = f"%%MatrixMarket matrix coordinate integer {symmetry}\n2 2 1\n{entry}\n"
        with open("z.mtx", "w") as file:
            file.write(text)
        assert not np.signbit(mg.ingest("z.mtx", "s.zarr", dtype="float64", overwrite=True).to_scipy().data).any()
