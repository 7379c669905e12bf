"""The rows of a matrix that one worker holds, on its host or on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Literal

import numpy as np

from mgspmv.exchange.halo import Halo, make_halo
from mgspmv.exchange.links import DaskLinks, Member
from mgspmv.exchange.nccl import NcclExchange, NcclGroup, SharedColumns, greet, join_group, share_columns
from mgspmv.kernels.bound import BoundKernel
from mgspmv.kernels.device import get, put, read_block, report_full_device
from mgspmv.kernels.rank_steps import LaidRows, RankSteps
from mgspmv.kernels.row_blocks import PIECE_ENTRIES, RowBlocks
from mgspmv.kernels.row_slices import RowSlices
from mgspmv.kernels.select import Backend, StepLayout, bind_kernel, bind_product
from mgspmv.model import CsrBlock, Precision, default_threads
from mgspmv.store import StoreAddress, StoredMatrix


@dataclass(frozen=True)
class PartSpec:
    """What a worker is told of the rows that it is to hold."""

    address: StoreAddress
    rank: int
    """Which of the workers it is."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    dtype: str | None
    """Of the values to read at once; None for none."""
    threads: int | None
    """To read and multiply with."""
    backend: Backend
    """Where it computes."""


@dataclass(frozen=True)
class TeamSpec:
    """What workers are told that lay their rows out together, each on its own device."""

    run: str
    """Name of what they do, by which their links are known."""
    members: tuple[Member, ...]
    """Its workers, by rank."""
    patience: float
    """Seconds that a worker may be silent."""
    dtype: str | None
    """Of the values; None for none."""
    precision: Precision
    layout: StepLayout


def get_array(array: Any) -> tuple[np.ndarray, bool]:
    """An array of NumPy or CuPy on the host; whether it was NumPy's."""
    return (array, True) if isinstance(array, np.ndarray) else (get(array), False)


def join_pieces(pieces: list[Any]) -> Any:
    """Pieces of a vector or of several, all of NumPy or of CuPy, one after the other."""
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    import cupy

    return cupy.concatenate(pieces)


