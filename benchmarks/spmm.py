"""Check, then time the product Y = A X of many vectors at once, compared with cuSPARSE or SciPy and with one at a time.

    python -m benchmarks.spmm --matrix fem --matrix rmat24 --pattern
    python -m benchmarks.spmm web.zarr --vectors 8 --vectors 32

Tables are Markdown. A program whose product is wrong gets no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.checks import check_product, make_reference
from benchmarks.contenders import PEER_TITLES
from benchmarks.cusparse import ALGORITHMS_MANY, CusparseManyProduct
from benchmarks.machines import Machine, Rounds, Times, choose_machine
from benchmarks.matrices import add_values, make_vector
from benchmarks.measure import say
from benchmarks.program import (
    add_backend_option,
    add_json_option,
    add_matrix_options,
    add_size_options,
    choose_backend,
    choose_dtypes,
    end,
    make_parser,
    parse_count,
    run_program,
    write_json,
)
from benchmarks.spmv import Case, Say, describe_error, find_cases
from benchmarks.tables import Setting, format_ms, format_row, format_setting
from mgspmv.errors import BackendError
from mgspmv.kernels.catalogue import Backend
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when a product was wrong."""
    options = _parse(arguments)
    backend = choose_backend(options.backend)
    cases = find_cases(options.matrix, options.stores, backend, options.size)
    machine = choose_machine(backend)
    setting = Setting.observe("benchmarks.spmm", arguments, machine)
    dtypes = choose_dtypes(options.dtype)
    bench = ManyBench(machine, dtypes, options.vectors or WIDTHS, options.values, options.rounds, say)
    for case in cases:
        bench.run(case)
        write_json(options.json, bench.to_dict(setting))  # after each: an interrupted run leaves what it found
    wrong = sorted({r.program for r in bench.records if r.is_wrong})
    return end(format_report(setting, bench.records, backend), "products", wrong)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_matrix_options(parser, dtype="float32")
    parser.add_argument("--vectors", action="append", type=parse_count, metavar="K", help="at once; repeatable")
    add_backend_option(parser)
    add_size_options(parser, "times each is timed at most (20, on the host 5)")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if not options.matrix and not options.stores:
        parser.error("no matrix is named; pass stores, or --matrix NAME of `python -m benchmarks.spmv --list`")
    return options


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

    def to_dict(self, setting: Setting) -> dict[str, Any]:
        """For scripts."""
        return {"setting": asdict(setting), "records": [record.to_dict() for record in self.records]}


def describe_record(record: Record) -> str:
    """A line for who waits."""
    head = f"{record.matrix} {record.dtype} k = {record.k} {record.program}:"
    if record.times is None:
        return f"{head} {'WRONG: ' if record.is_wrong else ''}{record.problem}"
    return f"{head} {record.times.median_s * 1e3:.4g} ms"


def format_report(setting: Setting, records: Sequence[Record], backend: Backend) -> str:
    """The table of products with many vectors, below what it was measured on."""
    peer = PEER_TITLES[backend]
    titles = [
        "matrix",
        "nonzeros",
        "values",
        "dtype",
        "k",
        "ours",
        "one at a time",
        peer,
        f"{peer} / ours",
        "G terms/s",
    ]
    parts = [*format_setting(setting), "", format_row(titles), format_row(["---", *["---:"] * (len(titles) - 1)])]
    for key in dict.fromkeys((r.matrix, r.dtype, r.k) for r in records):
        own = {r.program: r for r in records if (r.matrix, r.dtype, r.k) == key}
        medians = {name: r.times.median_s for name, r in own.items() if r.times is not None}
        best = min((medians[name] for name, r in own.items() if r.is_peer and name in medians), default=None)
        ours, one = medians.get("ours"), medians.get("ours, one at a time")
        first = next(iter(own.values()))
        rate = "" if ours is None else f"{first.nnz * first.k / ours / 1e9:,.4g}"
        ratio = "" if ours is None or best is None else f"{best / ours:.2f}"
        kind = "none" if first.is_pattern else "given"
        cells = [first.matrix, f"{first.nnz:,}", kind, first.dtype, str(first.k)]
        shown = "WRONG" if own["ours"].is_wrong else format_ms(ours)
        parts.append(format_row([*cells, f"**{shown}**", format_ms(one), format_ms(best), ratio, rate]))
    problems = [f"- {r.matrix} {r.dtype}, k = {r.k}, {r.program}: {r.problem}" for r in records if r.problem]
    notes = [
        "Times are medians in ms, with warm caches, of Y = A X with X of k columns, row-major.",
        f"{peer} / ours: how many times as fast ours is, beside the fastest algorithm of {peer}. G terms/s: nonzeros "
        "times k, over the time.",
    ]
    return "\n".join([*parts, "", *(f"- {note}" for note in notes), *([""] if problems else []), *problems, ""])


if __name__ == "__main__":
    run_program(main)
