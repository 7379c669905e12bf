"""Pipelines: many matrices and many runs, defined in one TOML file."""

from mgspmv.pipeline.executor import PipelinePlan, PlannedStep, RunInterrupted, plan_pipeline, run_pipeline
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
