"""Headers of .npy files, of which NumPy takes room for whatever they claim."""

from __future__ import annotations

import math
from tokenize import TokenError
from typing import IO

import numpy as np

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the names of fields alone
}

NPY_DAMAGE = (ValueError, EOFError, SyntaxError, TokenError, TypeError, AttributeError, RecursionError)
"""Exceptions that NumPy was seen to raise on damaged files."""


def check_header(file: IO[bytes], n_bytes: int) -> None:
    """See that what a header claims can be in a file of so many bytes; reads the header.

    Raises
    ------
    ValueError : it cannot; there is no header, or a damaged one
    """
    read = _READERS.get(np.lib.format.read_magic(file))
    if read is None:  # NumPy's own error says which versions there are
        return
    shape, _, dtype = read(file)
    claimed, left = math.prod(shape) * max(1, dtype.itemsize), n_bytes - file.tell()
    if claimed > left and not dtype.hasobject:
        raise ValueError(
            f"its header claims {dtype} of shape {shape}, {claimed} bytes, and {left} follow: it was cut short or "
            "damaged"
        )
