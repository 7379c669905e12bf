"""Commands that check and time this installation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import typer

from mgspmv.cli.mode import say
from mgspmv.cli.options import Backend, Threads
from mgspmv.cli.place import quieten_dask
from mgspmv.cli.program import Answer, add_command
from mgspmv.cli.tables import tabulate
from mgspmv.errors import MgspmvError, OptionError

app = typer.Typer(no_args_is_help=True, help="Check and time the kernels of this installation.")


Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write all that was found, as --json says it.")
]
GraphStore = Annotated[
    str | None, typer.Option("--store", metavar="STORE", help="A graph; default one that is made for it, by R-MAT.")
]
Scale = Annotated[int, typer.Option(help="Of that: log2 of the vertices.")]
EdgeFactor = Annotated[int, typer.Option(help="Of that: edges a vertex.")]
Rounds = Annotated[int, typer.Option(min=1, metavar="N", help="How often each is timed; the least counts.")]


def _add(name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    def add(command: Callable[..., Answer]) -> Callable[..., Answer]:
        add_command(app, command, name)
        return command

    return add


@_add("spmv")
def bench_spmv(
    stores: Annotated[list[str] | None, typer.Argument(metavar="STORE", help="Stored matrices.")] = None,
    matrix: Annotated[
        list[str] | None, typer.Option("--matrix", metavar="NAME", help="A matrix of --list; repeatable.")
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", metavar="NAME", help="Name of a kernel; repeatable. Default all.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|float64|both", help="Of values and vectors.")] = "both",
    values: Annotated[
        bool | None, typer.Option("--values/--pattern", help="Give all values, or none; default as each is.")
    ] = None,
    backend: Backend = "auto",
    cold: Annotated[bool | None, typer.Option("--cold/--warm", help="State of the caches; default both.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How often each is timed at most; default 20, without GPU 5.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nonzeros of each made matrix, about; default of --list.")
    ] = None,
    output: Output = None,
    list_names: Annotated[bool, typer.Option("--list", help="Name the matrices and kernels, and run nothing.")] = False,
) -> Answer:
    """Check every kernel beside SciPy, then time it beside cuSPARSE, or SciPy where there is no GPU."""
    from benchmarks import spmv as harness
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.spmv_tables import format_report
    from mgspmv.kernels.select import KERNELS
    from mgspmv.model import check_choice

    if list_names:
        kernels = [(k.name, ", ".join(k.backends or k.step_backends), k.summary) for k in KERNELS.values()]
        return _answer_lists(
            matrix=(("structure", "size"), list(harness.list_matrices())),
            kernel=(("backends", "what it does"), kernels),
        )
    check_choice("--dtype", dtype, ("float32", "float64", "both"))
    chosen = choose_backend(backend)
    choices = harness.Choices(
        kernels=harness.check_kernels(kernel or [], chosen),
        dtypes=("float32", "float64") if dtype == "both" else (dtype,),
        states=("warm", "cold") if cold is None else ("cold",) if cold else ("warm",),
        values=values,
        rounds=rounds,
    )
    harness.check_output(output)
    cases = harness.find_cases(matrix or [], stores or [], chosen, size)
    machine = choose_machine(chosen)
    setting = describe_run(machine)
    run = harness.Bench(machine, choices, say=say)
    for case in cases:
        run.run(case)
        if output is not None:  # after each, so that a run that is ended leaves what it found
            harness.write_json(output, run.to_dict(setting))
    report = format_report(setting, run.records, run.left_out, chosen, run.ceilings.find_copy_rate())
    wrong = sorted({r.kernel for r in run.records if r.is_wrong})
    error = _find_error("products", wrong)
    if not run.records:
        error = OptionError("nothing was timed: every matrix was left out; see why")
    return Answer(run.to_dict(setting), [report], error)


@_add("spmm")
def bench_spmm(
    stores: Annotated[list[str] | None, typer.Argument(metavar="STORE", help="Stored matrices.")] = None,
    matrix: Annotated[
        list[str] | None, typer.Option("--matrix", metavar="NAME", help="A matrix of `bench spmv --list`; repeatable.")
    ] = None,
    vectors: Annotated[
        list[int] | None, typer.Option("--vectors", min=1, metavar="K", help="Vectors at once; repeatable.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|float64|both", help="Of values and vectors.")] = "float32",
    values: Annotated[
        bool | None, typer.Option("--values/--pattern", help="Give all values, or none; default as each is.")
    ] = None,
    backend: Backend = "auto",
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often each is timed at most.")] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nonzeros of each made matrix, about; default of --list.")
    ] = None,
    output: Output = None,
) -> Answer:
    """Check and time products with many vectors at once, beside cuSPARSE, or SciPy where there is no GPU."""
    from benchmarks import spmm as harness
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.spmv import check_output, find_cases, write_json
    from benchmarks.spmv_tables import format_many
    from mgspmv.model import check_choice

    check_choice("--dtype", dtype, ("float32", "float64", "both"))
    if not matrix and not stores:
        raise OptionError("no matrix is named; pass stores, or --matrix NAME of `mgspmv bench spmv --list`")
    chosen = choose_backend(backend)
    check_output(output)
    cases = find_cases(matrix or [], stores or [], chosen, size)
    machine = choose_machine(chosen)
    setting = describe_run(machine)
    dtypes = ("float32", "float64") if dtype == "both" else (dtype,)
    run = harness.ManyBench(
        machine,
        dtypes,
        vectors or harness.WIDTHS,
        values,
        rounds,
        say=say,
    )
    for case in cases:
        run.run(case)
        if output is not None:
            write_json(output, run.to_dict(setting))
    wrong = sorted({r.program for r in run.records if r.is_wrong})
    return Answer(run.to_dict(setting), [format_many(setting, run.records, chosen)], _find_error("products", wrong))


@_add("pagerank")
def bench_pagerank(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="A graph of --list; repeatable.")
    ] = None,
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of our iterations.")] = "both",
    backend: Backend = "auto",
    rounds: Rounds = 5,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Arcs of each made graph, about; default of --list.")
    ] = None,
    output: Output = None,
    list_names: Annotated[bool, typer.Option("--list", help="Name the graphs, and run nothing.")] = False,
) -> Answer:
    """Check iterations of PageRank beside float64, then time them beside cuGraph's, where there is a GPU."""
    from benchmarks import pagerank as harness
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.rank_tables import format_report
    from benchmarks.spmv import check_output, write_json
    from mgspmv.model import check_choice

    if list_names:
        return _answer_lists(graph=(("structure", "size"), list(harness.list_graphs())))
    check_choice("--precision", precision, (*harness.PRECISIONS, "both"))
    check_output(output)
    chosen = choose_backend(backend)
    cases = harness.find_cases(only or [], chosen, size)
    machine = choose_machine(chosen)
    peers, peer = harness.find_peers(machine)
    own = harness.make_own(p for p in harness.PRECISIONS if precision in (p, "both"))
    setting = describe_run(machine) | {"cuGraph": peer}
    run = harness.Bench(machine, [*peers, *own], rounds, say=say)
    for case in cases:
        run.run(case)
        if output is not None:  # after each, so that a run that is ended leaves what it found
            write_json(output, run.to_dict(setting))
    report = format_report(setting, run.records, run.left_out, run.ceilings.find_copy_rate())
    wrong = [f"{r.contender} on {r.graph}" for r in run.records if r.is_wrong]
    error = _find_error("ranks", wrong)
    if not run.records:
        error = OptionError("nothing was timed: every graph was left out; see why")
    return Answer(run.to_dict(setting), [report], error)


