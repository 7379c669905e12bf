"""The command `run`: pipelines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.options import argument, option
from mgspmv.cli.output import Answer, note_checkpoint, print_note, tabulate
from mgspmv.cli.placement import quieten_dask, read_literal
from mgspmv.cli.results import tabulate_top
from mgspmv.display.numbers import format_seconds
from mgspmv.errors import OptionError, StepsFailedError

if TYPE_CHECKING:
    from mgspmv.pipeline import PipelinePlan
    from mgspmv.report.record import RunRecord, StepOutcome

_SET_HELP = "Override a key, such as run.alpha=0.9; paths are relative to FILE.toml."
SHOWN_RANKS = 10
"""Number of highest ranks shown of a pipeline with a single run."""


def run(
    file: Annotated[str, argument("FILE.toml", "Pipeline file, such as pipelines/quickstart.toml.")],
    set: Annotated[list[str] | None, option(_SET_HELP, "KEY=VALUE")] = None,
    dry_run: Annotated[bool, option("Show the plan without running it.")] = False,
) -> Answer:
    """Run a pipeline: compute missing outputs. After a failure, steps that do not depend on it still run."""
    from mgspmv.pipeline import RunInterrupted, plan_pipeline, run_pipeline

    overrides = dict(_parse_setting(setting) for setting in set or [])
    if dry_run:
        return _answer_plan(plan_pipeline(file, overrides=overrides))
    try:
        with quieten_dask():
            return _answer_run(run_pipeline(file, overrides=overrides, on_note=print_note))
    except StepsFailedError as error:
        return _answer_run(error.record, error)
    except RunInterrupted as error:
        note_checkpoint(str(error).removeprefix("interrupted; "))
        raise


def _parse_setting(setting: str) -> tuple[str, Any]:
    """Split KEY=VALUE; the value is parsed as TOML or JSON, else kept as text, so that it needs no inner quotes."""
    key, equals, value = setting.partition("=")
    if not (key.strip() and equals):
        raise OptionError(f"--set {setting}: expected KEY=VALUE, such as run.alpha=0.9")
    return key.strip(), read_literal(value)


def _answer_plan(plan: PipelinePlan) -> Answer:
    rows = [(step.name, step.state, step.why or step.target) for step in plan.steps]
    table = tabulate(("step", "state", "reason or output"), rows, n_texts=1)
    n_kept = sum(step.state == "kept" for step in plan.steps)
    return Answer(plan.to_dict(), [table, f"{plan.name} in {plan.folder}: {n_kept} of {len(rows)} steps are kept"])


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
    return Answer(record.to_dict(), [*highest, table, *_list_warnings(record), summary], error)


def _list_warnings(record: RunRecord) -> Iterator[str]:
    """Yield the warnings of ingest reports, by step."""
    for step in record.steps:
        if step.kind == "matrix" and step.record is not None:
            report = step.record.provenance.get("matrix", {}).get("report", {})
            yield from (f"{step.name}: warning: {warning}" for warning in report.get("warnings", ()))


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
