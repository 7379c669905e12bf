"""Loading of the input of a report: the record of a run, the folder of a pipeline, or saved ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgspmv.errors import PipelineError, StoreNotFoundError
from mgspmv.files import is_url
from mgspmv.os_errors import is_operators, translate_os_error
from mgspmv.report.measure import describe_solution
from mgspmv.report.record import RunRecord, StepOutcome, StepRecord, read_record
from mgspmv.results import Solution, load_solution
from mgspmv.validation import parse_json

RUNS = Path(".mgspmv", "runs")
"""Path of the records of runs in the folder of a pipeline; their names are the times of their start."""
RANKS = (".zarr", ".parquet", ".csv")


def load_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read a run: its record in JSON, the newest one of a pipeline's folder, or ranks saved as `.zarr` or `.parquet`,
    which count as a run of one step.

    Raises
    ------
    PipelineError : not a record of a run, a record of another format version, or a folder without records of runs
    StoreNotFoundError : the path does not exist
    StoreError : the ranks cannot be read; as in `load_solution`
    OptionError : ranks in CSV, which lack their metadata
    """
    if Path(path).suffix in RANKS:
        return record_solution(load_solution(path), os.fspath(path))
    if is_url(path) or not os.path.exists(path):
        raise StoreNotFoundError(
            f"{path} does not exist; pass the record of a run (.json), the folder of a pipeline, or ranks (.zarr, "
            ".parquet)"
        )
    found = Path(path)
    if os.path.isdir(path):
        records = [*Path(path, RUNS).glob("*.json")]
        if not records:
            raise PipelineError(
                f"{path} has no records of runs in {RUNS}; pass the folder of a pipeline that `mgspmv run` ran"
            )
        found = max(records, key=lambda record: record.stem)
    return read_record(RunRecord, _read_json(found), str(found))


def record_solution(solution: Solution, path: str) -> RunRecord:
    """Return a record of ranks as a run of one step, without its times of day.

    Parameters
    ----------
    path : path of the ranks, shown in the report
    """
    name, elapsed_s = Path(path).name, sum(solution.seconds.values())
    program = str(solution.matrix.get("program", ""))
    fields = describe_solution(solution, 20)
    record = StepRecord(
        key=solution.digest(), kind="pagerank", name=name, inputs={}, outputs=[], began="", ended="", **fields
    )
    step = StepOutcome(name, "pagerank", "made", elapsed_s, record)
    return RunRecord(name, path, {}, "", elapsed_s, program.removeprefix("mgspmv "), [step])


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        if is_operators(error):
            raise translate_os_error(error, path, "read") from error
        raise PipelineError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise PipelineError(
            f"{path} is not JSON ({error}); pass the record of a run, which `mgspmv run` writes"
        ) from error