@_add("methods")
def bench_methods(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stored graphs.")],
    rounds: Rounds = 5,
    threads: Threads = None,
    output: Output = None,
) -> Answer:
    """Check how soon PageRank ends by its methods and by the highest vertices on the host, then time it."""
    from benchmarks import methods
    from benchmarks.machines import choose_machine, describe_run
    from benchmarks.spmv import check_output, write_json

    check_output(output)
    setting = describe_run(choose_machine("cpu"))
    records = methods.run_methods(stores, rounds, threads, say)
    found = methods.to_json(setting, records)
    if output is not None:
        write_json(output, found)
    wrong = [f"{r.run} on {r.graph}" for r in records if not r.is_right]
    return Answer(found, [methods.format_report(setting, records)], _find_error("ranks", wrong))


@_add("warm")
def bench_warm(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stored graphs.")],
    share: Annotated[
        float, typer.Option(min=0, max=1, metavar="S", help="Share of the edges that changes; at least two do.")
    ] = 1e-5,
    tol: Annotated[float, typer.Option(help="Tolerance of all runs, in L1.")] = 1e-10,
    rounds: Rounds = 5,
    threads: Threads = None,
    output: Output = None,
) -> Answer:
    """Check ranks of changed graphs that begin with the ranks before, on the host, then time them."""
    from benchmarks import warm
    from benchmarks.machines import choose_machine, describe_run
    from benchmarks.spmv import check_output, write_json

    check_output(output)
    setting = describe_run(choose_machine("cpu"))
    records = warm.run_warm(stores, rounds, share, tol, threads, say)
    found = warm.to_json(setting, records)
    if output is not None:
        write_json(output, found)
    wrong = [f"{r.run} on {r.graph}, {r.changes}" for r in records if not r.is_right]
    return Answer(found, [warm.format_report(setting, records, share, tol)], _find_error("ranks", wrong))


