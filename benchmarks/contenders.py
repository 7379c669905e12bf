"""What is timed: the kernels of this project, and the products of other programs beside them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from benchmarks.cusparse import ALGORITHMS, CusparseProduct
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock, Precision

PEERS: dict[Backend, tuple[str, ...]] = {"cpu": ("scipy",), "cuda": tuple(ALGORITHMS)}
"""Other programs by backend; the fastest of them is what ratios are to."""
PEER_TITLES = {"cpu": "SciPy", "cuda": "cuSPARSE"}


class Contender(Protocol):
    """A product with its matrix and its vectors, which it is given once."""

    y: Any
    """Where the product is after a run."""
    nbytes: int
    """Bytes of the matrix as it is read."""

    @property
    def preprocess_s(self) -> float | None:
        """Seconds of its preprocessing, where it has a step of that name."""
        ...

    def run(self) -> None:
        """Make, or enqueue, y = A x."""
        ...

    def close(self) -> None:
        """Free what the language does not."""
        ...


class OurProduct:
    """A kernel of this project.

    Raises
    ------
    FormatError : it cannot do the matrix
    """

    preprocess_s = None

    def __init__(self, name: str, backend: Backend, block: CsrBlock, x: Any, y: Any) -> None:
        precision: Precision = "float32" if x.dtype == np.float32 else "float64"
        self._bound = bind_kernel(block, precision, kernel=name, backend=backend)
        self._x, self.y = x, y
        self.nbytes = self._bound.nbytes

    def run(self) -> None:
        self._bound.multiply(self._x, self.y)

    def close(self) -> None:
        pass


class SciPyProduct:
    """`A @ x` of SciPy, which knows no pattern: its matrix holds ones."""

    preprocess_s = None

    def __init__(self, block: CsrBlock, x: Any, y: Any) -> None:
        import scipy.sparse

        data = np.ones(block.nnz, x.dtype) if block.data is None else block.data
        shape = (block.n_rows, block.n_cols)
        self._matrix = scipy.sparse.csr_array((data, block.indices, block.indptr), shape=shape)
        self._x, self.y = x, y
        self.nbytes = sum(part.nbytes for part in (self._matrix.indptr, self._matrix.indices, self._matrix.data))

    def run(self) -> None:
        self.y = self._matrix @ self._x

    def close(self) -> None:
        pass


class CusparseContender:
    """cuSPARSE's product with one of its algorithms.

    Raises
    ------
    BackendError : cuSPARSE refuses
    """

    def __init__(self, algorithm: str, block: CsrBlock, x: Any, y: Any) -> None:
        self._product = CusparseProduct(block, x.dtype, algorithm)
        self._x, self.y = x, y
        self.nbytes, self.preprocess_s = self._product.nbytes, self._product.preprocess_s

    def run(self) -> None:
        self._product.run(self._x, self.y)

    def close(self) -> None:
        self._product.close()


def make_contender(name: str, backend: Backend, block: CsrBlock, x: Any, y: Any) -> Contender:
    """The contender of a name, one of `PEERS` or of the kernels of the backend.

    Raises
    ------
    FormatError : it cannot do the matrix
    BackendError : cuSPARSE refuses
    """
    if name == "scipy":
        return SciPyProduct(block, x, y)
    if name in ALGORITHMS:
        return CusparseContender(name, block, x, y)
    return OurProduct(name, backend, block, x, y)
