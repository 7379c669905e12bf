"""Products for power iteration that are rounds of tasks: x goes to all workers, and all else is done in the client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mgspmv.distribute.agent import get_agent
from mgspmv.distribute.drives import list_planned
from mgspmv.distribute.matrix import DistributedMatrix
from mgspmv.exchange.links import Member
from mgspmv.iterate.pagerank import Times
from mgspmv.iterate.tally import Tally
from mgspmv.kernels.device import measure_memory
from mgspmv.order import permute, restore


@dataclass
class _Share:
    """What a worker did since it was last told, and what it holds."""

    product_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    received_bytes: int = 0
    held_bytes: dict[str, int] = field(default_factory=dict)
    """By part."""
    taken: dict[str, int] = field(default_factory=dict)
    """Of `mgspmv.kernels.device.measure_memory`."""

    def take_times(self) -> tuple[float, float, float, int, int]:
        """The fields of `Times`; seconds and bytes begin at 0 again."""
        spent = (self.product_s, self.exchange_s, self.wait_s, self.received_bytes)
        self.product_s, self.exchange_s, self.wait_s, self.received_bytes = 0.0, 0.0, 0.0, 0
        return (*spent, sum(self.held_bytes.values()))


class Rounds:
    """The products of a run on a cluster, and what they take; as `mgspmv.iterate.power.Company`.

    Parameters
    ----------
    matrices : that are multiplied
    precision : of vectors and values
    threads : of each worker; None for what it was given by its cluster
    weights : False takes each stored entry as 1
    """

    def __init__(
        self,
        matrices: Sequence[DistributedMatrix],
        precision: Literal["float64", "float32"],
        threads: int | None,
        weights: bool,
    ) -> None:
        self._matrices, self._asked, self._iteration = matrices, (precision, threads, weights), 1
        self._shares: dict[Member, _Share] = {member: _Share() for matrix in matrices for member in matrix.members}

    def multiply(self, matrix: DistributedMatrix, x: np.ndarray) -> np.ndarray:
        """(n,) the product with one of the matrices, in the order of the source as x is."""
        cluster, members, keys = matrix.cluster, matrix.members, matrix.part_keys
        phase, token = f"iteration {self._iteration}", uuid.uuid4().hex
        began = time.perf_counter()
        multiplied = 0.0

        def look(n_done: int) -> None:
            nonlocal multiplied
            multiplied = time.perf_counter()

        with ExitStack() as stack:
            ordered = permute(np.ascontiguousarray(x, self._asked[0]), matrix.order)
            sent = stack.enter_context(cluster.scatter(ordered, members, phase, "mgspmv-multiply"))
            ready = time.perf_counter()
            futures = [
                cluster.submit(member, f"mgspmv-multiply-{token}-{rank}", multiply_timed, key, sent, *self._asked)
                for rank, (member, key) in enumerate(zip(members, keys, strict=True))
            ]
            stack.callback(cluster.release, futures)
            answers = cluster.settle(futures, members, phase, look)
        product = np.empty(len(x), self._asked[0])
        for (start, stop), (rows, *_) in zip(pairwise(matrix.bounds), answers, strict=True):
            product[start:stop] = rows
        moved_s = ready - began + time.perf_counter() - multiplied
        for member, key, (_, product_s, held_bytes, taken) in zip(members, keys, answers, strict=True):
            share = self._shares[member]
            share.product_s += product_s
            share.exchange_s += moved_s
            share.wait_s += max(0.0, multiplied - ready - product_s)
            share.received_bytes += x.nbytes
            share.held_bytes[key], share.taken = held_bytes, taken
        restored: np.ndarray = restore(product, matrix.order)
        return restored

    def add_up(self, tally: Tally) -> Tally:
        return tally

    def tell_times(self, elapsed_s: float, n_bytes: int) -> Times:
        self._iteration += 1
        return Times(*zip(*(share.take_times() for share in self._shares.values()), strict=True))

    def measure_memory(self) -> dict[str, list[int]]:
        """What each worker took, and what the plans of the matrices said that it would; see `Solution.memory`."""
        planned = dict.fromkeys(self._shares, 0)
        for matrix in self._matrices:
            for member, n_bytes in zip(matrix.members, list_planned(matrix), strict=True):
                planned[member] += n_bytes
        names = dict.fromkeys(name for share in self._shares.values() for name in share.taken)
        taken = {name: [share.taken.get(name, 0) for share in self._shares.values()] for name in names}
        return taken | {"planned_bytes": list(planned.values())}


def multiply_timed(
    key: str, x: Any, dtype: Literal["float64", "float32"], threads: int | None, weights: bool
) -> tuple[np.ndarray, float, int, dict[str, int]]:
    """The task that multiplies with a part: its rows of the product, seconds, and bytes that it holds and has taken."""
    part = get_agent().get_part(key)
    began = time.perf_counter()
    rows = part.multiply(x, None, 1.0, 0.0, dtype=dtype, threads=threads, weights=weights)
    product_s = time.perf_counter() - began
    return rows, product_s, part.nbytes + x.nbytes + rows.nbytes, measure_memory(has_device=part.backend == "cuda")
