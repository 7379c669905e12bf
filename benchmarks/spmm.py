"""Check, then time, the product Y = A X with many vectors at once, beside another program and beside one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.checks import check_product, make_reference
from benchmarks.machines import Machine, Rounds, Times
from benchmarks.matrices import add_values, make_vector
from benchmarks.spmv import Case, Say, describe_error
from mgspmv.errors import BackendError
from mgspmv.kernels.cusparse import ALGORITHMS_MANY, CusparseManyProduct
from mgspmv.kernels.select import bind_kernel, bind_product
from mgspmv.model import CsrBlock, Precision

WIDTHS = (4, 8, 16, 32, 64)
"""Numbers of vectors that are timed unless others are asked for."""


@dataclass(frozen=True)
class Record:
    """What was found of one program on a matrix with so many vectors."""

    matrix: str
    n_rows: int
    nnz: int
    is_pattern: bool
    dtype: str
    k: int
    """Vectors."""
    program: str
    """`ours`, `ours, one at a time`, or a peer."""
    times: Times | None = None
    """With warm caches; None where there is a problem."""
    problem: str | None = None
    is_wrong: bool = False
    """Whether the problem is a wrong product."""

    @property
    def is_peer(self) -> bool:
        return not self.program.startswith("ours")

    def to_dict(self) -> dict[str, Any]:
        """For scripts."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class ManyBench:
    """Runs cases on a machine and keeps what it found.

    Parameters
    ----------
    values : True gives values to patterns, False takes them from all; None leaves each as it is
    say : told what was found as soon as it is
    """

    def __init__(
        self,
        machine: Machine,
        dtypes: Sequence[str],
        widths: Sequence[int],
        values: bool | None,
        rounds: int | None,
        say: Say,
    ) -> None:
        self._machine, self._dtypes, self._widths, self._values, self._say = machine, dtypes, widths, values, say
        self._rounds = Rounds(rounds or machine.n_rounds)
        self.records: list[Record] = []

    def run(self, case: Case) -> None:
        """Check and time every program on a matrix in every dtype with every number of vectors."""
        block = case.load(self._machine)
        for dtype in self._dtypes:
            own = self._fit_values(block, dtype)
            for k in self._widths:
                self._run_width(case, own, dtype, k)
                self._machine.free()

    def _fit_values(self, block: CsrBlock, dtype: str) -> CsrBlock:
        if self._values is False:
            return replace(block, data=None)
        if block.data is not None:
            return replace(block, data=block.data.astype(dtype, copy=False))
        return add_values(self._machine.xp, block, dtype) if self._values else block

    def _run_width(self, case: Case, block: CsrBlock, dtype: str, k: int) -> None:
        machine = self._machine
        x = make_vector(machine.xp, block.n_cols * k, dtype).reshape(block.n_cols, k)
        reference = make_reference(machine, block, x)
        blank = Record(case.name, block.n_rows, block.nnz, block.data is None, dtype, k, "")
        for program, make in self._list_programs(block, dtype, k).items():
            record = replace(blank, program=program)
            y = machine.xp.full((block.n_rows, k), float("nan"), dtype)
            try:
                run, close = make(x, y)
                try:
                    run()
                    machine.wait()
                    verdict = check_product(machine, y, reference)
                    if verdict.problem is None:
                        record = replace(record, times=machine.time(run, "warm", self._rounds))
                    else:
                        record = replace(record, problem=verdict.problem, is_wrong=True)
                finally:
                    close()
            except (BackendError, MemoryError) as error:
                record = replace(record, problem=describe_error(error))
            self.records.append(record)
            self._say(describe_record(record))
            machine.free()

    def _list_programs(self, block: CsrBlock, dtype: str, k: int) -> dict[str, Callable[[Any, Any], Any]]:
        """What makes (run, close) of X and Y, by the name of the program."""
        precision: Precision = "float32" if dtype == "float32" else "float64"
        backend = self._machine.backend

        def make_ours(x: Any, y: Any) -> Any:
            kernel = bind_kernel(block, precision, kernel="csr-many" if backend == "cuda" else "auto", backend=backend)
            return lambda: kernel.multiply(x, y), lambda: None

        def make_single(x: Any, y: Any) -> Any:
            kernel = bind_product(block, "float32" if dtype == "float32" else "float64", backend=backend)
            columns = [(x[:, c].copy(), y[:, c].copy()) for c in range(k)]

            def run() -> None:
                for own_x, own_y in columns:
                    kernel.multiply(own_x, own_y)

            run()
            for c, (_, own_y) in enumerate(columns):  # before it is timed: what is checked
                y[:, c] = own_y
            return run, lambda: None

        def make_cusparse(algorithm: str) -> Callable[[Any, Any], Any]:
            def make(x: Any, y: Any) -> Any:
                product = CusparseManyProduct(block, x.dtype, k, algorithm)
                return lambda: product.run(x, y), product.close

            return make

        def make_scipy(x: Any, y: Any) -> Any:
            import numpy as np
            import scipy.sparse

            data = np.ones(block.nnz, x.dtype) if block.data is None else block.data
            matrix = scipy.sparse.csr_array((data, block.indices, block.indptr), shape=(block.n_rows, block.n_cols))

            def run() -> None:
                y[...] = matrix @ x

            return run, lambda: None

        ours = {"ours": make_ours, "ours, one at a time": make_single}
        if backend == "cpu":
            return {"scipy": make_scipy, **ours}
        return {**{name: make_cusparse(name) for name in ALGORITHMS_MANY}, **ours}

    def to_dict(self, setting: dict[str, str]) -> dict[str, Any]:
        """For scripts."""
        return {"setting": setting, "records": [record.to_dict() for record in self.records]}


def describe_record(record: Record) -> str:
    """A line for who waits."""
    head = f"{record.matrix} {record.dtype} k = {record.k} {record.program}:"
    if record.times is None:
        return f"{head} {'WRONG: ' if record.is_wrong else ''}{record.problem}"
    return f"{head} {record.times.median_s * 1e3:.4g} ms"
