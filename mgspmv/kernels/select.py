"""The one place where backend and kernel are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

from mgspmv.errors import OptionError
from mgspmv.kernels.cpu import CpuBlock, SerialBlock
from mgspmv.kernels.device import check_device, has_device
from mgspmv.model import CsrBlock, Precision, check_choice

if TYPE_CHECKING:
    from mgspmv.kernels.cuda import CudaBlock

Backend = Literal["cpu", "cuda"]
BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")
EVEN_ROWS = 4
"""Times the mean that the longest row may have for csr-vector; beyond it rows wait for the longest of their group."""


@dataclass(frozen=True)
class Kernel:
    """What a user may choose."""

    name: str
    summary: str
    """What it does, in a line."""
    backends: tuple[Backend, ...] = BACKENDS
    """Those that have it; on `cpu` a kernel of both is the twin of the one for CUDA, in one thread."""
    step_backends: tuple[Backend, ...] = ()
    """Those where it also makes the steps of PageRank."""
    needs: str | None = None
    """What a matrix must be like for it; None where it can do every matrix."""


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("csr-rows", "rows cut into parts of equal bytes, a thread a part", ("cpu",), ("cpu",)),
        Kernel("csr-serial", "one thread for all rows", ("cpu",), ("cpu",)),
        Kernel("csr-scalar", "CSR, a thread a row"),
        Kernel("csr-warp", "CSR, 32 lanes a row, reduced in shared memory"),
        Kernel("csr-vector", "CSR, 1 to 32 lanes a row after its mean length, reduced by shuffles"),
        Kernel("csr-cached", "CSR, a thread a row, with the part of x near the diagonal in shared memory"),
        Kernel("csr-split", "CSR, nonzeros and row ends in equal chunks (merge path)", step_backends=("cuda",)),
        Kernel("ell", "rows padded to the longest, a thread a row", needs="rows of about the same length"),
        Kernel("coo", "entries in equal chunks, by segmented sums"),
        Kernel("dia", "whole diagonals, a thread a row", needs="entries on few diagonals"),
        Kernel("hyb", "the first entries of each row as ell, the others as coo"),
        Kernel("bsr", "dense blocks of 2 x 2 to 5 x 5, a warp a row of blocks", needs="entries in small dense blocks"),
        Kernel("sell", "slices of 32 rows of about the same length (SELL-C-sigma), a thread a row"),
    )
}
"""Kernels by the name a user gives."""


def choose_backend(backend: str) -> Backend:
    """The backend itself; for `auto` CUDA where there is a device, else the CPU.

    Raises
    ------
    BackendError : CUDA cannot be used here
    """
    check_choice("backend", backend, ("auto", *BACKENDS))
    if backend == "cpu":
        return "cpu"
    if backend == "cuda":
        check_device()
        return "cuda"
    return "cuda" if has_device() else "cpu"


def list_kernels(backend: str, *, for_steps: bool = False) -> list[str]:
    """Names of the kernels that a backend has, or of those that make the steps of PageRank on it."""
    check_choice("backend", backend, BACKENDS)
    return [k.name for k in KERNELS.values() if backend in (k.step_backends if for_steps else k.backends)]


@overload
def bind_kernel(
    block: CsrBlock,
    precision: Precision,
    *,
    kernel: str = ...,
    backend: Literal["cpu"] = ...,
    threads: int | None = ...,
) -> CpuBlock: ...


@overload
def bind_kernel(
    block: CsrBlock, precision: Precision, *, kernel: str = ..., backend: Backend, threads: int | None = ...
) -> CpuBlock | CudaBlock: ...


def bind_kernel(
    block: CsrBlock,
    precision: Precision,
    *,
    kernel: str = "auto",
    backend: Backend = "cpu",
    threads: int | None = None,
) -> CpuBlock | CudaBlock:
    """Bind the kernel that suits a block, or the one that is named, to it.

    Parameters
    ----------
    threads : of csr-rows on `cpu`; the other kernels have a fixed number

    Raises
    ------
    OptionError : the backend has no kernel of that name
    FormatError : the kernel cannot do this matrix
    """
    _check_kernel(kernel, list_kernels(backend), backend)
    if backend == "cuda":
        from mgspmv.kernels.cuda import CudaBlock

        return CudaBlock(block, precision, _suit_rows(block) if kernel == "auto" else kernel)
    if kernel in ("auto", "csr-rows"):
        return CpuBlock(block, precision, threads)
    if kernel == "csr-serial":
        return SerialBlock(block, precision, threads)
    from mgspmv.kernels.twins import TwinBlock

    return TwinBlock(block, precision, kernel)


def check_step_kernel(kernel: str, backend: Backend = "cpu") -> None:
    """
    Raises
    ------
    OptionError : the backend has no kernel of that name that makes the steps of PageRank
    """
    names = list_kernels(backend, for_steps=True)
    if kernel not in names and kernel in list_kernels(backend):
        raise OptionError(
            f"kernel {kernel!r} is for products; for PageRank on backend {backend!r} pass 'auto' or one of "
            f"{', '.join(names)}"
        )
    _check_kernel(kernel, names, backend)


def _suit_rows(block: CsrBlock) -> str:
    """The CUDA kernel for rows of about the same length, or the one for all others."""
    if not block.n_rows:
        return "csr-split"
    longest = int((block.indptr[1:] - block.indptr[:-1]).max())
    return "csr-vector" if longest <= EVEN_ROWS * max(1.0, block.nnz / block.n_rows) else "csr-split"


def _check_kernel(kernel: str, names: list[str], backend: str) -> None:
    if kernel == "auto" or kernel in names:
        return
    if kernel in KERNELS:
        raise OptionError(
            f"kernel {kernel!r} is not on backend {backend!r}; pass 'auto' or one of {', '.join(names)} there"
        )
    raise OptionError(f"kernel must be 'auto' or one of {', '.join(names)}, not {kernel!r}")
