"""Exchange between the hosts of workers: over Dask's comms, all to all, in numbered turns; or through the client.

A worker holds z for the columns that its block reads, in ascending order, and its indices refer to these: its own rows,
and rows of others (the halo):

    global columns   | rows of worker 0 | rows of worker 1 | rows of worker 2 |
    worker 1 holds   | the few it reads | all, they are its own | all, it reads most |

Row sums keep the order of their terms, so a product is bit-identical to that with all columns.

In HITS the rows of A and of its transpose are cut at different bounds, and each product reads the result of the other:
a worker has the elements of some rows, and requests those that its block reads. PageRank also exchanges sums.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numba import njit

from mgspmv.exchange.exchange import DeviceCopies, Exchange, GatheringExchange, Zeros
from mgspmv.model import CsrBlock, StepSums, index_dtype
from mgspmv.partition import DENSE
from mgspmv.store.digests import cut_pieces, run_parts

if TYPE_CHECKING:  # the module imports Dask
    from mgspmv.exchange.peer_comm import Message, PeerComm


@dataclass(frozen=True, eq=False)
class Halo:
    """Columns that one worker holds, by their owners."""

    rank: int
    """Rank of the worker."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    needed: tuple[np.ndarray | None, ...]
    """Rows of each worker held here: int32 or int64, ascending, relative to its first row; None for all."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Offset of each owner's columns among the held ones, and the number of held columns."""
        return tuple(int(n) for n in np.cumsum([0, *(self.count(owner) for owner in range(len(self.needed)))]))

    @property
    def nbytes(self) -> int:
        """Bytes of the lists."""
        return sum(rows.nbytes for rows in self.needed if rows is not None)

    def count(self, owner: int) -> int:
        """Return the number of held columns of an owner."""
        rows = self.needed[owner]
        return self.bounds[owner + 1] - self.bounds[owner] if rows is None else len(rows)

    def select(self, x: np.ndarray) -> np.ndarray:
        """Select the held columns of x, (n_cols,) or (n_cols, k): shape (n_held,) or (n_held, k)."""
        starts = self.starts
        held = np.empty((starts[-1], *x.shape[1:]), x.dtype)
        for owner, rows in enumerate(self.needed):
            part, place = x[self.bounds[owner] : self.bounds[owner + 1]], held[starts[owner] : starts[owner + 1]]
            if rows is None:
                place[:] = part
            else:
                pack(part, rows, place)
        return held


def make_halo(block: CsrBlock, rank: int, bounds: tuple[int, ...], threads: int | None = None) -> tuple[CsrBlock, Halo]:
    """Renumber the columns of a block to those that it reads. Its indices are overwritten.

    Parameters
    ----------
    bounds : first row of each worker, and the number of rows, which is that of the columns
    """
    if len(bounds) == 2:
        return block, Halo(rank, bounds, (None,))
    mask = np.zeros(block.n_cols, np.bool_)
    mask[bounds[rank] : bounds[rank + 1]] = True
    run_parts(lambda piece: _mark(block.indices[piece], mask), cut_pieces(0, block.nnz), threads)
    needed = tuple(_choose(mask[a:b]) for a, b in pairwise(bounds))
    halo = Halo(rank, bounds, needed)
    if halo.starts[-1] == block.n_cols:
        return block, halo
    places = np.cumsum(mask, dtype=block.indices.dtype)
    run_parts(lambda piece: _renumber(block.indices[piece], places), cut_pieces(0, block.nnz), threads)
    return replace(block, n_cols=halo.starts[-1]), halo