class Part:
    """A row block, read from the store by the worker that holds it, and the kernels bound to it.

    For kernels over CSR the columns of a graph are renumbered to those that the block reads, see
    `mgspmv.exchange.halo`; those of a matrix, whose products get x from outside, are not. On a device CSR is read when
    it is first needed: steps have a layout of their own, made by all workers together.
    """

    def __init__(self, spec: PartSpec) -> None:
        self.stored: StoredMatrix = spec.address.open()
        self.rank, self.bounds, self.backend = spec.rank, spec.bounds, spec.backend
        self.threads = spec.threads or default_threads()
        self.run: str | None = None
        """What its links are known by."""
        self.links: DaskLinks | None = None
        """To its other workers."""
        self.group: NcclGroup | None = None
        """The devices of a team."""
        self._lock = Lock()
        self._pattern: CsrBlock | None = None
        self._halo: Halo | None = None
        self._values: dict[str, np.ndarray | None] = {}
        self._bound: dict[tuple[Any, ...], BoundKernel] = {}
        self._blocks: dict[str | None, CsrBlock] = {}
        self._products: dict[tuple[str, str], BoundKernel] = {}
        self._layouts: dict[tuple[str | None, StepLayout], tuple[RowBlocks | RowSlices, SharedColumns | None]] = {}
        if self.backend == "cpu":
            self._read_pattern()
            self._read_values(spec.dtype)

    @property
    def start(self) -> int:
        """First row."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """Row after the last."""
        return self.bounds[self.rank + 1]

    @property
    def halo(self) -> Halo | None:
        """The columns that kernels over CSR hold; None for all."""
        self._read_pattern()
        return self._halo

    @property
    def nbytes(self) -> int:
        """Bytes of the block's arrays, values in every dtype that was asked for, of layouts and of lists of columns."""
        layouts = [laid for laid, _ in self._layouts.values()]
        held: list[Any] = [self._pattern, self._halo, *self._values.values(), *self._blocks.values(), *layouts]
        return sum(int(h.nbytes) for h in held if h is not None)

    def close(self, reason: str) -> None:
        """Let go of the other workers: a task that waits for them is told the reason."""
        if self.links is not None:
            self.links.close(reason)
        if self.group is not None:
            self.group.close()

    def bind(
        self, dtype: str | None, precision: Precision, kernel: str = "auto", threads: int | None = None
    ) -> BoundKernel:
        """The kernel of the block with values of this dtype, or without; values are read and kernels bound once.

        Raises
        ------
        OptionError : no kernel has that name
        """
        key = (dtype, precision, kernel, threads)
        with self._lock:
            if key not in self._bound:
                p = self._read_pattern()
                block = CsrBlock(p.row_offset, p.n_cols, p.indptr, p.indices, self._read_values(dtype))
                options: dict[str, Any] = {"threads": threads or self.threads, "backend": self.backend}
                self._bound[key] = bind_kernel(block, precision, kernel=kernel, **options)
            return self._bound[key]

    def multiply(
        self,
        x: Any,
        y: Any,
        alpha: float,
        beta: float,
        *,
        dtype: Literal["float32", "float64"],
        kernel: str = "auto",
        threads: int | None = None,
    ) -> Any:
        """alpha A x + beta y for the rows of this part.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k) of all columns, of `dtype`; a NumPy array, or one of CuPy
        y : (n_rows,) or (n_rows, k) of these rows; not read when beta is 0
        dtype : `float32` or `float64`, of values, x and the product

        Returns
        -------
        As x is, NumPy or CuPy.
        """
        shape = (self.stop - self.start, *x.shape[1:])
        if self.backend == "cuda":
            return self._multiply_there(x, y, shape, alpha, beta, dtype, kernel)
        x, is_numpy = get_array(x)
        bound = self.bind(dtype, dtype, kernel, threads)
        held = np.ascontiguousarray(x if self._halo is None else self._halo.select(x))
        product = np.empty(shape, dtype) if beta == 0 or y is None else np.array(get_array(y)[0], dtype, order="C")
        bound.multiply(held, product, alpha, beta)
        return product if is_numpy else put(product)

    def _multiply_there(
        self, x: Any, y: Any, shape: tuple[int, ...], alpha: float, beta: float, dtype: Any, kernel: str
    ) -> Any:
        """On the device, by a kernel that suits the block; its columns are those of the matrix."""
        import cupy

        with self._lock:
            if (dtype, kernel) not in self._products:
                values = None if self.stored.info.is_pattern else dtype
                if values not in self._blocks:
                    self._blocks[values] = read_block(self.stored, self.start, self.stop, values, self.threads)
                digest = f"{self.stored.info.digest}{', transposed' if self.stored.original else ''}"
                made = bind_product(self._blocks[values], dtype, digest, kernel=kernel, backend="cuda")
                self._products[dtype, kernel] = made
        bound = self._products[dtype, kernel]
        product = cupy.empty(shape, dtype) if beta == 0 or y is None else cupy.array(y, dtype, order="C")
        bound.multiply(cupy.ascontiguousarray(put(x)), product, alpha, beta)
        return get(product) if isinstance(x, np.ndarray) else product

    # --- layouts for steps on devices, made by all workers together

    def greet(self) -> dict[str, Any]:
        """The first message to other workers that have devices."""
        return greet(self.group)

    def join_team(self, spec: TeamSpec) -> None:
        """Lay the rows out together with the other workers, whose links were made ready by `meet`."""
        assert self.links is not None
        links = self.links
        links.begin_wait()
        with links.active():
            self.join_devices(links, links.connect())
            self.bind_steps(spec.dtype, spec.layout, spec.precision, links.check)

    def meet(self, worker: Any, spec: TeamSpec) -> None:
        """Be ready for the links of a team.

        Parameters
        ----------
        worker : the `distributed.Worker` that this is on
        """
        self.run = spec.run
        hello = self.greet()
        self.links = DaskLinks(worker, spec.run, self.rank, spec.members, lambda rank: hello, spec.patience)

    def join_devices(self, links: DaskLinks, hellos: dict[int, dict[str, Any]]) -> None:
        """Connect the device with those of the other workers, unless it is.

        Parameters
        ----------
        hellos : what `greet` said there
        """
        if hellos:
            self.group = join_group(links, hellos, self.rank, self.group, links.check)

    def bind_steps(
        self, dtype: str | None, layout: StepLayout, precision: Precision, check: Callable[[], None]
    ) -> RankSteps:
        """The steps of PageRank on this device, together with those of the other workers; their layout is made once.

        Parameters
        ----------
        check : raises when a worker is gone or the work was given up

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : more than the memory that is free
        """
        key = (None if self.stored.info.is_pattern else dtype, layout)
        if key not in self._layouts:
            with report_full_device("the layout of the matrix for steps of PageRank"):
                self._layouts[key] = self._lay_out(*key, check)
        laid, columns = self._layouts[key]
        if columns is None or self.group is None:
            return RankSteps(laid, precision)
        n_terms = max(self.stored.info.nnz, self.stored.info.shape[0])
        return RankSteps(laid, precision, NcclExchange(self.group, columns, n_terms, check))

    def _lay_out(
        self, dtype: str | None, layout: StepLayout, check: Callable[[], None]
    ) -> tuple[RowBlocks | RowSlices, SharedColumns | None]:
        """The layout of the rows, read piece by piece, and who has which columns, None where this device has all."""
        import cupy

        start, stop = self.start, self.stop
        indptr = self.stored.read_array("indptr", start, stop + 1, self.threads)
        indptr -= indptr[0]

        def read(first: int, last: int) -> CsrBlock:
            return read_block(self.stored, start + first, start + last, dtype, self.threads)

        named = None if layout == "auto" else layout
        rows = LaidRows(indptr, read, layout=named, piece_entries=PIECE_ENTRIES, row_offset=start)
        n_cols = self.stored.info.shape[1]
        if self.group is None:
            return rows.build(n_cols), None
        is_read = cupy.asarray(self.stored.read_array("out_degree", start, stop, self.threads) > 0)
        places = rows.place(is_read)
        mark = partial(rows.mark_columns, n_cols) if rows.is_near else None
        columns = share_columns(self.group, places.columns, places.n_sent, self.bounds, mark, check)
        laid = rows.build_share(places, columns.places, columns.slices.starts[-1])
        return laid, replace(columns, places=None)

    # --- CSR

    def _read_pattern(self) -> CsrBlock:
        if self._pattern is None:
            block = self.stored.read_block(self.start, self.stop, None, self.threads)
            if self.stored.info.kind != "matrix":
                block, self._halo = make_halo(block, self.rank, self.bounds, self.threads)
            self._pattern = block
        return self._pattern

    def _read_values(self, dtype: str | None) -> np.ndarray | None:
        if dtype is None or self.stored.info.is_pattern:
            return None
        if dtype not in self._values:
            self._values[dtype] = self.stored.read_values(self.start, self.stop, dtype, self.threads)
        return self._values[dtype]
