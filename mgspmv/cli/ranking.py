"""Commands of PageRank: `pagerank` and `pagerank-batch`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast, get_args

import typer

from mgspmv.cli.options import (
    Backend,
    Dangling,
    DriveName,
    EntriesAsOne,
    Limits,
    MaxIter,
    Output,
    OutWeight,
    Overwrite,
    Precision,
    Reverse,
    StepKernel,
    StorePath,
    Tol,
    TolModeName,
    Top,
    Transport,
)
from mgspmv.cli.outputs import find_outputs
from mgspmv.cli.place import Place, check_drive
from mgspmv.cli.program import Answer
from mgspmv.cli.solutions import add_summary, answer_batch, answer_ranks
from mgspmv.cli.watching import listen
from mgspmv.monitor.progress import find_change


def pagerank(
    store: StorePath,
    *,
    output: Output = None,
    alpha: Annotated[float, typer.Option(help="Damping factor.")] = 0.85,
    tol: Annotated[
        float | None, typer.Option(help="Stop when the change is less; default 1e-6, with --stop topk 1e-10.")
    ] = None,
    tol_mode: TolModeName = "l1",
    max_iter: MaxIter = 100,
    stop: Annotated[
        str, typer.Option(metavar="change|topk:K", help="Also stop when it is proven which the K highest are.")
    ] = "change",
    personalization: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|IDS", help="Where jumps go: `alice`, `alice=2,bob=1`, or a file (.csv, .parquet, text, .npy)."
        ),
    ] = None,
    dangling: Dangling = None,
    nstart: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|IDS", help="Ranks to start from: saved ones (.zarr, .parquet, .csv), or as --personalization."
        ),
    ] = None,
    out_weight: OutWeight = None,
    ignore_weights: EntriesAsOne = False,
    reverse: Reverse = False,
    precision: Precision = "exact",
    kernel: StepKernel = "auto",
    backend: Backend = "auto",
    place: Place,
    drive: DriveName = "auto",
    transport: Transport = "auto",
    limits: Limits,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Keep the ranks there now and then: a folder or URL, for --resume."),
    ] = None,
    checkpoint_every: Annotated[
        float | None,
        typer.Option("--checkpoint-every", metavar="SECONDS", help="From one checkpoint to the next, 30 unless given."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, or begin where there is none.")
    ] = False,
    recover: Annotated[
        int, typer.Option(metavar="N", min=0, help="On a cluster: go on N times at most when workers are lost.")
    ] = 5,
    top: Top = 10,
    scaler: Annotated[
        str,
        typer.Option(
            metavar="none|minmax|max|mean|log|stdscore|l1norm|l2norm", help="Scores in place of ranks, as Neo4j GDS."
        ),
    ] = "none",
    summary: Annotated[bool, typer.Option("--summary", help="Show how the ranks are distributed.")] = False,
    overwrite: Overwrite = False,
) -> Answer:
    """Rank the vertices of a graph. What was reached without converging is written too, and the exit code is 5."""
    from mgspmv import api
    from mgspmv.cli.vectors import read_vectors
    from mgspmv.model import check_choice
    from mgspmv.saving import generate_csv
    from mgspmv.scores import Scaler

    check_drive(drive, place)
    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_choice("--scaler", scaler, get_args(Scaler))
    outputs = find_outputs(output, overwrite=overwrite)
    options: dict[str, Any] = {"alpha": alpha, "tol": tol, "tol_mode": tol_mode, "max_iter": max_iter}
    options |= {"stop": stop}
    options |= {"weights": not ignore_weights, "precision": precision, "kernel": kernel}
    options |= {"backend": place.choose_backend(backend), "threads": place.threads, "timeout": place.timeout}
    options |= {"drive": drive, "transport": transport, **vars(limits)}
    options |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
    options |= {"recover": recover}
    with api.open_matrix(store) as opened, opened.T if reverse else opened as matrix:
        given = {"personalization": personalization, "dangling": dangling, "out_weight": out_weight, "nstart": nstart}
        vectors = read_vectors(matrix, aligns=True, **given)
        rank = partial(api.pagerank, matrix, **options, **vectors)
        change = find_change(tol, tol_mode, matrix.shape[0], stop)
        solution, failure = listen(rank, place, change, max_iter, checkpoint)
    order = solution.judge_order(top)
    solution = solution.scale(cast(Scaler, scaler))
    outputs.save(solution, overwrite=overwrite)
    answer = answer_ranks(solution, solution.top(top), outputs.paths, failure, order)
    if summary:
        answer = add_summary(answer, solution.summarize())
    return outputs.print(answer, generate_csv(solution))


def pagerank_batch(
    store: StorePath,
    *,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Where jumps go: .csv or .parquet with vector, vertex and, maybe, weight; default all."
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="RANKS",
            help="Where ranks go: .zarr, .parquet or - for CSV on stdout; repeatable.",
        ),
    ] = None,
    alpha: Annotated[
        list[float] | None, typer.Option(help="Damping factor, 0.85 unless given; repeatable, one for each vector.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Keep so many of the highest ranks; default all.")] = None,
    tol: Tol = None,
    tol_mode: TolModeName = "l1",
    max_iter: MaxIter = 100,
    dangling: Dangling = None,
    out_weight: OutWeight = None,
    ignore_weights: EntriesAsOne = False,
    reverse: Reverse = False,
    precision: Precision = "exact",
    width: Annotated[
        int | None, typer.Option(metavar="2|4|8|16|32|64", help="Vectors in a pass; default what is fast and fits.")
    ] = None,
    backend: Backend = "auto",
    place: Place,
    transport: Transport = "auto",
    limits: Limits,
    overwrite: Overwrite = False,
) -> Answer:
    """Rank the vertices of a graph for many personalizations at once. The exit code is 5 when one did not converge."""
    from mgspmv import api
    from mgspmv.cli.vectors import read_vectors
    from mgspmv.ingest.seeds import read_seeds
    from mgspmv.kernels.many import WIDTHS
    from mgspmv.model import check_choice
    from mgspmv.saving import generate_csv

    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_choice("--width", width, (*WIDTHS, None))
    outputs = find_outputs(output, overwrite=overwrite)
    options: dict[str, Any] = {"alpha": alpha or 0.85, "tol": tol, "tol_mode": tol_mode, "max_iter": max_iter}
    options |= {"weights": not ignore_weights, "precision": precision, "width": width, "top": top}
    options |= {"backend": place.choose_backend(backend), "threads": place.threads, "timeout": place.timeout}
    options |= {"transport": transport, **vars(limits)}
    with api.open_matrix(store) as opened, opened.T if reverse else opened as matrix:
        string_ids = matrix.info.vertex_ids == "string"
        table = None if seeds is None else read_seeds(seeds, string_ids=string_ids)
        options |= read_vectors(matrix, dangling=dangling, out_weight=out_weight)
        rank = partial(api.pagerank_batch, matrix, table, **options)
        batch, failure = listen(rank, place)
    outputs.save(batch, overwrite=overwrite)
    return outputs.print(answer_batch(batch, outputs.paths, failure), generate_csv(batch))