def cut_again(halo: Halo, bounds: tuple[int, ...]) -> Halo:
    """Return a halo of the same columns, with elements cut at other bounds.

    Parameters
    ----------
    bounds : first element of each worker, and their number
    """
    if bounds == halo.bounds:
        return halo
    cut = zip(pairwise(halo.bounds), halo.needed, strict=True)
    held = np.concatenate([np.arange(a, b) if rows is None else rows + np.int64(a) for (a, b), rows in cut])
    own = ((a, b, held[slice(*np.searchsorted(held, [a, b]))]) for a, b in pairwise(bounds))
    needed = (None if len(rows) == b - a else (rows - a).astype(index_dtype(b - a)) for a, b, rows in own)
    return Halo(halo.rank, bounds, tuple(needed))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def pack(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Compute out = x[rows], without NumPy's copy of the rows as int64; x (n,) or (n, k)."""
    for k in range(len(rows)):
        if x.ndim == 1:
            out[k] = x[np.uint64(rows[k])]
        else:  # without slices, which Numba copies slowly
            for j in range(x.shape[1]):
                out[k, j] = x[np.uint64(rows[k]), j]


def _choose(mask: np.ndarray) -> np.ndarray | None:
    """Return the marked rows; if they are many, mark all and return None."""
    if np.count_nonzero(mask) > DENSE * len(mask) or not len(mask):
        mask[:] = True
        return None
    return np.flatnonzero(mask).astype(index_dtype(len(mask)))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _mark(indices: np.ndarray, mask: np.ndarray) -> None:
    for k in range(len(indices)):
        mask[np.uint64(indices[k])] = True


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _renumber(indices: np.ndarray, places: np.ndarray) -> None:
    for k in range(len(indices)):
        indices[k] = places[np.uint64(indices[k])] - 1


T = TypeVar("T")


class AllToAll:
    """All-to-all exchange in numbered turns, by which a message that arrives early is told from one of this turn.

    In the first turn, `greet`, workers connect. A worker begins a turn when it has received all messages of the
    previous one. Another worker is at most one turn ahead, and so at most one early message of each is kept.

    Parameters
    ----------
    peer_comm : connections to the other workers, opened by `greet`
    rank : rank of this worker
    n_workers : number of workers, with this one

    Attributes
    ----------
    number : number of this turn
    others : ranks of the other workers, from the next one on, so that not all send to the same one first
    exchanged_s : total seconds of trades, without waiting
    waited_s : total seconds that the slowest worker took longer between trades than this one
    received_bytes : total bytes of vectors, counted by the callers of `trade`
    """

    def __init__(self, peer_comm: PeerComm, rank: int, n_workers: int) -> None:
        self.peer_comm, self.rank = peer_comm, rank
        self._early: dict[int, Message] = {}
        self.number = 0
        self._since = time.perf_counter()
        self.exchanged_s = self.waited_s = 0.0
        self.received_bytes = 0
        self.others = (*range(rank + 1, n_workers), *range(rank))

    def greet(self, hellos: Mapping[int, Message]) -> dict[int, Message]:
        """Connect to the other workers and trade the first messages, in a turn whose time is not counted."""
        self.peer_comm.connect()
        received = self.trade(hellos)
        self.exchanged_s = self.waited_s = 0.0
        return received

    def begin(self) -> None:
        """Restart the time of this worker's work, which its next trade ends."""
        self._since = time.perf_counter()

    def gather(self, own: T) -> list[T]:
        """Gather a value of each worker, by rank, in a separate turn; arrays in it must not be written to again."""
        message: Message = {"own": own}
        answers = {self.rank: message, **self.trade(dict.fromkeys(self.others, message))}
        return [answers[rank]["own"] for rank in sorted(answers)]

    def trade(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Exchange messages with each other worker, by rank, in a separate turn. Arrays in them must not be written to
        before the turn after the next."""
        began = time.perf_counter()
        own_s = began - self._since
        self.peer_comm.send({r: {"number": self.number, "own_s": own_s, **message} for r, message in messages.items()})
        received: dict[int, Message] = {}
        while missing := set(self.others) - received.keys():
            rank, received[rank] = self._take(missing)
        self.number += 1
        self._since = time.perf_counter()
        elapsed_s = self._since - began
        slowest_s = max([own_s, *(message["own_s"] for message in received.values())])
        waited_s = min(elapsed_s, slowest_s - own_s)
        self.waited_s += waited_s
        self.exchanged_s += elapsed_s - waited_s
        return received

    def _take(self, missing: set[int]) -> tuple[int, Message]:
        """Return the next message of this turn from any of these workers, with its sender's rank first."""
        for rank in missing & self._early.keys():
            return rank, self._early.pop(rank)
        while True:
            rank, message = self.peer_comm.receive(sorted(missing))
            if message["number"] == self.number:
                return rank, message
            self._early[rank] = message


SMALL = 1 << 16
"""Maximum bytes of a slice that is copied into its message: faster than a separate frame with its header."""


class PeerExchange(GatheringExchange):
    """Exchange between hosts: z has the columns that a block reads, received from the workers that have their elements.

    z is overwritten when the product that read it is done. Two slots alternate, as buffers of packed elements do: a
    slot is written again two turns after it was sent, when it has been received.

    Parameters
    ----------
    halo : the columns, by the workers that have their elements, which may be cut differently from the block's rows
    requested : for each worker, the elements of this one that it asked for, its `Halo.needed`; None for all
    device : copies to and from the device of the kernels, where vectors are then; None for a host
    """

    def __init__(
        self, turns: AllToAll, halo: Halo, requested: Sequence[np.ndarray | None], device: DeviceCopies | None = None
    ) -> None:
        self._turns, self._halo, self._device, self._starts = turns, halo, device, halo.starts
        self._requested = {other: rows for other in turns.others if (rows := requested[other]) is not None}
        # Elements of z, of two slots and their packed elements, and of up to two messages of each other worker.
        n_held, n_rows = self._starts[-1], halo.count(halo.rank)
        n_packed = sum(len(rows) for rows in self._requested.values())
        n_host = n_held + 2 * (n_rows + n_packed) + 2 * (n_held - n_rows)
        self.n_elements, self.n_staged = (n_host, 0) if device is None else (n_held + n_rows, n_host)

    def _allocate(self, zeros: Zeros) -> None:
        none, has_device = zeros(0), self._device is not None
        self._zeros: Zeros = (lambda n: np.zeros((n, *none.shape[1:]), none.dtype)) if has_device else zeros
        self._columns: np.ndarray = self._zeros(self._starts[-1])
        self._packs = [{other: self._zeros(len(rows)) for other, rows in self._requested.items()} for _ in range(2)]
        self._slots: list[np.ndarray] = []
        self._on_device: Any = None if self._device is None else self._device.put(self._host_slot())

    @property
    def exchanged_bytes(self) -> int:
        return self._turns.received_bytes

    @property
    def waited_s(self) -> float:
        return self._turns.waited_s

    @property
    def z(self) -> Any:
        return self._columns if self._device is None else self._device.put(self._columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of their index lists, of send buffers and of slots."""
        lists: list[np.ndarray] = [
            *self._requested.values(),
            *(out for packs in self._packs for out in packs.values()),
            *self._slots,
        ]
        on_device = 0 if self._on_device is None else int(self._on_device.nbytes)
        return self._columns.nbytes + self._halo.nbytes + sum(array.nbytes for array in lists) + on_device

    def slot(self) -> Any:
        return self._host_slot() if self._device is None else self._on_device

    def get_own(self) -> Any:
        if self._device is not None:
            return self._on_device
        return self._columns[self._starts[self._halo.rank] : self._starts[self._halo.rank + 1]]

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        if self._device is not None:
            self._host_slot()[:] = self._device.get(self._on_device)
        own = [(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums]
        totals = list(sums)
        for message in self._trade(self._host_slot(), {"sums": own}):
            totals = [total + StepSums(*other) for total, other in zip(totals, message["sums"], strict=True)]
        return totals

    def fetch(self, x: np.ndarray) -> np.ndarray:
        """Exchange elements of x, (n_own,) or (n_own, k), on hosts; return the columns. x must not be written to before
        the turn after the next."""
        self._trade(x, {})
        return self._columns

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        return self._turns.gather(own)

    def _host_slot(self) -> np.ndarray:
        while len(self._slots) < 2:
            self._slots.append(self._zeros(self._halo.count(self._halo.rank)))
        return self._slots[self._turns.number % 2]

    def _trade(self, x: np.ndarray, added: Message) -> Iterable[Message]:
        """Exchange elements of x, write the columns, and return the messages of the others.

        Parameters
        ----------
        added : additional entries of each message
        """
        rank, packs, own = self._turns.rank, self._packs[self._turns.number % 2], self._halo.needed[self._turns.rank]
        # All are packed before any is sent: while the event loop sends, this thread would wait for the GIL.
        for other, out in packs.items():
            pack(x, self._requested[other], out)
        slices = {other: packs.get(other, x) for other in self._turns.others}
        if own is None:
            self._put(rank, x)
        else:
            pack(x, own, self._columns[self._starts[rank] : self._starts[rank + 1]])
        received = self._turns.trade(
            {other: {**added, "z": s.tobytes() if s.nbytes < SMALL else s} for other, s in slices.items()}
        )
        for owner, message in received.items():
            slice_ = np.frombuffer(message["z"], self._columns.dtype).reshape(-1, *self._columns.shape[1:])
            self._put(owner, slice_)
            self._turns.received_bytes += slice_.nbytes
        return received.values()

    def _put(self, owner: int, slice_: np.ndarray) -> None:
        self._columns[self._starts[owner] : self._starts[owner + 1]] = slice_


class ClientExchange(Exchange):
    """Exchange of one vector through the client, which sets z by `give`, takes the slice by `take`, and adds up.

    Parameters
    ----------
    halo : the columns held here
    device : copies to and from the device of the kernels; None for a host
    """

    z: Any = None
    exchanged_bytes = 0

    def __init__(self, halo: Halo, device: DeviceCopies | None = None) -> None:
        self._halo, self._device = halo, device

    def _allocate(self, zeros: Zeros) -> None:
        self.z, self._own = zeros(0), zeros(self._halo.count(self._halo.rank))

    @property
    def nbytes(self) -> int:
        return int(self.z.nbytes + self._own.nbytes) + self._halo.nbytes

    def give(self, z: np.ndarray) -> None:
        """Select from z, (n_cols,), the columns that the next product reads."""
        held = self._halo.select(z)
        self.z = held if self._device is None else self._device.put(held)
        self.exchanged_bytes += z.nbytes

    def take(self) -> np.ndarray:
        """Return this worker's slice of the next z, (n_rows,), in a buffer owned by the caller from now on."""
        if self._device is not None:
            taken: np.ndarray = self._device.get(self._own)
            return taken
        own: np.ndarray = self._own
        self._own = np.empty_like(own)
        return own

    def slot(self) -> Any:
        return self._own

    def get_own(self) -> Any:
        return self._own

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        return list(sums)
