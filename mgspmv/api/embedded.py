"""Stored matrices in this process: loaded blocks, bound kernels and layouts, and products by them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import (
    free_device_memory,
    make_row_reader,
    put,
    read_block,
    read_graph,
    read_out_degree,
    read_vector,
    report_full_device,
)
from mgspmv.kernels.select import BoundKernel, BoundMany, StepLayout, bind_many, bind_product, choose_for_vectors
from mgspmv.model import CsrBlock, Precision, free_memory
from mgspmv.partition import Planner, choose_piece, limit, warn_of_streaming
from mgspmv.plan import Plan, WorkerPlan
from mgspmv.solvers.options import MemoryLimits, Placement
from mgspmv.solvers.pagerank import OutWeights
from mgspmv.store.held import is_on_device
from mgspmv.store.stored_matrix import MatrixProperties, StoredMatrix

if TYPE_CHECKING:
    from mgspmv.kernels.cuda import StreamedCsr
    from mgspmv.kernels.layout import MatrixLayout
    from mgspmv.kernels.rank_steps import RankSteps

MOST_BYTES = 2**62
"""Memory without a limit."""


@dataclass
class _Loaded:
    """Parts of a matrix in memory, shared by its placements."""

    blocks: dict[tuple[str | None, Backend], CsrBlock] = field(default_factory=dict)
    made: dict[Hashable, Any] = field(default_factory=dict)
    """Kernels and layouts made of them, out-weights, and checks of memory, by what they were made for."""
    out_degree: Any = None
    """(n_rows,) int64 out-degrees on a device, as they were read with the rows, until a run takes them."""
    transpose: Any = None
    """Transpose, which is closed by the matrix that it is of."""

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is made for a key, once."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def clear(self) -> None:
        self.made.clear()
        self.blocks.clear()
        self.out_degree = None


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

    def block(self, dtype: str | None, backend: Backend = "cpu", top: int | None = None) -> CsrBlock:
        """Return the rows as stored, with values of this dtype, or without; loaded once.

        Parameters
        ----------
        backend : `cuda` holds them on the current device, and not on the host
        top : number of highest vertices to be proven, for which memory is reserved; None for none

        Raises
        ------
        CapacityError : the free memory, or the memory that the placement may take, does not suffice
        """
        dtype = None if self.is_pattern else dtype
        key, place, blocks = (dtype, backend), self.place, self._loaded.blocks
        is_loaded, check = key in blocks, ("check", key, top, place.device_memory, place.host_memory)
        if not is_loaded or (place.is_limited and check not in self._loaded.made):
            if is_loaded:  # the rows have taken free memory already, so only the limits count
                memory = MemoryLimits(*(limit(MOST_BYTES, most) for most in place.limits))
            elif place.is_limited:
                memory = limit_to_free(place.limits)
            elif backend == "cuda":
                memory = MemoryLimits(device=free_device_memory())
            else:
                memory = MemoryLimits(host=free_memory())
            self._plan_here(dtype, "float32" if dtype == "float32" else "float64", memory, top=top)
            self._loaded.made[check] = True
        if not is_loaded:
            read = read_block if backend == "cuda" else StoredMatrix.read_block
            blocks[key] = read(self.stored, 0, self.shape[0], dtype, place.threads)
        return blocks[key]

    def bind(
        self,
        bind: Callable[..., BoundKernel],
        dtype: str | None,
        precision: Precision,
        kernel: str,
        top: int | None = None,
    ) -> BoundKernel:
        """Return a kernel, bound to the rows with values of this dtype, or without; bound once.

        Parameters
        ----------
        bind : `bind_kernel` for steps of PageRank, or `bind_product`; others and errors as for these and `block`
        """
        backend, threads = self.place.computes, self.place.threads
        block, key = self.block(dtype, backend, top), (bind, dtype, precision, kernel, threads, backend)
        make = partial(bind, block, precision, kernel=kernel, threads=threads, backend=backend)
        bound: BoundKernel = self._loaded.keep(key, make)
        return bound

    def bind_many(self, dtype: str | None, precision: Precision) -> BoundMany:
        """Return the kernels of the placement for steps of many vectors, with values of this dtype, or without; bound
        once.

        Raises
        ------
        CapacityError : as for `block`
        """
        backend, threads = self.place.computes, self.place.threads
        make = partial(bind_many, self.block(dtype, backend), precision, threads=threads, backend=backend)
        many: BoundMany = self._loaded.keep((bind_many, dtype, threads, backend), make)
        return many.with_precision(precision)

    def bind_product(
        self, dtype: Literal["float32", "float64"], *, weights: bool = True, n_vectors: int = 1
    ) -> BoundKernel | StreamedCsr:
        """Return the kernel for products with x of this dtype; it streams the rows that do not fit on the device.

        Parameters
        ----------
        weights : False takes each stored entry as 1
        n_vectors : columns of x
        """
        own = dtype if weights and not self.is_pattern else None
        place, backend = self.place, self.place.computes
        if backend == "cuda":
            key = ("streamed", dtype, place.kernel, weights, place.device_memory, place.host_memory)
            streamed: StreamedCsr | None = self._loaded.keep(key, partial(self._bind_streamed, own, dtype))
            if streamed is not None:
                return streamed
        kernel = choose_for_vectors(place.kernel, backend, self.shape, n_vectors)
        return self.bind(bind_product, own, dtype, kernel)

    def _bind_streamed(self, values: str | None, dtype: Literal["float32", "float64"]) -> StreamedCsr | None:
        """Return the kernel that streams rows through the current device; None where all rows fit."""
        from mgspmv.kernels.cuda import StreamedCsr

        place = self.place
        if not place.is_limited and any(held == "cuda" for _, held in self._loaded.blocks):
            return None
        _, plan = self._plan_here(values, dtype, limit_to_free(place.limits), streams=True)
        warn_of_streaming(plan, stacklevel=5)
        streaming = plan.workers[0].streaming
        if streaming is None:
            return None
        given = (self.stored, 0, self.shape[0], dtype, streaming)
        return StreamedCsr(*given, is_pattern=values is None, threads=place.threads, kernel=place.kernel)

    def bind_steps(
        self, dtype: str | None, precision: Precision, layout: StepLayout = "auto", top: int | None = None
    ) -> RankSteps:
        """Return the steps of PageRank on the current device, for all rows, with values of this dtype or without.

        Their layout is made once, while the matrix is read piece by piece: the host never holds it, the device a piece.

        Parameters
        ----------
        top : as for `block`

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : the free memory does not suffice
        """
        from mgspmv.kernels.rank_steps import RankSteps

        dtype = None if self.is_pattern else dtype
        key = ("layout", dtype, layout, self.place.device_memory, self.place.host_memory)
        return RankSteps(self._loaded.keep(key, partial(self._lay_out, dtype, precision, layout, top)), precision)

    def _lay_out(self, dtype: str | None, precision: Precision, layout: StepLayout, top: int | None) -> MatrixLayout:
        """Make the layout of `bind_steps`."""
        from mgspmv.kernels.layout import LayoutBuilder
        from mgspmv.kernels.rank_products import begin_compiling

        begin_compiling(layout, None if dtype is None else np.dtype(dtype), precision, self.shape, self.nnz)
        memory, threads = limit_to_free(self.place.limits), self.place.threads
        indptr, read, plan = self._read_whole(dtype, precision, memory, top) or self._read_pieces(
            dtype, precision, memory, top
        )
        named = None if layout == "auto" else layout
        with report_full_device("the layout of the matrix for steps of PageRank"):
            piece = choose_piece(plan, is_there=is_on_device(self.stored))
            rows = LayoutBuilder(
                indptr,
                read,
                layout=named,
                piece_entries=piece,
                bin_bytes=plan.bin_bytes,
                is_exact=precision == "exact",
                may_stream=plan.streaming is not None,
            )
            degree = self._loaded.out_degree
            if degree is None:
                degree = read_out_degree(self.stored, 0, self.shape[0], threads)
            places = rows.place_streamed(degree, plan.streaming)
            del degree
            return rows.build_layout(places, places.columns, places.n_sent, plan.streaming)

    def _read_whole(
        self, dtype: str | None, precision: Precision, memory: MemoryLimits, top: int | None
    ) -> tuple[Any, Callable[[int, int], CsrBlock], WorkerPlan] | None:
        """Read all arrays of a stored matrix at once, with its ids and out-degrees, if they fit on the device with
        the layout; return as `_read_pieces` does, else None."""
        stored, threads = self.stored, self.place.threads
        if is_on_device(stored):
            return None
        info, ends = stored.info if dtype else replace(stored.info, dtype=None), {0: 0, self.shape[0]: self.nnz}
        plan = Planner(info, ends, precision, threads, lays_out=True, top=top).plan(memory.device, memory.host)
        if not plan.fits:
            return None
        [own] = plan.workers
        if self.nnz > choose_piece(own):
            return None
        reads_ids = stored.original is None and stored.info.vertex_ids is not None and "vertex_ids" not in vars(self)
        indptr, block, degree, ids = read_graph(stored, dtype, threads, reads_ids=reads_ids)
        self._loaded.out_degree = degree
        if reads_ids:
            vars(self)["vertex_ids"] = ids
        return indptr, lambda start, stop: block, own

    def _read_pieces(
        self, dtype: str | None, precision: Precision, memory: MemoryLimits, top: int | None
    ) -> tuple[Any, Callable[[int, int], CsrBlock], WorkerPlan]:
        """Return row pointers, a function that reads rows to the device, and the plan for them."""
        indptr, plan = self._plan_here(dtype, precision, memory, lays_out=True, streams=True, top=top)
        warn_of_streaming(plan, stacklevel=7)

        stored, threads = self.stored, self.place.threads
        if not is_on_device(stored):
            indptr = indptr if plan.workers[0].streaming is not None else put(indptr)
            return indptr, make_row_reader(stored, 0, indptr, 0, dtype, threads), plan.workers[0]
        return indptr, lambda start, stop: read_block(stored, start, stop, dtype, threads), plan.workers[0]

    def take_out_weight(self, use_weights: bool) -> Any:
        """Return out-weights as `read_out_weight` does, of a graph on the current device."""
        stored, n, threads = self.stored, self.shape[0], self.place.threads
        if stored.original is not None or stored.info.kind != "graph":
            return self.out_weights.read(use_weights)
        if not use_weights:
            degree, self._loaded.out_degree = self._loaded.out_degree, None
            return (read_out_degree(stored, 0, n, threads) if degree is None else degree).astype(np.float64)
        is_there = is_on_device(stored)
        return stored.arrays["out_weight"] if is_there else read_vector(stored, "out_weight", 0, n, threads)

    @property
    def out_weights(self) -> OutWeights:
        """Out-weights of the vertices; those of a reversed graph are cached."""
        make = partial(OutWeights, self.stored, 0, self.shape[0], self.place.threads)
        weights: OutWeights = self._loaded.keep("out_weights", make)
        return weights

    def _plan_here(
        self,
        dtype: str | None,
        precision: Precision,
        memory: MemoryLimits,
        *,
        lays_out: bool = False,
        streams: bool = False,
        top: int | None = None,
    ) -> tuple[Any, Plan]:
        """Return the row pointers, on the device if they are held there, and the plan of the matrix in this process.

        Parameters
        ----------
        dtype : of the values; None without
        """
        threads = self.place.threads
        is_there = is_on_device(self.stored)
        indptr = self.stored.arrays["indptr"] if is_there else self.stored.read_array("indptr", threads=threads)
        info = self.stored.info
        loaded = info if dtype else replace(info, dtype=None)
        planner = Planner(loaded, indptr, precision, threads, lays_out, streams, top)
        return indptr, planner.plan_rows(device_memory=memory.device, host_memory=memory.host)


def limit_to_free(limits: MemoryLimits) -> MemoryLimits:
    """Return the free memory of the device and of the host, capped by these limits."""
    return MemoryLimits(limit(free_device_memory(), limits.device), limit(free_memory(), limits.host))
