"""Answers of commands that compute ranks, the commands for existing results: `top`, `summary` and `report`, and `run`
for pipelines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice, pairwise
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Annotated, Any, get_args

from mgspmv.cli.clusters import parse_setting, quieten_dask
from mgspmv.cli.options import argument, option
from mgspmv.cli.output import Answer, note_checkpoint, print_note, tabulate, tabulate_fields, translate_message
from mgspmv.display import format_bytes, format_phases, format_scaled, format_seconds
from mgspmv.errors import ConvergenceError, OptionError, StepsFailedError, StoreExistsError
from mgspmv.validation import to_json

if TYPE_CHECKING:
    from mgspmv.batch_results import BatchSolution
    from mgspmv.model import Stability
    from mgspmv.report.record import RunRecord, StepOutcome
    from mgspmv.results import Solution

_SET_HELP = "Override a key, such as run.alpha=0.9; paths are relative to FILE.toml."
SHOWN_RANKS = 10
"""Number of highest ranks shown of a pipeline with a single run."""
SHOWN_VECTORS = 20
"""Number of vectors of a batch in text output."""


def top(ranks: str, top: int = 10) -> Answer:
    """Show the highest ranks in a file."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    highest, order = solution.top(top), solution.check_order(top)
    said = None if order is None else _describe_order(order)
    payload = {"status": solution.status.value, "top": _list_top(highest), "order": _list_order(order)}
    return Answer(payload, [tabulate_top(highest), *([] if said is None else [f"order {said}"])])


def summary(ranks: str, bins: int = 20) -> Answer:
    """Show the distribution of the ranks in a file."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    found = solution.summary(bins)
    payload = {"status": solution.status.value, "scaler": solution.scaler, "summary": to_json(found.to_dict())}
    moments = {name: f"{getattr(found, name):.8g}" for name in ("min", "max", "mean", "sum", "std")}
    counts = {"vertices": f"{found.n:,}", "not finite": f"{found.n_non_finite:,}"}
    percentiles = {f"{percent:g}% are at most": f"{value:.8g}" for percent, value in found.percentiles.items()}
    fields = counts | moments | percentiles | {"Gini coefficient": "none" if isnan(found.gini) else f"{found.gini:.6g}"}
    edges = zip(pairwise(found.histogram.edges), found.histogram.counts, strict=True)
    rows = [(f"{low:.4g}", f"{high:.4g}", f"{count:,}") for (low, high), count in edges]
    outside = [f"0 or less: {found.histogram.n_outside:,}"] if found.histogram.n_outside else []
    histogram = [tabulate(("from", "to", "vertices"), rows)] if rows else []
    return Answer(payload, [tabulate_fields(fields), *histogram, *outside])


def report(source: str, output: str = "report.html", overwrite: bool = False) -> Answer:
    """Write an HTML report of a run, or of a pipeline's newest run: convergence, time, memory, ranks, provenance."""
    from mgspmv.files import create_file, exists
    from mgspmv.report import load_run, render_report
    from mgspmv.report.record import State

    if os.path.isdir(output):
        raise OptionError(f"{output} is a folder; name a file in it, such as {os.path.join(output, 'report.html')}")
    if exists(output) and not overwrite:
        raise StoreExistsError(f"{output} exists already; choose another name or pass --overwrite")
    described = load_run(source)
    page = render_report(described).encode()
    with create_file(output) as file:
        file.write(page)
    counts = {state: sum(step.state == state for step in described.steps) for state in get_args(State)}
    payload = {"report": output, "bytes": len(page), "run": described.name, "steps": counts}
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return Answer(payload, [f"{output}: {described.name}, {said or 'no steps'}, {format_bytes(len(page))}"])


