"""Records of each step of a pipeline, and of a run of it: one JSON file each; or made of saved ranks."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.display import format_seconds
from mgspmv.display.frames import render_card
from mgspmv.errors import PipelineError, StoreNotFoundError, is_operators, translate_os_error
from mgspmv.files import is_url
from mgspmv.results import Solution, load_solution
from mgspmv.validation import check_fields, check_seal, parse_json, to_json

FORMAT_VERSION = 1
RUNS = Path(".mgspmv", "runs")
"""Path of the records of runs in the folder of a pipeline; their names are the times of their start."""
MOVED = 20
"""Most vertices that a comparison lists."""
RANKS = (".zarr", ".parquet", ".csv")
StepKind = Literal["matrix", "pagerank", "batch", "product"]
State = Literal["made", "kept", "failed", "skipped"]
"""State of a step in a run: made; kept unchanged from an earlier run; failed; or skipped, as a required step failed."""


@dataclass(frozen=True)
class Output:
    """File, folder or object that a step made.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> mg.run_pipeline("a.toml").steps[0].record.outputs[0].path
    'a/web.zarr'
    """

    path: str
    """Path or URL of the output."""
    n_bytes: int
    """Bytes of all its files."""
    digest: str
    """SHA-256 of the content, independent of the time and way of writing."""
    stamp: str
    """Sizes and times of change, which detect writes without reading the content."""


@dataclass(frozen=True)
class StepRecord:
    """Record of a completed step.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> step = mg.run_pipeline("a.toml").steps[0].record
    >>> step.name, step.kind, len(step.outputs)
    ('web', 'matrix', 1)
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    key: str
    """SHA-256 of the program's version, the kind of step, its options and the keys of its inputs."""
    kind: StepKind
    name: str
    """Name, such as `web`, or `web/damping/alpha=0.9`; unique in a pipeline."""
    inputs: dict[str, str]
    """Key or digest of each input, by its name in the step."""
    outputs: list[Output]
    options: dict[str, Any]
    """Options of the step, as JSON values."""
    matrix: dict[str, Any]
    """As `Solution.matrix`; for a step that makes a store, as `MatrixInfo`: url, digest, shape, nnz, kind, ..."""
    began: str
    """Start of the step, UTC in ISO 8601."""
    ended: str
    seconds: dict[str, float]
    """Seconds by phase."""
    memory: dict[str, list[int]]
    """Bytes per worker, as `Solution.memory`."""
    result: dict[str, Any] = field(default_factory=dict)
    """Result of ranks: `Solution.to_dict` without the fields above: status, iterations, changes, error_bound_l1,
    stability. For batches, `vectors`: their results, and the changes of the slowest, the median and the fastest."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Summary of ranks, as `Summary.to_dict`: percentiles, Gini coefficient, histogram."""
    top: list[tuple[str | int, float]] = field(default_factory=list)
    """Highest ranks, (id, rank), descending."""
    comparison: dict[str, Any] = field(default_factory=dict)
    """Comparison with the previous ranks: `before` (`key`, `ended`), `n_common`, `spearman`, `kendall_top`, `l1`,
    `overlap` of the highest, `moved`: [id, place before, place now, rank before, rank now], largest moves first. For a
    batch, `before`, the number of vectors in both, and `vectors`, those with the largest changes."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Versions of program, Python, libraries and driver; host and hardware; sources with their checksums."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        described: dict[str, Any] = to_json({"mgspmv_step": FORMAT_VERSION, **asdict(self)})
        return described


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step in a run of the pipeline.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> [(step.name, step.kind, step.state) for step in mg.run_pipeline("a.toml").steps]
    [('web', 'matrix', 'made')]
    """

    name: str
    kind: StepKind
    state: State
    elapsed_s: float
    """Seconds in this run; for `kept`, the seconds of checking it."""
    record: StepRecord | None
    """Record; None if the step failed or was skipped, except for ranks that did not converge, which have a record
    without outputs."""
    error: str | None = None
    """Error message if the step failed; if it was skipped, the step it needs."""


