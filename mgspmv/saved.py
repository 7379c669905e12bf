"""Metadata of saved ranks and batches, whose fields are checked when they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, StrictInt, StrictStr

from mgspmv.model import Event, NonFinite, Recovery, Stability, Status, Underflow
from mgspmv.validation import check_fields

Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Options(BaseModel):
    """Options that are used after a run."""

    method: str = "power"
    scaler: str = "none"
    n_zero: Count = 0
    alpha: float | None = None
    tol: FiniteFloat | None = None


class _BatchOptions(_Options):
    steps: Count
    width: Count
    top: Count | None = None
    alpha: Any = None


class _Matrix(BaseModel):
    """Fields of the matrix that ranks come from, as far as they are used."""

    url: str
    shape: tuple[Count, Count]
    nnz: Count


def _like(model: type[BaseModel]) -> AfterValidator:
    """A dictionary that has these fields, which is left as it is."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        check_fields(model, value)
        return value

    return AfterValidator(check)


class Saved(BaseModel):
    """Metadata that ranks and batches share."""

    model_config = ConfigDict(frozen=True)

    seconds: dict[str, FiniteFloat]
    vertex_ids: Literal["int64", "string"] | None
    matrix: Annotated[dict[str, Any], _like(_Matrix)]
    events: tuple[Event, ...] = ()
    memory: dict[str, list[Count]] = {}
    digest: str


class SavedRanks(Saved):
    """Metadata of a `Solution`."""

    options: Annotated[dict[str, Any], _like(_Options)]
    status: Status
    iterations: Count
    changes: tuple[float, ...]
    error_bound_l1: float
    stability: Stability | None = None
    resumed_after: Count = 0
    non_finite: NonFinite | None = None
    underflow: Underflow | None = None
    recoveries: tuple[Recovery, ...] = ()


class SavedBatch(Saved):
    """Metadata of a `BatchSolution`."""

    options: Annotated[dict[str, Any], _like(_BatchOptions)]
    labels: Annotated[tuple[StrictStr | StrictInt, ...], Field(min_length=1)]
    alphas: list[float]
    statuses: tuple[Status, ...]
    changes: tuple[tuple[float, ...], ...]
    error_bounds_l1: list[float]
    top: Count | None
