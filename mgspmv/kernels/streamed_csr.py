"""Products with rows that do not fit on a device: CSR is streamed in pieces, each multiplied by csr-split."""

from __future__ import annotations

from typing import Any, Literal

from mgspmv.errors import FormatError
from mgspmv.kernels.cuda import CudaBlock, OnDevice
from mgspmv.kernels.device import read_block, report_full_device
from mgspmv.kernels.formats import cut_pieces
from mgspmv.kernels.streaming import hold_pieces
from mgspmv.model import CsrBlock
from mgspmv.plan import Streaming
from mgspmv.store.read import StoredMatrix


class StreamedCsr(OnDevice):
    """Rows of a stored matrix for products on the current device, streamed as far as they do not fit.

    Parameters
    ----------
    start, stop : first row, and row after the last
    dtype : of the values and of x; `is_pattern` leaves the values out
    kernel : `auto` or `csr-split`

    Raises
    ------
    FormatError : another kernel, which needs all rows on the device at once
    CapacityError : the pieces do not fit on host or device
    """

    def __init__(
        self,
        stored: StoredMatrix,
        start: int,
        stop: int,
        dtype: Literal["float32", "float64"],
        streaming: Streaming,
        *,
        is_pattern: bool,
        threads: int | None = None,
        kernel: str = "auto",
    ) -> None:
        if kernel not in ("auto", "csr-split"):
            raise FormatError(
                f"kernel {kernel!r} needs all rows on the device, where they do not fit; pass kernel='auto' or "
                "'csr-split'"
            )
        self._dtype: Literal["float32", "float64"] = dtype
        indptr = stored.read_array("indptr", start, stop + 1, threads)
        self._cuts = cut_pieces(indptr - indptr[0], streaming.piece_entries)
        values = None if is_pattern else dtype

        def make(k: int) -> CsrBlock:
            return read_block(stored, start + self._cuts[k], start + self._cuts[k + 1], values, threads)

        with report_full_device("the part of the matrix that stays on the device"):
            self.feed = hold_pieces(make, len(self._cuts) - 1, streaming)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.feed.nbytes

    def multiply(self, x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute y = alpha A x + beta y in place, as `CudaBlock.multiply` does."""
        for k, piece in self.feed.stream(goes_on=False):
            rows = y[self._cuts[k] : self._cuts[k + 1]]
            CudaBlock(piece, self._dtype, "csr-split").multiply(x, rows, alpha, beta)
