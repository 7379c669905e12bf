"""The one place where backend and kernel are chosen."""

from __future__ import annotations

from mgspmv.errors import OptionError
from mgspmv.kernels.cpu import CpuBlock, SerialBlock
from mgspmv.model import CsrBlock, Precision

KERNELS: dict[str, type[CpuBlock]] = {"csr-rows": CpuBlock, "csr-serial": SerialBlock}
"""Kernels by the name a user gives."""


def bind_kernel(block: CsrBlock, precision: Precision, *, kernel: str = "auto", threads: int | None = None) -> CpuBlock:
    """Bind the kernel that suits a block, or the one that is named, to it.

    Raises
    ------
    OptionError : no kernel has that name
    """
    if kernel == "auto":
        kernel = "csr-rows"
    if kernel not in KERNELS:
        raise OptionError(f"kernel must be 'auto' or one of {', '.join(KERNELS)}, not {kernel!r}")
    return KERNELS[kernel](block, precision, threads)