def answer_ranks(
    solution: Solution,
    highest: Sequence[tuple[Any, float]],
    saved: list[str],
    failure: ConvergenceError | None,
    order: Stability | None = None,
) -> Answer:
    """Make the answer of a command for one vector.

    Parameters
    ----------
    order : certificate of the order of the highest ranks; None for none
    """
    status, memory = solution.status, solution.memory
    names = {"host_peak_bytes": "host peak", "device_bytes": "device", "held_bytes": "held", "planned_bytes": "planned"}
    most = [f"{named} {format_bytes(max(memory[name]))}" for name, named in names.items() if name in memory]
    most += ["the most of any worker"] if any(len(counts) > 1 for counts in memory.values()) else []
    fields = {
        "status": str(status) if failure else f"{status}: {translate_message(status.advice)}",
        "iterations": f"{solution.iterations}",
        "last change": f"{solution.changes[-1]:.3g}" if solution.changes else None,
        "L1 error at most": solution.describe_error() if isfinite(solution.error_bound_l1) else None,
        "time": format_phases(solution.seconds),
        "edges per second": format_scaled(solution.edges_per_s) if 0 < solution.edges_per_s < inf else None,
        "memory": ", ".join(most),
        "alpha": f"{solution.options['alpha']:.6g}, chosen to fit" if solution.options.get("alpha_chosen") else None,
        "scores": None if solution.scaler == "none" else f"ranks scaled by {solution.scaler}",
        "resumed after": f"{solution.resumed_after} iterations of an earlier run" if solution.resumed_after else None,
        "recovered": "; ".join(
            f"{made.error}; resumed from iteration {made.resumed_after} after {made.seconds:.3g} s with "
            f"{made.workers_after} workers, {made.workers_before} before"
            for made in solution.recoveries
        ),
        "rank 0": None if solution.underflow is None else translate_message(str(solution.underflow)),
        "highest": None if solution.stability is None else _describe_stability(solution.stability),
        "order": None if order is None or order == solution.stability else _describe_order(order),
        "saved": ", ".join(saved),
    }
    others = {"order": _list_order(order), "saved": saved}
    parts = [tabulate_top(highest), tabulate_fields(fields)]
    return Answer(lambda: solution.to_dict() | {"top": _list_top(highest)} | others, parts, failure)


def answer_batch(batch: BatchSolution, k: int | None, saved: list[str], failure: ConvergenceError | None) -> Answer:
    """Make the answer of a command for many vectors, with the k highest ranks of each."""
    highest, orders = batch.top(k), batch.check_order(k)
    payload = batch.to_dict() | {"saved": saved}
    for described in payload["vectors"]:
        described["top"] = _list_top(highest[described["label"]])
        described["order"] = _list_order(orders[described["label"]])
    described = zip(batch.labels, payload["vectors"], batch.error_bounds_l1, strict=True)
    rows: list[tuple[Any, ...]] = []
    for label, vector, bound in islice(described, SHOWN_VECTORS):
        own: list[Any] = [label, f"{vector['alpha']:g}", vector["status"], vector["iterations"], f"{bound:.3g}"]
        for name, rank in list(highest[label])[: k or 1]:
            rows.append((*own, name, f"{rank:.8g}"))
            own = [""] * len(own)  # only the first row describes the vector
    titles = ("vector", "alpha", "status", "iterations", "L1 error at most", "highest vertex", "its rank")
    n_open = sum(found is not None and _describe_order(found) is not None for found in orders.values())
    n_hidden = len(batch) - SHOWN_VECTORS
    fields = {
        "vectors": f"{len(batch)}, up to {batch.options['width']} in each of {batch.options['steps']} passes",
        "time": format_phases(batch.seconds),
        "order": f"not certified for {n_open} vectors; lower --tol (see --json for the places)" if n_open else None,
        "saved": ", ".join(saved),
        "not shown": f"{n_hidden} vectors; see --json, or -o" if n_hidden > 0 else None,
    }
    return Answer(payload, [tabulate(titles, rows), tabulate_fields(fields)], failure)


def _describe_stability(found: Stability) -> str:
    ties = ", ".join(f"{first}-{last}" for first, last in found.ties)
    order = f"in this order except for places {ties}" if ties else "in this order"
    if found.is_proven:
        return f"the {found.k} are proven, {order}"
    return f"places {found.k} and {found.k + 1} are {found.gap:.3g} apart, tied within the bound of {found.bound:.3g}"


def _describe_order(found: Stability) -> str | None:
    """Explain why the order of the highest ranks is not certified, and the remedy; None if it is certified."""
    if found.is_proven and not found.ties:
        return None
    ties = [(first, min(last, found.k)) for first, last in found.ties]
    among = ", ".join(f"{first}-{last}" for first, last in ties if first < last)
    open_parts = [f"places {among} may be in another order"] if among else []
    open_parts += [] if found.is_proven else [f"others may belong among the {found.k}"]
    remedy = f"lower --tol, or pass --stop topk:{found.k}; equal ranks stay tied"
    return f"not certified: within the error bound of {found.bound:.3g} {' and '.join(open_parts)}; {remedy}"


