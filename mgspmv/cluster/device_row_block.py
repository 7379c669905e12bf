"""Rows of a matrix on a worker's device: kernels over CSR, and layouts for steps that all devices make together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from mgspmv.cluster.row_block import ProductOptions, RowBlock, RowBlockSpec
from mgspmv.errors import CapacityError
from mgspmv.exchange.nccl import NcclGroup, join_group
from mgspmv.exchange.nccl_slices import NcclSlices, SharedColumns, share_columns
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import Message
from mgspmv.heartbeat import find_heartbeat
from mgspmv.kernels.cuda import StreamedCsr
from mgspmv.kernels.device import (
    describe_device,
    get,
    put,
    read_block,
    read_out_degree,
    release_device_memory,
    report_full_device,
)
from mgspmv.kernels.layout import LayoutBuilder, MatrixLayout
from mgspmv.kernels.rank_steps import RankSteps, begin_compiling
from mgspmv.kernels.select import (
    BoundKernel,
    BoundMany,
    StepLayout,
    bind_many,
    bind_product,
    choose_for_vectors,
)
from mgspmv.model import CsrBlock, Precision
from mgspmv.partition import choose_piece

CONCURRENT = 4
"""Divisor of the entries per streamed piece if layouts or other kernels already hold device memory."""


class DeviceRowBlock(RowBlock):
    """Row block on the worker's current device. CSR is read when first needed, as steps have a separate layout.

    Attributes
    ----------
    group : the devices of all workers, if they are connected
    """

    backend = "cuda"

    def __init__(self, spec: RowBlockSpec) -> None:
        self.group: NcclGroup | None = None
        self._blocks: dict[str | None, CsrBlock] = {}
        self._products: dict[tuple[str, str, bool], BoundKernel | StreamedCsr] = {}
        self._layouts: dict[tuple[str | None, StepLayout], tuple[MatrixLayout, SharedColumns | None]] = {}
        self._streaming, self._may_share = spec.streaming, spec.may_share
        super().__init__(spec)

    @property
    def nbytes(self) -> int:
        """Bytes as in `RowBlock`, with device memory of blocks and layouts and that which other devices write into."""
        streamed = [made for made in [*self._products.values()] if isinstance(made, StreamedCsr)]
        held: list[Any] = [*self._blocks.values(), *streamed, *(laid for laid, _ in [*self._layouts.values()])]
        shared = 0 if self.group is None else self.group.nbytes
        return super().nbytes + shared + sum(int(h.nbytes) for h in held)

    def close(self, reason: str) -> None:
        """Close the connections to other devices."""
        if self.group is not None:
            self.group.close()

    def _load(self, dtype: str | None) -> None:
        """Read nothing yet."""

    def multiply(self, x: Any, y: Any, options: ProductOptions) -> Any:
        """Multiply as `RowBlock.multiply` does, by a kernel chosen for the block with all columns of the matrix."""
        import cupy

        dtype, beta, kernel, weights = options.dtype, options.beta, options.kernel, options.weights
        shape = (self.stop - self.start, *x.shape[1:])
        k = shape[1] if x.ndim == 2 else 1
        find_heartbeat().n_terms = self.nnz * k
        if self._streaming is None:
            kernel = choose_for_vectors(kernel, "cuda", (self.stop - self.start, self.stored.info.shape[1]), k)
        with self._lock:  # a kernel has buffers for one product at a time, and several tasks run
            key = (dtype, kernel, weights)
            if key not in self._products:
                if self._streaming is None:
                    block = self._read_whole(dtype if weights else None)
                    self._products[key] = bind_product(block, dtype, kernel=kernel, backend="cuda")
                else:
                    self._products[key] = self._bind_streamed(dtype, kernel, weights)
            product = cupy.empty(shape, dtype) if beta == 0 or y is None else cupy.array(y, dtype, order="C")
            self._products[key].multiply(cupy.ascontiguousarray(put(x)), product, options.alpha, beta)
        return get(product) if isinstance(x, np.ndarray) else product

    def bind_many_whole(self, dtype: str | None, precision: Precision) -> BoundMany:
        """Bind as `bind_many` does, with all columns of the matrix, not just those that the block reads.

        Raises
        ------
        CapacityError : the block does not fit in device memory
        """
        with self._lock:
            return bind_many(self._read_whole(dtype), precision, backend="cuda")

    def _read_whole(self, dtype: str | None) -> CsrBlock:
        values = None if self.stored.info.is_pattern else dtype
        if values not in self._blocks:
            self._blocks[values] = read_block(self.stored, self.start, self.stop, values, self.threads)
        return self._blocks[values]

    def _bind_streamed(self, dtype: Literal["float32", "float64"], kernel: str, weights: bool) -> StreamedCsr:
        streaming = self._streaming
        assert streaming is not None
        if self._layouts or self._products:  # they hold the device memory, and the pinned memory
            n_entries = max(1, streaming.piece_entries // CONCURRENT)
            streaming = replace(streaming, held="store", kept_bytes=0, piece_entries=n_entries)
        is_pattern = self.stored.info.is_pattern or not weights
        given = (self.stored, self.start, self.stop, dtype, streaming)
        return StreamedCsr(*given, is_pattern=is_pattern, threads=self.threads, kernel=kernel)

    def _read_pattern(self) -> CsrBlock:
        if self._streaming is not None:
            raise CapacityError(
                f"the {self.stop - self.start:,} rows of rank {self.rank} do not fit in the memory of "
                f"{describe_device()}. Rows are streamed only for products, and for PageRank in exact or float32 with "
                "transport='nccl'; use one of these, more GPUs, or backend='cpu'"
            )
        return super()._read_pattern()

    # --- layouts for steps on devices, made by all workers together

    def join_devices(self, turns: AllToAll, hellos: Mapping[int, Message]) -> None:
        """Connect the device with those of the other workers, unless already connected.

        Parameters
        ----------
        hellos : their `greet` messages
        """
        if hellos:
            self.group = join_group(turns, hellos, self.group, may_share=self._may_share)

    def bind_steps(
        self,
        dtype: str | None,
        layout: StepLayout,
        precision: Precision,
        check: Callable[[], None],
    ) -> RankSteps:
        """Return the steps of PageRank on this device, made together with the other workers; the layout is built once.

        Parameters
        ----------
        check : raises when a worker is lost or the work was aborted

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : it does not fit in the free memory
        """
        key = (None if self.stored.info.is_pattern else dtype, layout)
        if key not in self._layouts:
            if layout != "sell-slices":
                begin_compiling(None if key[0] is None else np.dtype(key[0]), precision)
            with report_full_device("the layout of the matrix for steps of PageRank"):
                self._layouts[key] = self._lay_out(*key, check)
        laid, columns = self._layouts[key]
        if columns is None or self.group is None:
            return RankSteps(laid, precision)
        n_terms = max(self.stored.info.nnz, self.stored.info.shape[0])
        return RankSteps(laid, precision, NcclSlices(self.group, columns, n_terms))

    def _lay_out(
        self, dtype: str | None, layout: StepLayout, check: Callable[[], None]
    ) -> tuple[MatrixLayout, SharedColumns | None]:
        """Build the layout from rows read in pieces; also return the columns of each device, None if one has all."""
        start, stop = self.start, self.stop
        indptr = self.stored.read_array("indptr", start, stop + 1, self.threads)
        indptr -= indptr[0]

        def read(first: int, last: int) -> CsrBlock:
            return read_block(self.stored, start + first, start + last, dtype, self.threads)

        named, streaming = None if layout == "auto" else layout, self._streaming
        piece_entries = choose_piece(int(indptr[-1]), streaming)
        rows = LayoutBuilder(indptr, read, layout=named, piece_entries=piece_entries, row_offset=start)
        n_cols = self.stored.info.shape[1]
        is_read = read_out_degree(self.stored, start, stop, self.threads) > 0
        places = rows.place_streamed(is_read, streaming)
        own, columns, n_columns = places.all_columns, None, places.n_sent
        release_device_memory()  # else lasting arrays are cut from freed blocks and pin them
        if self.group is not None:
            mark = partial(rows.mark_columns, n_cols) if rows.is_near else None
            columns = share_columns(self.group, places.columns, places.n_sent, self.bounds, mark)
            own, columns, n_columns = columns.places, replace(columns, places=None), columns.slices.starts[-1]
            places = replace(places, columns=None)  # frees their memory for the layout
        del is_read
        return rows.build_layout(places, own, n_columns, streaming, check), columns
