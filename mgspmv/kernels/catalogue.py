"""Kernels that a user can name, each with its summary, literature, requirements and implementation.

The header of a CUDA source gives the thread mapping. The other parts are named after the kernel, such as `csr-split`:

    mgspmv.kernels.cuda_products.csr_split  launches it on a format
    mgspmv.kernels.reference.csr_split     the reference on the CPU, which adds in the same order

The builder, which makes the format of a block on the block's device, is the same for both. Parts are imported on first
use, so that this table is cheap to read.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mgspmv.model import CsrBlock

Backend = Literal["cpu", "cuda"]
BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Kernel:
    """Kernel that a user selects by name."""

    name: str
    summary: str
    """Summary in one line."""
    literature: str = ""
    """Source in the literature."""
    operation: Literal["sparse", "dense", "sum"] = "sparse"
    """Operation: y = alpha A x + beta y for a sparse A, y = A x + b for a dense one, or the sum of x."""
    backends: tuple[Backend, ...] = BACKENDS
    """Backends with this kernel; on `cpu`, a kernel of both backends is its single-threaded reference."""
    step_backends: tuple[Backend, ...] = ()
    """Backends where it also computes PageRank steps."""
    needs: str | None = None
    """Requirement on the matrix; None if every matrix is supported."""
    builder: str | None = None
    """Function in `mgspmv.kernels` that builds its format of a block, such as `formats:build_ell`; None for CSR."""
    takes_dtype: bool = False
    """True if the format depends on the dtype of the sums."""
    keeps_csr: bool = True
    """True if CSR is read in addition to the format, False if the format replaces it."""

    @property
    def reference(self) -> Callable[..., None]:
        """CPU reference, called with (*operands, x, y, alpha, beta), (A, x, b, y) or (x), by the operation."""
        return self._find("reference")

    @property
    def launcher(self) -> Callable[[CsrBlock, Any, dict[str, Any]], Any]:
        """Function of (block, format, types): a `mgspmv.kernels.cuda_products.Product` on the current device."""
        return self._find("cuda_products")

    def build(self, block: CsrBlock, dtype: Any) -> Any:
        """Build the format of a block on the block's device; None for kernels that read CSR itself.

        Parameters
        ----------
        dtype : of the sums, and of the values that a pattern gets in a format that needs values

        Raises
        ------
        FormatError : the kernel does not support this matrix
        """
        if self.builder is None:
            return None
        if not self.keeps_csr:  # builders compute places in int64
            block = replace(block, indptr=block.indptr.astype("int64", copy=False))
        make = pkgutil.resolve_name(f"mgspmv.kernels.{self.builder}")
        return make(block, dtype=dtype) if self.takes_dtype else make(block)

    def count_bytes(self, block: CsrBlock, made: Any) -> int:
        """Count the bytes of the matrix that the kernel keeps.

        Parameters
        ----------
        made : the block's format
        """
        return int((block.nbytes if self.keeps_csr else 0) + getattr(made, "nbytes", 0))

    def bind_reference(self, block: CsrBlock, made: Any) -> Callable[..., None]:
        """Bind the reference to a format and return a function of (x, y, alpha, beta).

        Its first parameters are named after attributes of the format or of the block.
        """
        names = list(inspect.signature(self.reference).parameters)[:-4]
        return partial(self.reference, *(getattr(made if hasattr(made, name) else block, name) for name in names))

    def _find(self, module: str) -> Callable[..., Any]:
        found: Callable[..., Any] = pkgutil.resolve_name(f"mgspmv.kernels.{module}:{self.name.replace('-', '_')}")
        return found


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "csr-rows",
            "rows cut into parts of equal bytes, one thread per part",
            backends=("cpu",),
            step_backends=("cpu",),
        ),
        Kernel("csr-serial", "csr-rows in one thread", backends=("cpu",), step_backends=("cpu",)),
        Kernel(
            "csr-scalar",
            "CSR, one thread per row",
            "Nickolls, Buck, Garland, Skadron, ACM Queue 6(2), 2008; alpha and beta as in AMD lab notes, 2023",
        ),
        Kernel(
            "csr-warp",
            "CSR, 32 lanes per row, reduced in shared memory",
            'Bell, Garland, NVIDIA NVR-2008-004, 2008 ("vector")',
        ),
        Kernel(
            "csr-vector",
            "CSR, 1 to 32 lanes per row by the mean row length, reduced by shuffles; short rows are staged",
            "Bell, Garland 2008; AMD lab notes 2023; Greathouse, Daga, SC 2014",
            builder="csr_cuts:plan_vector",
        ),
        Kernel(
            "csr-cached",
            "CSR, one thread per row, with 1,024 columns of x about the diagonal in shared memory",
            "Nickolls et al. 2008",
        ),
        Kernel(
            "csr-split",
            "CSR, nonzeros and row ends in equal chunks (merge path), by segmented scan",
            "Merrill, Garland, SC 2016, and NVR-2016-002 (look-back); Blelloch, Heroux, Zagha 1993",
            step_backends=("cuda",),
            builder="csr_cuts:build_split",
        ),
        Kernel(
            "csr-compact",
            "CSR with columns of 16 bits, relative to the least of 512 entries, by segmented scan",
            "Kourtis, Goumas, Koziris, CF 2008; Liu, Vinter, ICS 2015; Blelloch, Heroux, Zagha 1993",
            needs="columns of adjacent rows within 65,536",
            builder="csr_cuts:build_compact",
        ),
        Kernel(
            "csr-many",
            "CSR, many vectors at once: entries in equal pieces, one group of 4 to 16 threads per piece",
            "this project's; groups of threads for a row of X as in Yang, Buluç, Owens, Euro-Par 2018",
            builder="csr_cuts:build_stream",
        ),
        Kernel(
            "ell",
            "rows padded to the longest, entries in columns, one thread per row",
            "Bell, Garland 2008",
            needs="rows of about the same length",
            builder="formats:build_ell",
            keeps_csr=False,
        ),
        Kernel(
            "coo",
            "entries in equal chunks, by segmented scan",
            "Bell, Garland 2008",
            step_backends=("cuda",),
            builder="formats:build_coo",
            keeps_csr=False,
        ),
        Kernel(
            "dia",
            "whole diagonals, one thread per row; no column is stored",
            "Bell, Garland 2008",
            needs="entries on few diagonals",
            builder="formats:build_dia",
            takes_dtype=True,
            keeps_csr=False,
        ),
        Kernel(
            "hyb",
            "the first entries of each row as ell, the others as coo",
            "Bell, Garland 2008",
            builder="formats:build_hyb",
            keeps_csr=False,
        ),
        Kernel(
            "bsr",
            "dense blocks of 2 x 2 to 5 x 5 (register blocking), one warp per row of blocks",
            "Im, Yelick, Vuduc, IJHPCA 18(1), 2004",
            needs="entries in small dense blocks",
            builder="formats:build_bsr",
            takes_dtype=True,
            keeps_csr=False,
        ),
        Kernel(
            "sell",
            "slices of 32 rows, sorted by length in windows of 1,024 (SELL-C-sigma), one thread per row",
            "Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014",
            builder="formats:build_sell",
            keeps_csr=False,
        ),
        Kernel(
            "column-sorted-tiles",
            "equal parts of blocks of rows, their entries in order of columns, no two of a tile in one row",
            "this project's; columns in order as in Lakhotia, Kannan, Prasanna, USENIX ATC 2018",
            needs="fewer than 2^31 rows and columns",
            builder="column_sorted_tiles:build_column_sorted_tiles",
            takes_dtype=True,
            keeps_csr=False,
        ),
        Kernel(
            "column-sorted-blocks",
            "PageRank: entries of many rows in order of columns, added in shared memory",
            "this project's, after Lakhotia, Kannan, Prasanna, USENIX ATC 2018",
            backends=(),
            step_backends=("cuda",),
        ),
        Kernel(
            "sell-slices",
            "PageRank: 32 rows padded to the longest (SELL-32), one thread per row",
            "sliced ELLPACK, Monakov, Lokhmotov, Avetisyan, HiPEAC 2010",
            backends=(),
            step_backends=("cuda",),
        ),
        Kernel("dense-rows", "dense, one thread per row", "Nickolls et al. 2008", operation="dense"),
        Kernel(
            "dense-block",
            "dense, one thread block per row, with a parallel reduction",
            "Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007",
            operation="dense",
        ),
        Kernel(
            "dense-tiles",
            "dense, tiles of 64 rows and 1,024 columns over a grid, then the tiles' sums",
            "Abdelfattah, Keyes, Ltaief, ACM TOMS 42(3), 2016",
            operation="dense",
        ),
        Kernel(
            "sum-pairwise",
            "chunks of 4,096 elements, each by a parallel reduction",
            "Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007",
            operation="sum",
        ),
    )
}
"""Kernels by name."""
SPARSE_KERNELS = [kernel for kernel in KERNELS.values() if kernel.operation == "sparse"]
"""Kernels of products with sparse matrices, and of PageRank steps."""
