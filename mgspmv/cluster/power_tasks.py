"""Products for power iteration as rounds of tasks: x is sent to all workers, and the client does the other steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mgspmv.cluster.executors import HeldObjects, list_planned
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.row_block import ProductOptions
from mgspmv.exchange.peer_comm import Member
from mgspmv.order import permute, restore
from mgspmv.solvers.power import PowerTask
from mgspmv.solvers.steps import Times


class TaskProducts:
    """Products of a run on a cluster and their costs, for `mgspmv.solvers.power.Products`.

    Parameters
    ----------
    matrices : factors of the products
    task : options of the run
    """

    def __init__(self, matrices: Sequence[DistributedMatrix], task: PowerTask) -> None:
        self._matrices, self._iteration = matrices, 1
        self._options = ProductOptions(task.precision, threads=task.threads, weights=task.weights)
        self._members = [*dict.fromkeys(member for matrix in matrices for member in matrix.members)]
        self._spent = np.zeros((4, len(self._members)))
        self._held: dict[str, dict[Member, int]] = {}
        self._taken: dict[Member, dict[str, int]] = {}

    def multiply(self, matrix: DistributedMatrix, x: np.ndarray) -> np.ndarray:
        """Return the product with one of the matrices, (n,), in the order of the source as x is."""
        members, phase = matrix.members, f"iteration {self._iteration}"
        blocks = HeldObjects(matrix.cluster, members, "power_iteration", matrix.row_block_keys)
        ordered = permute(np.ascontiguousarray(x, self._options.dtype), matrix.order)
        try:
            answers, moved_s, computed_s = blocks.broadcast(ordered, phase, "multiply_timed", self._options)
        finally:
            blocks.release()
        product = np.empty(len(x), self._options.dtype)
        for (start, stop), (rows, *_) in zip(pairwise(matrix.bounds), answers, strict=True):
            product[start:stop] = rows
        for member, key, (_, product_s, held_bytes, taken) in zip(members, blocks.keys, answers, strict=True):
            waited_s = max(0.0, computed_s - product_s)
            self._spent[:, self._members.index(member)] += product_s, moved_s, waited_s, x.nbytes
            self._held.setdefault(key, {})[member], self._taken[member] = held_bytes, taken
        restored: np.ndarray = restore(product, matrix.order)
        return restored

    def report_times(self, elapsed_s: float, n_bytes: int) -> Times:
        self._iteration += 1
        product_s, moved_s, waited_s, received = map(tuple, self._spent.tolist())
        self._spent[:] = 0.0
        held = tuple(sum(own.get(member, 0) for own in self._held.values()) for member in self._members)
        return Times(product_s, moved_s, waited_s, tuple(map(int, received)), held)

    def measure_memory(self) -> dict[str, list[int]]:
        """Return the bytes that each worker took, and those planned for the matrices; see `Solution.memory`."""
        planned = dict.fromkeys(self._members, 0)
        for matrix in self._matrices:
            for member, n_bytes in zip(matrix.members, list_planned(matrix), strict=True):
                planned[member] += n_bytes
        names = dict.fromkeys(name for taken in self._taken.values() for name in taken)
        taken = {name: [self._taken[member].get(name, 0) for member in self._members] for name in names}
        return taken | {"planned_bytes": list(planned.values())}