@_add("scaling")
def bench_scaling(
    store: GraphStore = None,
    scale: Scale = 26,
    edge_factor: EdgeFactor = 16,
    workers: Annotated[str, typer.Option(metavar="N,N,..", help="How many workers, each in turn.")] = "1,2,4",
    backend: Backend = "auto",
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "both",
    transport: Annotated[
        str, typer.Option(metavar="auto|nccl|peer", help="How slices go from worker to worker.")
    ] = "auto",
    iterations: Annotated[int, typer.Option(min=1, help="In a run.")] = 50,
    output: Output = None,
) -> Answer:
    """Time iterations of PageRank on more and more workers of this machine, and check that their ranks are the same."""
    from benchmarks import scaling
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.spmv import check_output, write_json
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*scaling.PRECISIONS, "both"))
    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_output(output)
    counts = _parse_counts(workers)
    chosen = choose_backend(backend)
    precisions = [p for p in scaling.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(chosen))
    with ExitStack() as stack:
        stack.enter_context(quieten_dask())
        store = _make_multigraph(stack, store, scale, edge_factor, max(counts), chosen, setting)
        has_peer, setting["cuGraph"] = scaling.find_peer(chosen, store)
        records = scaling.run_scaling(store, counts, chosen, precisions, iterations, say, transport, has_peer)
    found = scaling.to_json(setting, records)
    if output is not None:
        write_json(output, found)
    wrong = [f"{r.precision} on {r.n_workers} workers" for r in records if not r.is_right]
    return Answer(found, [scaling.format_report(setting, records)], _find_error("ranks", wrong))


@_add("streaming")
def bench_streaming(
    store: GraphStore = None,
    scale: Scale = 26,
    edge_factor: EdgeFactor = 16,
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "both",
    iterations: Annotated[int, typer.Option(min=1, help="In a run.")] = 20,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="CASE", help="Only this one; repeatable.")] = None,
    output: Output = None,
) -> Answer:
    """Time PageRank on a GPU that may take less and less memory, beside what `plan` predicts, and check the ranks."""
    from benchmarks import streaming
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.spmv import check_output, write_json
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*streaming.PRECISIONS, "both"))
    for one in case or []:
        check_choice("--case", one, tuple(streaming.SHARES))
    check_output(output)
    precisions = [p for p in streaming.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(choose_backend("cuda")))
    with ExitStack() as stack:
        stack.enter_context(quieten_dask())
        store = _make_multigraph(stack, store, scale, edge_factor, 1, "cuda", setting)
        records = streaming.run_streaming(store, precisions, iterations, say, case or [])
    found = streaming.to_json(setting, records)
    if output is not None:
        write_json(output, found)
    wrong = [f"{r.precision}, {r.case}" for r in records if not r.is_right]
    return Answer(found, [streaming.format_report(setting, records)], _find_error("ranks", wrong))


