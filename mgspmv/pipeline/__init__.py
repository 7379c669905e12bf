"""Pipelines: many matrices and many runs, in one TOML file that says it."""

from mgspmv.pipeline.executor import RunInterrupted, run_pipeline
from mgspmv.pipeline.preflight import PipelinePlan, PlannedStep, plan_pipeline
from mgspmv.pipeline.reading import Definition, read_pipeline

__all__ = [
    "Definition",
    "PipelinePlan",
    "PlannedStep",
    "RunInterrupted",
    "plan_pipeline",
    "read_pipeline",
    "run_pipeline",
]
