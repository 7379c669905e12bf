"""Commands for existing results: `top`, `summary` and `report`."""

from __future__ import annotations

import os
from typing import get_args

from mgspmv.cli.program import Answer
from mgspmv.cli.solutions import describe_order, list_order, list_top, tabulate_summary, tabulate_top
from mgspmv.display.numbers import format_bytes
from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.validation import to_json


def top(ranks: str, top: int = 10) -> Answer:
    """Show the highest ranks in a file."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    highest, order = solution.top(top), solution.check_order(top)
    said = None if order is None else describe_order(order)
    payload = {"status": solution.status.value, "top": list_top(highest), "order": list_order(order)}
    return Answer(payload, [tabulate_top(highest), *([] if said is None else [f"order {said}"])])


def summary(ranks: str, bins: int = 20) -> Answer:
    """Show the distribution of the ranks in a file."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    found = solution.summary(bins)
    payload = {"status": solution.status.value, "scaler": solution.scaler, "summary": to_json(found.to_dict())}
    return Answer(payload, tabulate_summary(found))


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