@_add("batch")
def bench_batch(
    store: GraphStore = None,
    scale: Scale = 20,
    edge_factor: EdgeFactor = 16,
    vectors: Annotated[int, typer.Option(min=2, help="How many personalized vectors.")] = 256,
    width: Annotated[
        int | None, typer.Option(metavar="2|4|8|16|32|64", help="Vectors in a pass; default what is fast and fits.")
    ] = None,
    backend: Backend = "auto",
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "float32",
    output: Output = None,
) -> Answer:
    """Time PageRank of many vectors in a batch beside single runs of a sample of them, and check that all are right."""
    import tempfile

    from benchmarks import batch
    from benchmarks.machines import choose_backend, choose_machine, describe_run
    from benchmarks.spmv import check_output, write_json
    from mgspmv import api
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*batch.PRECISIONS, "both"))
    check_output(output)
    chosen = choose_backend(backend)
    precisions = [p for p in batch.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(chosen))
    with ExitStack() as stack:
        if store is None:
            store = f"{stack.enter_context(tempfile.TemporaryDirectory())}/graph.zarr"
            api.generate("rmat", store, scale=scale, edge_factor=edge_factor)
        with api.open_matrix(store) as matrix:
            setting["graph"] = f"{matrix.shape[0]:,} vertices, {matrix.nnz:,} edges, digest {matrix.info.digest[:16]}"
        records = batch.run_batch(store, precisions, vectors, chosen, width, say)
    found = batch.to_json(setting, records)
    if output is not None:
        write_json(output, found)
    wrong = [r.precision for r in records if not r.is_right]
    return Answer(found, [batch.format_report(setting, records)], _find_error("ranks", wrong))


def _answer_lists(**listed: tuple[tuple[str, ...], Sequence[Sequence[Any]]]) -> Answer:
    """Tables of what can be named, by what it is: titles of the columns beside the name, and rows."""
    payload = {
        what: {row[0]: dict(zip(titles, row[1:], strict=True)) for row in rows}
        for what, (titles, rows) in listed.items()
    }
    return Answer(payload, [tabulate((what, *titles), rows) for what, (titles, rows) in listed.items()])


def _find_error(what: str, wrong: Sequence[str]) -> MgspmvError | None:
    return MgspmvError(f"wrong {what}: {'; '.join(wrong)}; see the tables") if wrong else None


def _make_multigraph(
    stack: ExitStack,
    store: str | None,
    scale: int,
    edge_factor: int,
    n_workers: int,
    backend: Literal["cpu", "cuda"],
    setting: dict[str, str],
) -> str:
    """The graph that is timed, made unless there is one; `setting` gets what it is."""
    import tempfile

    from distributed import Client

    from benchmarks import scaling
    from mgspmv import api

    if store is None:
        store = f"{stack.enter_context(tempfile.TemporaryDirectory())}/graph.zarr"
        began = time.perf_counter()
        with scaling.start_workers(n_workers, backend) as cluster, Client(cluster) as client:
            started = time.perf_counter()
            sizes: dict[str, Any] = {"scale": scale, "edge_factor": edge_factor}
            api.generate("rmat", store, **sizes, duplicates="keep", client=client, backend=backend)
        made = f"{time.perf_counter() - started:.3g} s by {n_workers} workers, started in {started - began:.3g} s"
        setting["graph"] = f"R-MAT, scale {scale}, {edge_factor} edges a vertex, those that come again kept; {made}"
    with api.open_matrix(store) as matrix:
        setting["size"] = f"{matrix.shape[0]:,} vertices, {matrix.nnz:,} edges, digest {matrix.info.digest[:16]}"
    return store


def _parse_counts(text: str) -> list[int]:
    """Numbers of workers, ascending."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise OptionError(f"--workers must be numbers of at least 1, such as 1,2,4, not {text!r}")
    return counts
