"""What is known to fail before a run begins: files that are not there, stores that cannot be used or replaced.

A step that fails so fails alone, while others are made. But if nothing that is asked for can be made, the run is
refused before it writes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mgspmv.errors import MgspmvError
from mgspmv.files import is_url
from mgspmv.pipeline.definition import Pipeline
from mgspmv.pipeline.identity import list_files, list_sources
from mgspmv.pipeline.make_matrix import check_replacing, find_info
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import check_all_there
from mgspmv.pipeline.steps import Step
from mgspmv.report.record import StepOutcome
from mgspmv.store.read import open_store


def find_hopeless(pipeline: Pipeline, lanes: dict[str, list[Step]], records: Records) -> dict[str, MgspmvError]:
    """What is wrong with steps, by name, if so no result can be made, nor a matrix of which there are none; else empty.

    No file is read, and of URLs nothing is asked but of stores that are opened.
    """
    errors: dict[str, MgspmvError] = {}
    for first, *rest in lanes.values():
        if error := _find_error(partial(_check_matrix, first, records)):
            errors[first.name] = error
            continue
        files = {step.name: [*list_files(step, pipeline).values()] for step in rest}
        found = {name: error for name, own in files.items() if (error := _find_error(partial(check_all_there, own)))}
        if len(found) < len(rest) or not rest:
            return {}
        errors |= found
    return errors


def describe_refused(lanes: dict[str, list[Step]], errors: dict[str, MgspmvError]) -> list[StepOutcome]:
    """What becomes of the steps of a run that is not begun."""
    return [_describe_one(step, errors.get(step.name)) for lane in lanes.values() for step in lane]


def _describe_one(step: Step, error: MgspmvError | None) -> StepOutcome:
    if error is not None:
        return StepOutcome(step.name, step.kind, "failed", 0.0, None, str(error))
    why = "what needs it cannot be made" if step.kind == "matrix" else f"needs {step.matrix}, which failed"
    return StepOutcome(step.name, step.kind, "skipped", 0.0, None, why)


def _find_error(check: Callable[[], None]) -> MgspmvError | None:
    try:
        check()
    except MgspmvError as error:
        return error
    return None


def _check_matrix(step: Step, records: Records) -> None:
    check_all_there(list_sources(step.section))
    if step.section.open is not None:
        open_store(step.target)
    elif not is_url(step.target):
        check_replacing(step, find_info(step.target), records)
