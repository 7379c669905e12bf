"""Answers of commands that make stores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import note_checkpoint
from mgspmv.cli.program import Answer, translate_message
from mgspmv.display.numbers import format_seconds

if TYPE_CHECKING:
    from mgspmv.ingest_report import IngestReport
    from mgspmv.model import MatrixInfo


def make_store(store: str, call: Callable[..., Any], *args: Any, **options: Any) -> tuple[MatrixInfo, float]:
    """Call a function that makes a store; return the info of the matrix, and the seconds that it took."""
    note_checkpoint(f"{store} is unchanged")
    began = time.perf_counter()
    return call(*args, **options).info, time.perf_counter() - began


def answer_stored(info: MatrixInfo, elapsed_s: float) -> Answer:
    payload = {"store": asdict(info), "seconds": elapsed_s}
    order = [f"order: {describe_order(info)}"] if "reordering" in info.provenance else []
    return Answer(payload, [f"{info.url}: {describe_matrix(info)}, made in {format_seconds(elapsed_s)}", *order])


def answer_ingested(info: MatrixInfo, elapsed_s: float) -> Answer:
    """Make the answer of `answer_stored`, with the ingest report."""
    answer = answer_stored(info, elapsed_s)
    return replace(answer, parts=[*answer.parts, *list_report(info.ingest_report)])


def list_report(report: IngestReport | None, verb: str | None = None) -> list[str]:
    """List the lines of a report, with options in place of arguments in notes and warnings."""
    if report is None:
        return []
    first, *others = report.list_lines(verb)
    return [first, *map(translate_message, others)]


def answer_changed(info: MatrixInfo, before: MatrixInfo, elapsed_s: float, reason: str) -> Answer:
    """Make the answer for a store with a new version, or for an unchanged one.

    Parameters
    ----------
    before : info of the previous version
    reason : why nothing changed
    """
    if info.version != before.version:
        answer = answer_stored(info, elapsed_s)
        return replace(answer, payload=answer.payload | {"changed": True})
    payload = {"store": asdict(info), "seconds": elapsed_s, "changed": False}
    return Answer(payload, [f"{info.url}: {reason}; version {info.version} stays"])


def describe_order(info: MatrixInfo) -> str:
    made = info.provenance.get("reordering")
    bandwidth = f", bandwidth {made['bandwidth_after']:,}, was {made['bandwidth_before']:,}" if made else ""
    return f"{info.order or 'that of the source'}{bandwidth}"


def describe_matrix(info: MatrixInfo) -> str:
    values = "a pattern" if info.is_pattern else info.dtype
    return f"{info.kind}, {info.shape[0]:,} x {info.shape[1]:,}, {info.nnz:,} entries, {values}"
