"""Records of each step of a pipeline, and of a run of it: one JSON file each."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeVar

from mgspmv.display.cards import render_card
from mgspmv.display.numbers import format_seconds
from mgspmv.errors import PipelineError
from mgspmv.validation import check_fields, check_seal, to_json

FORMAT_VERSION = 1

StepKind = Literal["matrix", "pagerank", "batch", "product"]
State = Literal["made", "kept", "failed", "skipped"]
"""In a run: made in it; there already and whole; ended by an error; not begun, as what it needs failed."""


@dataclass(frozen=True)
class Output:
    """File, folder or object that a step made."""

    path: str
    """Path or URL."""
    n_bytes: int
    """Of all that is in it."""
    digest: str
    """SHA-256 of what it holds, independent of when and how it was written."""
    stamp: str
    """What changes when it is written to, and is read without reading the contents: sizes and times of change."""


@dataclass(frozen=True)
class StepRecord:
    """Record of a completed step."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    key: str
    """SHA-256 of the program's version, what kind of step it is, its options and the keys of its inputs."""
    kind: StepKind
    name: str
    """Such as `web`, or `web/damping/alpha=0.9`; unique in a pipeline."""
    inputs: dict[str, str]
    """Key, or digest, of each input, by what the step calls it."""
    outputs: list[Output]
    options: dict[str, Any]
    """What was asked for, as JSON values."""
    matrix: dict[str, Any]
    """As `Solution.matrix`, or of a step that made a store as `MatrixInfo`: url, digest, shape, nnz, kind, ..."""
    began: str
    """ISO 8601, UTC."""
    ended: str
    seconds: dict[str, float]
    """By phase."""
    memory: dict[str, list[int]]
    """As `Solution.memory`: bytes of each worker."""
    result: dict[str, Any] = field(default_factory=dict)
    """Of ranks: `Solution.to_dict` less what is above: status, iterations, changes, error_bound_l1, stability;
    `events`: of each iteration its product_s, exchange_s, wait_s of each worker. Of many vectors, `vectors`:
    those of each, and the changes of the slowest, the median and the fastest."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Of ranks: `Summary.to_dict`: percentiles, Gini coefficient, histogram."""
    distribution: list[list[float]] = field(default_factory=list)
    """Of ranks, [rank, how many vertices have at least it], descending, thinned to a few hundred pairs."""
    degrees: dict[str, list[list[float]]] = field(default_factory=dict)
    """Of a graph, `in` and `out`: [degree, how many vertices have at least it], ascending, thinned likewise."""
    top: list[list[Any]] = field(default_factory=list)
    """Of ranks: [id, rank] of the highest, descending."""
    comparison: dict[str, Any] = field(default_factory=dict)
    """With the ranks that were there before: `before` (`key`, `ended`), `n_common`, `spearman`, `kendall_top`, `l1`,
    `overlap` of the highest, `moved`: [id, place before, place now, rank before, rank now], the furthest first. Of a
    batch `before`, how many vectors are in both, and `vectors`, those that changed most."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Versions of program, Python, libraries and driver; host and hardware; sources with their checksums."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        described: dict[str, Any] = to_json({"mgspmv_step": FORMAT_VERSION, **asdict(self)})
        return described


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step in a run of the pipeline."""

    name: str
    kind: StepKind
    state: State
    elapsed_s: float
    """In this run; of what was kept, what looking at it took."""
    record: StepRecord | None
    """None where the step failed or was skipped; but of ranks that did not converge, how far they came, with no
    outputs."""
    error: str | None = None
    """In a sentence, where it failed; where it was skipped, which step it needs."""


@dataclass(frozen=True)
class RunRecord:
    """Record of one run of a pipeline."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: str
    """Of the pipeline."""
    file: str
    """Path of the definition."""
    definition: dict[str, Any]
    """The definition as it was read, with overrides in place and variables as they are written."""
    began: str
    """ISO 8601, UTC; empty where it is not known."""
    elapsed_s: float
    version: str
    """Of the program."""
    steps: list[StepOutcome]
    """In the order of the plan."""

    @property
    def is_success(self) -> bool:
        """True if every step was made or kept."""
        return all(step.state in ("made", "kept") for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        described: dict[str, Any] = to_json({"mgspmv_run": FORMAT_VERSION, **asdict(self)})
        return described

    def __repr__(self) -> str:
        return f"<RunRecord: {self.name}, {self._count_states()}, in {format_seconds(self.elapsed_s)}>"

    def _repr_html_(self) -> str:
        return render_card(self)

    def _count_states(self) -> str:
        counts = Counter(step.state for step in self.steps)
        return f"{len(self.steps)} steps: " + (", ".join(f"{n} {state}" for state, n in counts.items()) or "none")


T = TypeVar("T", StepRecord, RunRecord)


def read_record(model: type[T], described: dict[str, Any], path: str) -> T:
    """Read a record from the output of `to_dict` of a `StepRecord` or a `RunRecord`.

    Raises
    ------
    PipelineError : it is no such record, or of another format version
    """
    is_step = model is StepRecord
    key = "mgspmv_step" if is_step else "mgspmv_run"
    if not isinstance(described, dict) or key not in described:
        raise PipelineError(f"{path} is no record of a pipeline; it has no {key!r}")
    if described[key] != FORMAT_VERSION:
        raise PipelineError(
            f"{path} was written in format {described[key]!r:.60} and this program reads {FORMAT_VERSION}; "
            "run the pipeline again, or read it with the version that wrote it"
        )
    try:
        if "sha256" in described:
            check_seal(described)
    except ValueError as error:
        raise PipelineError(f"{path} is damaged: {error}; restore a copy, or run the pipeline again") from error
    try:
        record = check_fields(model, {name: own for name, own in described.items() if name not in (key, "sha256")})
        if began := record.began:
            datetime.fromisoformat(began)
    except ValueError as error:
        what, remedy = (
            ("step", "remove it, and the step is made again") if is_step else ("run", "run the pipeline again")
        )
        raise PipelineError(f"{path} is no record of a {what} ({error}); {remedy}") from error
    return record
