"""Stored matrices in this process: loaded blocks, bound kernels and layouts, and products by them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import free_device_memory, read_block, read_out_degree, report_full_device
from mgspmv.kernels.layout import LayoutBuilder, MatrixLayout
from mgspmv.kernels.operands import check_integers, check_vectors, choose_precision, start_product
from mgspmv.kernels.rank_steps import RankSteps
from mgspmv.kernels.select import BoundKernel, StepLayout, bind_kernel, bind_product, choose_backend, choose_for_vectors
from mgspmv.model import CsrBlock, Precision, free_memory
from mgspmv.order import permute, restore
from mgspmv.partition import choose_piece, limit, plan_rows, warn_of_streaming
from mgspmv.plan import Plan
from mgspmv.solvers.inputs import OutWeights
from mgspmv.solvers.placing import Placement
from mgspmv.store.metadata import MatrixProperties
from mgspmv.store.read import StoredMatrix

if TYPE_CHECKING:
    from mgspmv.kernels.cuda import StreamedCsr


@dataclass
class _Loaded:
    """Parts of a matrix in memory, shared by its placements."""

    blocks: dict[tuple[str | None, Backend], CsrBlock] = field(default_factory=dict)
    bound: dict[Hashable, BoundKernel] = field(default_factory=dict)
    layouts: dict[Hashable, MatrixLayout] = field(default_factory=dict)
    streamed: dict[Hashable, StreamedCsr | None] = field(default_factory=dict)
    out_weights: OutWeights | None = None
    transpose: Any = None
    """Transpose, which is closed by the matrix that it is of."""

    def clear(self) -> None:
        self.bound.clear()
        self.layouts.clear()
        self.streamed.clear()
        self.blocks.clear()
        self.out_weights = None


class EmbeddedMatrix(MatrixProperties):
    """A stored matrix of shape (n_rows, n_cols), loaded into the memory of this process when it is first needed."""

    def __init__(self, stored: StoredMatrix, place: Placement | None = None) -> None:
        super().__init__(stored)
        self.place = place or Placement()
        """Where the matrix computes, and how; see `on`."""
        self._loaded = _Loaded()

    def close(self) -> None:
        """Free the loaded arrays. The matrix can be used again, and is then loaded again."""
        self._loaded.clear()

    def block(
        self, dtype: str | None, threads: int | None = None, backend: Backend = "cpu", top: int | None = None
    ) -> CsrBlock:
        """Return the rows as stored, with values of this dtype, or without; loaded once, by `threads` threads.

        Parameters
        ----------
        backend : `cuda` holds them on the current device, and not on the host
        top : number of highest vertices to be proven, for which memory is reserved; None for none

        Raises
        ------
        CapacityError : the free memory does not suffice
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, backend)
        if key not in self._loaded.blocks:
            is_cuda = backend == "cuda"
            memory = {"device_memory": free_device_memory()} if is_cuda else {"host_memory": free_memory()}
            precision: Precision = "float32" if dtype == "float32" else "float64"
            self._plan_here(dtype, precision, threads, top=top, **memory)
            read = read_block if is_cuda else StoredMatrix.read_block
            self._loaded.blocks[key] = read(self.stored, 0, self.shape[0], dtype, threads)
        return self._loaded.blocks[key]

    def bind(
        self,
        dtype: str | None,
        precision: Precision,
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
        top: int | None = None,
        multiplies: bool = False,
    ) -> BoundKernel:
        """Return the kernel of the rows with values of this dtype, or without; bound once.

        Parameters
        ----------
        top : as for `block`
        multiplies : for products with x of `precision`; else for steps of PageRank

        Raises
        ------
        OptionError : the backend has no kernel of that name
        FormatError : the kernel does not support this matrix
        CapacityError : the free memory does not suffice
        """
        key = (dtype, precision, kernel, threads, backend, multiplies)
        if key not in self._loaded.bound:
            bind: Callable[..., BoundKernel] = bind_product if multiplies else bind_kernel
            options: dict[str, Any] = {"kernel": kernel, "threads": threads, "backend": backend}
            self._loaded.bound[key] = bind(self.block(dtype, threads, backend, top), precision, **options)
        return self._loaded.bound[key]

    def bind_product(
        self,
        dtype: Literal["float32", "float64"],
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
        weights: bool = True,
        n_vectors: int = 1,
        **limits: int | None,
    ) -> BoundKernel | StreamedCsr:
        """Return the kernel for products with x of this dtype; it streams the rows that do not fit on the device.

        Parameters
        ----------
        weights : False takes each stored entry as 1
        n_vectors : columns of x
        limits : `device_memory` and `host_memory`, as for `Matrix.on`, in bytes

        Raises
        ------
        OptionError, FormatError, CapacityError : as for `bind`, and in `StreamedCsr`
        """
        own = dtype if weights and not self.is_pattern else None
        if backend == "cuda":
            key = (dtype, kernel, weights, *limits.values())
            if key not in self._loaded.streamed:
                self._loaded.streamed[key] = self._bind_streamed(own, dtype, kernel, threads, **limits)
            if (streamed := self._loaded.streamed[key]) is not None:
                return streamed
        kernel = choose_for_vectors(kernel, backend, self.shape, n_vectors)
        return self.bind(own, dtype, kernel=kernel, threads=threads, backend=backend, multiplies=True)

    def _bind_streamed(
        self,
        values: str | None,
        dtype: Literal["float32", "float64"],
        kernel: str,
        threads: int | None,
        **limits: int | None,
    ) -> StreamedCsr | None:
        """Return the kernel that streams rows through the current device; None where all rows fit."""
        from mgspmv.kernels.cuda import StreamedCsr

        is_there = any(held == "cuda" for _, held in self._loaded.blocks)
        if is_there and all(limit is None for limit in limits.values()):
            return None
        _, plan = self._plan_here(values, dtype, threads, streams=True, **limit_to_free(**limits))
        warn_of_streaming(plan, stacklevel=4)
        streaming = plan.workers[0].streaming
        if streaming is None:
            return None
        options: dict[str, Any] = {"is_pattern": values is None, "threads": threads, "kernel": kernel}
        return StreamedCsr(self.stored, 0, self.shape[0], dtype, streaming, **options)

    def bind_steps(
        self,
        dtype: str | None,
        precision: Precision,
        layout: StepLayout = "auto",
        threads: int | None = None,
        top: int | None = None,
        **limits: int | None,
    ) -> RankSteps:
        """Return the steps of PageRank on the current device, for all rows, with values of this dtype or without.

        Their layout is made once, while the matrix is read piece by piece: the host never holds it, the device a piece.

        Parameters
        ----------
        top : as for `block`
        limits : `device_memory` and `host_memory`, as for `Matrix.on`, in bytes

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : the free memory does not suffice
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, layout, *limits.values())
        if key not in self._loaded.layouts:
            memory = limit_to_free(**limits)
            indptr, plan = self._plan_here(dtype, precision, threads, lays_out=True, streams=True, top=top, **memory)
            warn_of_streaming(plan, stacklevel=5)
            streaming = plan.workers[0].streaming

            def read(start: int, stop: int) -> CsrBlock:
                return read_block(self.stored, start, stop, dtype, threads)

            named = None if layout == "auto" else layout
            with report_full_device("the layout of the matrix for steps of PageRank"):
                rows = LayoutBuilder(indptr, read, layout=named, piece_entries=choose_piece(self.nnz, streaming))
                is_read = read_out_degree(self.stored, 0, self.shape[0], threads) > 0
                places = rows.place_streamed(is_read, streaming)
                self._loaded.layouts[key] = rows.build_layout(places, places.all_columns, places.n_sent, streaming)
        return RankSteps(self._loaded.layouts[key], precision)

    def read_out_weight(self, use_weights: bool, threads: int | None = None) -> np.ndarray:
        """Return out-weights of the vertices, (n,) float64, read-only; out-degrees unless weights are used.

        Those of a reversed graph are summed from its stored values, and cached.
        """
        if self._loaded.out_weights is None:
            self._loaded.out_weights = OutWeights(self.stored, 0, self.shape[0], threads)
        return self._loaded.out_weights.read(use_weights)

    def multiply(
        self,
        x: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        y: Any = None,
        precision: Literal["float32", "float64"] | None = None,
        weights: bool = True,
    ) -> np.ndarray:
        """Return alpha * A @ x + beta * y, computed in this process; see `mgspmv.spmv`.

        Parameters
        ----------
        weights : False takes each stored entry as 1
        """
        place = self.place
        x = check_vectors("x", x, self.shape[1], "columns")
        chosen = choose_precision(precision, x.dtype, self.info)
        out = start_product(y, beta, (self.shape[0], *x.shape[1:]), chosen)
        given = (x, y, alpha, beta, precision)
        x = permute(np.ascontiguousarray(x, dtype=chosen), self.order)
        if beta != 0:
            out = permute(out, self.order)
        options: dict[str, Any] = {"kernel": place.kernel, "threads": place.threads, "weights": weights}
        options |= place.limits | {"backend": choose_backend(place.backend)}
        bound = self.bind_product(chosen, n_vectors=x.shape[1] if x.ndim == 2 else 1, **options)
        x, out = bound.put(x), bound.put(out)
        bound.multiply(x, out, alpha, beta)
        restored: np.ndarray = restore(bound.get(out), self.order)
        multiply = partial(self.multiply, precision="float64", weights=weights)
        check_integers(self.info, *given, restored, multiply, weights=weights)
        return restored

    def check_room(
        self, dtype: str | None, threads: int | None = None, top: int | None = None, **limits: int | None
    ) -> None:
        """Check that CSR with values of this dtype, or without, and vectors fit in the current device's memory.

        Parameters
        ----------
        top : as for `block`
        limits : `device_memory` and `host_memory`, as for `Matrix.on`, in bytes

        Raises
        ------
        CapacityError : they do not fit
        """
        precision: Precision = "float32" if dtype == "float32" else "float64"
        self._plan_here(dtype, precision, threads, top=top, **limit_to_free(**limits))

    def _plan_here(
        self, dtype: str | None, precision: Precision, threads: int | None, **planning: Any
    ) -> tuple[np.ndarray, Plan]:
        """Return the row pointers, and the plan of the matrix in this process with values of this dtype, or without."""
        indptr = self.stored.read_array("indptr", threads=threads)
        loaded = self.info if dtype else replace(self.info, dtype=None)
        return indptr, plan_rows(loaded, indptr, precision=precision, threads=threads, **planning)


def limit_to_free(*, device_memory: int | None = None, host_memory: int | None = None) -> dict[str, Any]:
    """Return the free memory of the device and of the host, capped by these limits."""
    return {
        "device_memory": limit(free_device_memory(), device_memory),
        "host_memory": limit(free_memory(), host_memory),
    }
