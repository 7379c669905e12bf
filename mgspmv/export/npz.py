"""SciPy's `.npz` files, written array by array: as by `scipy.sparse.save_npz`, but uncompressed."""

from __future__ import annotations

import io
import zipfile
from typing import IO

import numpy as np

from mgspmv.export.arrays import ArrayName, SourceArrays
from mgspmv.model import Progress

_NAMES: tuple[ArrayName, ...] = ("indices", "indptr", "data")


def write_npz(arrays: SourceArrays, file: IO[bytes], report: Progress) -> None:
    """Write a matrix so that `scipy.sparse.load_npz` returns a csr_array or, for a graph, a csc_array."""
    total, done = sum(map(arrays.find_length, _NAMES)), 0
    with zipfile.ZipFile(file, "w") as archive:
        for name in _NAMES:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                member.write(_make_header(arrays.find_dtype(name), arrays.find_length(name)))
                for piece in arrays.read(name):
                    report("export", done, total)
                    member.write(piece.data)
                    done += len(piece)
        small = {"format": arrays.format.encode(), "shape": arrays.info.shape, "_is_array": True}
        for key, value in small.items():
            content = io.BytesIO()
            np.save(content, np.array(value))
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), content.getvalue())
    report("export", total, total)


def _make_header(dtype: np.dtype, n: int) -> bytes:
    """Return the header of a `.npy` of n elements."""
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()