@dataclass(frozen=True)
class RunRecord:
    """Record of one run of a pipeline.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> record = mg.run_pipeline("a.toml")
    >>> record.name, [step.name for step in record.steps]
    ('a', ['web'])
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: str
    """Name of the pipeline."""
    file: str
    """Path of the definition."""
    definition: dict[str, Any]
    """Definition as read, with overrides applied and variables not expanded."""
    began: str
    """Start of the run, UTC in ISO 8601; empty if unknown."""
    elapsed_s: float
    version: str
    """Version of the program."""
    steps: list[StepOutcome]
    """Outcomes of the steps, in the order of the plan."""

    @property
    def is_success(self) -> bool:
        """True if every step was made or kept."""
        return all(step.state in ("made", "kept") for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        described: dict[str, Any] = to_json({"mgspmv_run": FORMAT_VERSION, **asdict(self)})
        return described

    def __repr__(self) -> str:
        counts = Counter(step.state for step in self.steps)
        said = ", ".join(f"{n} {state}" for state, n in counts.items()) or "none"
        return f"<RunRecord: {self.name}, {len(self.steps)} steps: {said}, in {format_seconds(self.elapsed_s)}>"

    def _repr_html_(self) -> str:
        return render_card(self)


T = TypeVar("T", StepRecord, RunRecord)


def read_record(model: type[T], described: dict[str, Any], path: str) -> T:
    """Read a record from the output of `to_dict` of a `StepRecord` or a `RunRecord`.

    Raises
    ------
    PipelineError : it is not such a record, or of another format version
    """
    is_step = model is StepRecord
    key, what = ("mgspmv_step", "step") if is_step else ("mgspmv_run", "run")
    if not isinstance(described, dict) or key not in described:
        raise PipelineError(f"{path} is not a record of a {what}: it has no {key!r}; run the pipeline again")
    if described[key] != FORMAT_VERSION:
        raise PipelineError(
            f"{path} has format version {described[key]!r:.60}, but this program reads version {FORMAT_VERSION}; "
            "run the pipeline again, or read it with the version that wrote it"
        )
    try:
        if "sha256" in described:
            check_seal(described)
        known = {name: own for name, own in described.items() if name not in (key, "sha256")}
        record = check_fields(model, known)
        datetime.fromisoformat(record.began or "0001-01-01")
    except ValueError as error:
        remedy = "remove it to rebuild the step" if is_step else "run the pipeline again"
        raise PipelineError(f"{path} is not a record of a {what} ({error}); {remedy}") from error
    return record


# --- results ---------------------------------------------------------------------------------------------------------


def describe_iterations(solution: Solution | BatchSolution) -> dict[str, Any]:
    """Return the fields of a `StepRecord` about the iterations: options, matrix, seconds, memory and result, as JSON
    values. Of many vectors, the changes of the slowest, the median and the fastest."""
    described = solution.to_dict()
    fields = {name: described.pop(name) for name in ("options", "matrix", "seconds", "memory")}
    if isinstance(solution, Solution):
        return fields | {"result": described}
    # The slowest is first, and before it any that did not converge.
    order = sorted(range(len(solution)), key=lambda k: (solution.statuses[k].is_success, -len(solution.changes[k])))
    for k, pace in {order[len(order) // 2]: "median", order[-1]: "fastest", order[0]: "slowest"}.items():
        described["vectors"][k] |= {"pace": pace, "changes": to_json(solution.changes[k])}
    return fields | {"result": described}


def describe_solution(solution: Solution, k: int = 10) -> dict[str, Any]:
    """Return the fields of a `StepRecord` about ranks: iterations, summary and top k, as JSON values."""
    return describe_iterations(solution) | {
        "summary": to_json(solution.summary().to_dict()),
        "top": list(solution.top(k)),
    }


# --- comparison ------------------------------------------------------------------------------------------------------


def compare_ranks(before: Solution, now: Solution, k: int) -> dict[str, Any]:
    """Compare ranks `before` and `now`; the result is JSON values.

    Parameters
    ----------
    k : number of highest vertices to compare

    Returns
    -------
    `n_common`, `n_new`, `n_gone` : vertices of both, of `now` only, of `before` only
    `spearman` : rank correlation over the vertices of both, ties at their mean place; None if it is not defined
    `overlap` : share of the k highest that are the same
    `kendall_top` : Kendall's tau-b of the vertices that are in both graphs and among the k highest of either
    `l1` : sum of |now - before| over all vertices, with 0 for missing ones; None if they are scaled differently
    `moved` : [id, place before, place now, rank before, rank now] of the vertices of `kendall_top`, the furthest first.
        A place is 1 plus the number of higher ranks
    """
    from scipy.stats import kendalltau, spearmanr

    old = new = np.empty(0, np.int64)  # positions of the common ids, in ascending order of these
    if (before.ids.dtype == object) == (now.ids.dtype == object):
        _, old, new = np.intersect1d(before.ids, now.ids, assume_unique=True, return_indices=True)
    was, is_now = before.values[old], now.values[new]
    high_before, high_now = before._select_highest(k), now._select_highest(k)
    was_high, is_high = np.isin(old, high_before), np.isin(new, high_now)
    either = was_high | is_high
    l1 = None
    if before.scaler == now.scaler:
        # A vertex of only one of the graphs has rank 0 in the other.
        gaps = (is_now.astype(np.float64) - was, np.delete(before.values, old), np.delete(now.values, new))
        l1 = sum(float(np.abs(own).sum(dtype=np.float64)) for own in gaps)
    found: dict[str, Any] = to_json(
        {
            "n_common": len(old),
            "n_new": len(now.values) - len(new),
            "n_gone": len(before.values) - len(old),
            "spearman": _correlate(spearmanr, was, is_now),
            "overlap": int(np.count_nonzero(was_high & is_high)) / max(len(high_before), len(high_now), 1),
            "kendall_top": _correlate(kendalltau, was[either], is_now[either]),
            "l1": l1,
            "moved": _list_moved(before, now, old[either], new[either]),
        }
    )
    return found


def _correlate(measure: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> float | None:
    """Compute a statistic of SciPy; None if it is not defined, such as for fewer than two values."""
    if len(a) < 2:
        return None
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # SciPy warns if all values are equal
        found = float(measure(a, b).statistic)
    return None if np.isnan(found) else found


def _list_moved(before: Solution, now: Solution, old: np.ndarray, new: np.ndarray) -> list[list[Any]]:
    from scipy.stats import rankdata

    place_before, place_now = (rankdata(-own.values, "min")[where] for own, where in ((before, old), (now, new)))
    # Stable, so that ties are listed in the order of ids.
    order = np.argsort(-np.abs(place_now - place_before), kind="stable")[:MOVED]
    order = order[place_now[order] != place_before[order]]
    columns = (now.ids[new], place_before, place_now, before.values[old], now.values[new])
    return [list(row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


# --- loading ---------------------------------------------------------------------------------------------------------


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
