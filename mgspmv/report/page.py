"""A run of a pipeline as one page of HTML that needs nothing else: no other file, no network and no script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from mgspmv.report.provenance import describe_definition, list_circumstances, list_files
from mgspmv.report.record import RunRecord
from mgspmv.report.sections import list_sections
from mgspmv.report.summary import list_facts, list_problems, list_tiles

if TYPE_CHECKING:
    from jinja2 import Template


def render_report(run: RunRecord, *, title: str | None = None) -> str:
    """One HTML document about a run: summary, steps, convergence, time, memory, ranks, comparison, provenance.

    Whatever comes from the user (names, ids, labels, paths, errors) is text in it, never markup.

    Parameters
    ----------
    run : as a pipeline returns it, or as `load_run` reads it
    title : default the name of the run

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    """
    page = _load_template().render(
        title=title or run.name,
        run=run,
        facts=list_facts(run),
        tiles=list_tiles(run),
        problems=list_problems(run),
        sections=list_sections(run),
        files=list_files(run),
        circumstances=list_circumstances(run),
        definition=describe_definition(run),
    )
    return f"{page.strip()}\n"


@cache
def _load_template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8"))