def _list_order(found: Stability | None) -> dict[str, Any] | None:
    """Return the certificate of an order as JSON values."""
    return None if found is None else to_json(asdict(found))


def _list_top(highest: Sequence[tuple[Any, float]]) -> list[dict[str, Any]]:
    return [{"id": name, "rank": to_json(rank)} for name, rank in highest]


def tabulate_top(highest: Sequence[tuple[Any, float]]) -> Any:
    rows = [(place, name, f"{rank:.8g}") for place, (name, rank) in enumerate(highest, 1)]
    return tabulate(("", "vertex", "rank"), rows)


# --- pipelines -------------------------------------------------------------------------------------------------------


def run(
    file: Annotated[str, argument("FILE.toml", "Pipeline file, such as pipelines/quickstart.toml.")],
    set: Annotated[list[str] | None, option(_SET_HELP, "KEY=VALUE")] = None,
    dry_run: Annotated[bool, option("Show the plan without running it.")] = False,
) -> Answer:
    """Run a pipeline: compute missing outputs. After a failure, steps that do not depend on it still run."""
    from mgspmv.pipeline import RunInterrupted, plan_pipeline, run_pipeline

    overrides = dict(parse_setting("--set", setting, "run.alpha=0.9") for setting in set or [])
    if dry_run:
        plan = plan_pipeline(file, overrides=overrides)
        rows = [(step.name, step.state, step.why or step.target) for step in plan.steps]
        n_kept = sum(step.state == "kept" for step in plan.steps)
        said = f"{plan.name} in {plan.folder}: {n_kept} of {len(rows)} steps are kept"
        return Answer(plan.to_dict(), [tabulate(("step", "state", "reason or output"), rows, n_texts=1), said])
    try:
        with quieten_dask():
            return _answer_run(run_pipeline(file, overrides=overrides, on_note=print_note))
    except StepsFailedError as error:
        return _answer_run(error.record, error)
    except RunInterrupted as error:
        note_checkpoint(str(error).removeprefix("interrupted; "))
        raise


def _answer_run(record: RunRecord, error: StepsFailedError | None = None) -> Answer:
    has_made = any(step.record is not None and step.record.outputs for step in record.steps)
    if error is not None and not has_made:  # the error message has the details
        return Answer(record.to_dict(), [], error)
    table = tabulate(("step", "", "seconds", "", ""), [_describe_step(step) for step in record.steps], n_texts=2)
    counts = Counter(step.state for step in record.steps)
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    ranked = [step.record for step in record.steps if step.kind == "pagerank" and step.record is not None]
    tops = [own.top[:SHOWN_RANKS] for own in ranked if own.top]
    highest = [tabulate_top([(row[0], row[1]) for row in tops[0]])] if len(tops) == len(ranked) == 1 else []
    summary = f"{record.name}: {said}, in {format_seconds(record.elapsed_s)}"
    warnings = []
    for step in record.steps:
        if step.kind == "matrix" and step.record is not None:
            report = step.record.provenance.get("matrix", {}).get("report", {})
            warnings += [f"{step.name}: warning: {warning}" for warning in report.get("warnings", ())]
    return Answer(record.to_dict(), [*highest, table, *warnings, summary], error)


def _describe_step(step: StepOutcome) -> tuple[str, ...]:
    if step.record is None or step.state == "failed":
        return step.name, step.state, f"{step.elapsed_s:.3g}", "", (step.error or "").partition("\n")[0]
    result, matrix = step.record.result, step.record.matrix
    said = f"{matrix['shape'][0]:,} x {matrix['shape'][1]:,}, {matrix['nnz']:,} entries"
    if step.kind == "pagerank":
        said = f"{result['status']}, {result['iterations']} iterations"
    elif step.kind == "batch":
        said = f"{len(result['vectors'])} vectors"
    place = matrix["url"] if step.kind == "matrix" else os.path.dirname(step.record.outputs[0].path)
    return step.name, step.state, f"{step.elapsed_s:.3g}", said, place
