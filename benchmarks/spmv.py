"""Check, then time the product y = A x with every kernel on every matrix, compared with cuSPARSE or SciPy.

    python -m benchmarks.spmv --json found.json > found.md
    python -m benchmarks.spmv --list
    python -m benchmarks.spmv --matrix fem --matrix rmat24 --kernel csr-vector --kernel bsr --dtype float32 --warm
    python -m benchmarks.spmv my.zarr other.zarr

Tables are Markdown. A kernel whose product is wrong gets no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.ceilings import Ceilings, Roofline
from benchmarks.checks import Reference, check_product, make_reference
from benchmarks.contenders import PEERS, make_contender
from benchmarks.machines import Machine, Rounds, State, Times, choose_machine
from benchmarks.matrices import (
    DATA_VARIABLE,
    REAL,
    RECIPES,
    REPEATED,
    REPEATED_SIZE,
    Recipe,
    add_values,
    check_name,
    find_real,
    make_vector,
    read_real,
    repeat_block,
)
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
    print_names,
    run_program,
    write_json,
)
from benchmarks.spmv_tables import format_report
from benchmarks.tables import Setting
from mgspmv.api.matrix import open_matrix
from mgspmv.errors import BackendError, FormatError, OptionError
from mgspmv.kernels.catalogue import SPARSE_KERNELS
from mgspmv.kernels.select import list_kernels, rank_products
from mgspmv.model import INT32_LIMIT, CsrBlock

HOST_SHARE = 256
"""A matrix has so many times fewer nonzeros on the host than on a device."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """A matrix of the benchmark."""

    name: str
    family: str
    load: Callable[[Machine], CsrBlock]
    """Makes or reads it, where the machine has its arrays."""
    has_values: bool = True
    """Whether it gets values where it has none and nothing else was asked for."""


@dataclass(frozen=True)
class Choices:
    """What is run, and how."""

    kernels: Sequence[str]
    dtypes: Sequence[str] = ("float32", "float64")
    states: Sequence[State] = ("warm", "cold")
    values: bool | None = None
    """True gives values to patterns, False takes them from all; None leaves each as it is, made ones with values."""
    rounds: int | None = None
    """How often each is timed at most; default as suits the machine."""


@dataclass(frozen=True)
class Record:
    """What was found of a kernel, or of another program, on a matrix in a dtype."""

    matrix: str
    family: str
    dtype: str
    kernel: str
    n_rows: int
    n_cols: int
    nnz: int
    is_pattern: bool
    minimal_bytes: int
    """Of matrix and vectors, as `count_bytes` does."""
    auto_rank: int | None = None
    """Place among the kernels that `auto` tries one after the other; None where it does not try this one."""
    problem: str | None = None
    """Why there is no time."""
    is_wrong: bool = False
    """Whether the problem is a wrong product."""
    error: float | None = None
    """Largest |y - A x| / (|A| |x|) of the rows that were checked; None where it is not finite."""
    format_bytes: int | None = None
    """Of the matrix, as the kernel reads it."""
    prepare_s: float | None = None
    """To make the format and the first product, compiling included."""
    preprocess_s: float | None = None
    """In the preprocessing of cuSPARSE."""
    times: dict[State, Times] = field(default_factory=dict)
    bytes_per_s: dict[State, float] = field(default_factory=dict)
    """Minimal bytes over the median time."""
    copy_share: dict[State, float] = field(default_factory=dict)
    """The same over the bandwidth of a copy."""
    roofline_share: dict[State, float] = field(default_factory=dict)
    """The least time by bandwidth and random gathers over the median time; above 1 where columns are not random."""
    ratio: dict[State, float] = field(default_factory=dict)
    """Median of the fastest peer over the median here: how many times as fast this is."""

    @property
    def is_peer(self) -> bool:
        return any(self.kernel in peers for peers in PEERS.values())

    def to_dict(self) -> dict[str, Any]:
        """For scripts."""
        return {name: value for name, value in asdict(self).items() if value is not None and value != {}}


# --- the command line ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when a product was wrong."""
    options = _parse(arguments)
    if options.list:
        named = [(k.name, ", ".join(k.backends or k.step_backends), k.summary) for k in SPARSE_KERNELS]
        print_names(matrices=list(list_matrices()), kernels=named)
        return 0
    backend = choose_backend(options.backend)
    kernels, dtypes = check_kernels(options.kernel, backend), choose_dtypes(options.dtype)
    choices = Choices(kernels, dtypes, options.states, options.values, options.rounds)
    cases = find_cases(options.matrix, options.stores, backend, options.size)
    machine = choose_machine(backend)
    setting = Setting.observe("benchmarks.spmv", arguments, machine)
    bench = Bench(machine, choices, say)
    for case in cases:
        bench.run(case)
        write_json(options.json, bench.to_dict(setting))  # after each: an interrupted run leaves what it found
    if not bench.records:
        raise OptionError("nothing was timed: every matrix was left out")
    report = format_report(setting, bench.records, bench.left_out, backend, bench.ceilings.find_copy_rate())
    return end(report, "products", sorted({r.kernel for r in bench.records if r.is_wrong}))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_matrix_options(parser, dtype="both")
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME", help="a kernel of --list; repeatable")
    parser.add_argument("--cold", action="store_const", dest="states", const=("cold",), help="caches (both)")
    parser.add_argument("--warm", action="store_const", dest="states", const=("warm",))
    parser.set_defaults(states=("warm", "cold"))
    add_backend_option(parser)
    add_size_options(parser, "times each is timed at most (20, on the host 5)")
    parser.add_argument("--list", action="store_true", help="name matrices and kernels, and run nothing")
    add_json_option(parser)
    return parser.parse_args(arguments)


# --- what is run -----------------------------------------------------------------------------------------------------


def find_cases(names: Iterable[str], stores: Iterable[str], backend: str, size: int | None) -> list[Case]:
    """The matrices of these names, or all but the greatest where neither names nor stores are given, and the stores.

    Parameters
    ----------
    size : nonzeros of each made matrix, about; default as on the list, on the host 256 times fewer

    Raises
    ------
    OptionError : no matrix has that name; it is too large for the host
    """
    names, stores = list(names), list(stores)
    if not names and not stores:
        names = [name for name, recipe in RECIPES.items() if not recipe.by_name_only] + [*REAL, *REPEATED]
    made = [_make_case(check_name(name), backend, size) for name in names]
    return made + [_find_stored(store) for store in stores]


def check_kernels(names: Iterable[str], backend: str) -> list[str]:
    """These kernels; all that the backend has where none is named.

    Raises
    ------
    OptionError : the backend has no kernel of that name
    """
    there = list_kernels(backend)
    names = list(names) or there
    for name in names:
        if name not in there:
            raise OptionError(f"expected a kernel of backend {backend!r}, got {name!r}; pass one of {', '.join(there)}")
    return names


def _make_case(name: str, backend: str, size: int | None) -> Case:
    if name in REAL:
        return Case(name, "real", lambda machine: _put(_read(name), machine), has_values=False)
    if name in REPEATED:
        n = size or (REPEATED_SIZE if backend == "cuda" else REPEATED_SIZE // HOST_SHARE)
        return Case(name, "real, repeated", lambda machine: repeat_block(machine.xp, _read(name), n))
    recipe = RECIPES[name]
    if recipe.by_name_only and size is None and backend == "cpu":
        raise OptionError(f"{name} has {recipe.size:,} nonzeros, for a device; add --backend cuda, or --size")
    n = size or (recipe.size if backend == "cuda" else max(1, recipe.size // HOST_SHARE))
    return Case(name, recipe.family, lambda machine: recipe.make(machine.xp, n), not recipe.by_name_only)


def _read(name: str) -> CsrBlock:
    path = find_real(name)
    if path is None:
        raise FileNotFoundError(f"there is no {(REAL | REPEATED)[name]} in the folder that {DATA_VARIABLE} names")
    return read_real(path)


def _find_stored(store: str) -> Case:
    with open_matrix(store) as matrix:  # refuse what is no store before anything is timed
        dtype = matrix.info.dtype

    def load(machine: Machine) -> CsrBlock:
        with open_matrix(store) as matrix:
            block = matrix.block(dtype)
            return _put(block, machine)

    return Case(store.rstrip("/").rpartition("/")[2], "store", load, has_values=False)


def _put(block: CsrBlock, machine: Machine) -> CsrBlock:
    put = machine.xp.asarray
    data = None if block.data is None else put(block.data)
    return CsrBlock(0, block.n_cols, put(block.indptr), put(block.indices), data)


# --- running ---------------------------------------------------------------------------------------------------------


class Bench:
    """Runs cases on a machine and keeps what it found.

    Parameters
    ----------
    say : told what was found as soon as it is
    """

    def __init__(self, machine: Machine, choices: Choices, say: Say) -> None:
        self._machine, self._choices, self._say = machine, choices, say
        self.ceilings = Ceilings(machine)
        self.records: list[Record] = []
        self.left_out: dict[str, str] = {}
        """Matrices that are not here, and why."""

    def run(self, case: Case) -> None:
        """Check and time every kernel on a matrix in every dtype."""
        try:
            self._run(case)
        except (FileNotFoundError, MemoryError) as error:
            self.left_out[case.name] = describe_error(error)
            self._say(f"{case.name}: left out, {self.left_out[case.name]}")
        self._machine.free()

    def _run(self, case: Case) -> None:
        block = case.load(self._machine)
        for dtype in self._choices.dtypes:
            self._run_dtype(case, self._fit_values(case, block, dtype), dtype)
            self._machine.free()

    def _fit_values(self, case: Case, block: CsrBlock, dtype: str) -> CsrBlock:
        values = self._choices.values
        if values is False:
            return replace(block, data=None)
        if block.data is not None:
            return replace(block, data=block.data.astype(dtype, copy=False))
        return add_values(self._machine.xp, block, dtype) if values or case.has_values else block

    def _run_dtype(self, case: Case, block: CsrBlock, dtype: str) -> None:
        x = make_vector(self._machine.xp, block.n_cols, dtype)
        reference = make_reference(self._machine, block, x)
        roofline = self.ceilings.find_roofline(block.n_cols, dtype)
        self._machine.free()
        ranked = rank_products(block, "float32" if dtype == "float32" else "float64", self._machine.backend)
        self._machine.free()
        peers: list[Record] = []
        for name in (*PEERS[self._machine.backend], *self._choices.kernels):
            record = _begin_record(case, block, dtype, name)
            record = replace(record, auto_rank=ranked.index(name) if name in ranked else None)
            record = self._measure(record, block, x, reference)
            record = _rate(record, roofline, peers)
            peers += [record] if record.is_peer else []
            self.records.append(record)
            self._say(describe_record(record))

    def _measure(self, record: Record, block: CsrBlock, x: Any, reference: Reference) -> Record:
        """Check a product, and time it if it is right."""
        machine = self._machine
        y = machine.xp.full(block.n_rows, float("nan"), x.dtype)
        began = time.perf_counter()
        try:
            contender = make_contender(record.kernel, machine.backend, block, x, y)
        except (FormatError, BackendError, MemoryError) as error:
            return replace(record, problem=describe_error(error))
        try:
            contender.run()
            machine.wait()
            record = replace(
                record,
                prepare_s=time.perf_counter() - began,
                format_bytes=contender.nbytes,
                preprocess_s=contender.preprocess_s,
            )
            verdict = check_product(machine, contender.y, reference)
            if verdict.problem is not None:
                return replace(record, problem=verdict.problem, is_wrong=True)
            first = contender.y.copy()
            rounds = Rounds(self._choices.rounds or machine.n_rounds)
            times = {state: machine.time(contender.run, state, rounds) for state in self._choices.states}
            if not record.is_peer and not bool((contender.y == first).all()):
                return replace(record, problem="its runs do not all give the same bits", is_wrong=True)
            return replace(record, error=verdict.error, times=times)
        except (FormatError, BackendError, MemoryError) as error:
            return replace(record, problem=describe_error(error))
        finally:
            contender.close()
            del contender
            machine.free()

    def to_dict(self, setting: Setting) -> dict[str, Any]:
        """For scripts."""
        return {
            "setting": asdict(setting),
            "ceilings": self.ceilings.to_dict(),
            "records": [record.to_dict() for record in self.records],
            "left_out": self.left_out,
        }


def count_bytes(block: CsrBlock, dtype: str) -> int:
    """Least bytes of a product from CSR: matrix and y once, and x once, but no more of it than there are nonzeros.

    nnz (value bytes + index bytes) + (n_rows + 1) offset bytes + (min(n_cols, nnz) + n_rows) vector bytes; offsets have
    8 bytes from 2^31 nonzeros on and indices from 2^31 columns on, else 4. A pattern has no values.
    """
    value = 4 if dtype == "float32" else 8
    offset, index = (8 if n >= INT32_LIMIT else 4 for n in (block.nnz, block.n_cols))
    entry = index + (0 if block.data is None else value)
    return block.nnz * entry + (block.n_rows + 1) * offset + (min(block.n_cols, block.nnz) + block.n_rows) * value


def describe_record(record: Record) -> str:
    """A line for who waits."""
    head = f"{record.matrix} {record.dtype} {record.kernel}:"
    if record.problem is not None:
        return f"{head} {'WRONG: ' if record.is_wrong else ''}{record.problem}"
    return f"{head} {'; '.join(_describe_state(record, state) for state in record.times)}"


def _describe_state(record: Record, state: State) -> str:
    shares = f"{record.copy_share[state]:.0%} of copy, {record.roofline_share[state]:.0%} of roofline"
    ratio = f", {record.ratio[state]:.2f} x" if state in record.ratio else ""
    rate = record.bytes_per_s[state] / 1e9
    return f"{state} {record.times[state].median_s * 1e3:.4g} ms, {rate:.4g} GB/s, {shares}{ratio}"


def _begin_record(case: Case, block: CsrBlock, dtype: str, name: str) -> Record:
    shape = (block.n_rows, block.n_cols, block.nnz)
    return Record(case.name, case.family, dtype, name, *shape, block.data is None, count_bytes(block, dtype))


def _rate(record: Record, roofline: Roofline, peers: Sequence[Record]) -> Record:
    """Add the rates, shares and ratios that follow from the times."""
    medians = {state: times.median_s for state, times in record.times.items()}
    best = {s: min((p.times[s].median_s for p in peers if s in p.times), default=None) for s in medians}
    least_s = roofline.predict(record.minimal_bytes, record.nnz)
    rates = {state: record.minimal_bytes / median_s for state, median_s in medians.items()}
    return replace(
        record,
        bytes_per_s=rates,
        copy_share={state: rate / roofline.copy_bytes_per_s for state, rate in rates.items()},
        roofline_share={state: least_s / median_s for state, median_s in medians.items()},
        ratio={} if record.is_peer else {s: b / medians[s] for s, b in best.items() if b is not None},
    )


def describe_error(error: Exception) -> str:
    """In words."""
    return "does not fit into memory" if isinstance(error, MemoryError) else str(error)


def list_matrices() -> Iterator[tuple[str, str, str]]:
    """Name, family and nonzeros, on a device and on the host, of every matrix."""
    for recipe in RECIPES.values():
        yield recipe.name, recipe.family, _describe_size(recipe)
    for family, named in (("real", REAL), ("real, repeated", REPEATED)):
        for name, path in named.items():
            yield name, family, path if find_real(name) else f"{path}, not in ${DATA_VARIABLE}"


def _describe_size(recipe: Recipe) -> str:
    on_host = "" if recipe.by_name_only else f"; {recipe.size // HOST_SHARE:,} on the host"
    return f"about {recipe.size:,} nonzeros on a device{on_host}"


if __name__ == "__main__":
    run_program(main)
