"""What a definition must hold that no key of it says alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from mgspmv.api.checkpointing import check_checkpoint
from mgspmv.errors import MgspmvError, OptionError
from mgspmv.files import is_url
from mgspmv.ingest.generate import list_parameters, make_generator
from mgspmv.ingest.weights import check_dangling
from mgspmv.iterate.options import PageRankOptions
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.select import list_kernels
from mgspmv.pipeline.definition import PREVIOUS, MatrixSection, Pipeline, Reading, Section, list_points
from mgspmv.pipeline.steps import list_matrices

Key = tuple[str, ...]
"""Names of tables and of the key in them."""
Problem = tuple[Key, str]
"""What is wrong with a key."""
Problems = Iterator[Problem]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def find_problems(pipeline: Pipeline) -> list[Problem]:
    """What is wrong, with the key that it is wrong with."""
    problems = [*_check_names(pipeline), *_check_outputs(pipeline), *_check_cluster(pipeline)]
    for name, matrix in pipeline.matrix.items():
        problems += _check_matrix(("matrix", name), matrix)
    for key, section in _list_sections(pipeline):
        problems += _check_section(pipeline, key, section)
    return list(dict.fromkeys((_find_origin(pipeline, key), said) for key, said in problems))


def suggest(name: str, known: Sequence[str]) -> str:
    """The near miss, in words; nothing where there is none."""
    near = [k for k in known if name and (name.startswith(k) or k.startswith(name))]
    near = near or get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _find_origin(pipeline: Pipeline, key: Key) -> Key:
    """Where the value of a run's key is from: what a run does not say itself is of [run]."""
    if key[0] != "run" or len(key) < 3 or pipeline.run is None:
        return key
    is_shared = key[2] in pipeline.run.model_fields_set - pipeline.run.__pydantic_extra__[key[1]].model_fields_set
    return ("run", *key[2:]) if is_shared else key


def _list_sections(pipeline: Pipeline) -> Iterator[tuple[Key, Section]]:
    """What is computed, with its key."""
    is_unnamed = pipeline.run is not None and not pipeline.run.__pydantic_extra__
    for name, run in pipeline.runs.items():
        yield ("run",) if is_unnamed else ("run", name), run
    for table in ("batch", "product"):
        for name, section in getattr(pipeline, table).items():
            yield (table, name), section


def _check_names(pipeline: Pipeline) -> Problems:
    tables: dict[str, Any] = {
        "matrix": pipeline.matrix,
        "run": pipeline.runs,
        "batch": pipeline.batch,
        "product": pipeline.product,
    }
    taken: dict[str, str] = {}
    for table, sections in tables.items():
        for name in sections:
            if not _NAME.fullmatch(name):
                yield (table, name), "a name has letters, digits, - and _ only, for it is that of a folder"
            if table != "matrix" and taken.setdefault(name, table) != table:
                yield (
                    (table, name),
                    f"a {taken[name]} has this name, and results of both would go to one folder",
                )


# --- matrices --------------------------------------------------------------------------------------------------------


def _check_matrix(key: Key, matrix: MatrixSection) -> Problems:
    given = [name for name in ("path", "generate", "open") if getattr(matrix, name) is not None]
    if len(given) != 1:
        wanted = "give path, a file to read; generate, the name of a generator; or open, a store that is there"
        yield key, f"{' and '.join(given)} are {len(given)} sources; leave all but one out" if given else wanted
        return
    if matrix.generate is not None:
        yield from _check_generator(key, matrix.generate, matrix.parameters)
    elif matrix.parameters:
        yield (*key, "parameters"), "these are of a generator; leave them out, or name one by generate"
    if matrix.path is None and (misplaced := matrix.reading):
        yield key, f"{', '.join(misplaced)}: for files that are read, and the source is given by {given[0]}"
    for_making = _MADE - ({"scratch"} if matrix.update is not None else set())
    if matrix.open is not None and (unused := sorted(for_making & matrix.model_fields_set)):
        yield key, f"{', '.join(unused)}: of a store that is made, and this one is there already"
    if matrix.update is not None and matrix.update.insert is None and matrix.update.delete is None:
        yield (*key, "update"), "give insert, files of entries that come, delete, those that go, or both"


def _check_generator(key: Key, model: str, parameters: dict[str, Any]) -> Problems:
    known = list_parameters(model)
    if known is None:
        yield (*key, "generate"), _find_error(make_generator, model)
        return
    unknown = [name for name in parameters if name not in known]
    for name in unknown:
        yield (*key, "parameters", name), _find_error(make_generator, model, **{name: parameters[name]})
    if said := _find_error(make_generator, model, **{k: v for k, v in parameters.items() if k in known}):
        yield (*key, "parameters"), said


def _find_error(make: Callable[..., Any], *given: Any, **options: Any) -> str:
    """What is said of wrong arguments; empty where they are right."""
    try:
        make(*given, **options)
    except MgspmvError as error:
        return str(error)
    return ""


_MADE = MatrixSection.model_fields.keys() - Reading.model_fields.keys() - {"open", "labels", "update"}


# --- what is computed ------------------------------------------------------------------------------------------------


def _check_section(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    named = [section.matrix] if isinstance(section.matrix, str) else section.matrix or []
    unknown = [name for name in named if name not in pipeline.matrix]
    for name in unknown:
        there = f"there are {', '.join(pipeline.matrix)}"
        yield (*key, "matrix"), f"there is no matrix {name!r}{suggest(name, [*pipeline.matrix]) or '; ' + there}"
    if not unknown:
        for name in list_matrices(pipeline, section):
            yield from _check_suits(key, section, name, pipeline.matrix[name])
    seen: dict[str, Any] = {}
    for point in list_points(section):
        if point.label in seen:
            yield key, f"two of its combinations would both be called {point.label!r}; name files differently"
        seen[point.label] = point
        yield from _check_point(pipeline, key, point.section)


def _check_suits(key: Key, section: Any, name: str, matrix: MatrixSection) -> Problems:
    turn = "transpose" if key[0] == "product" else "reverse"
    turned = getattr(section, turn)
    if any(turned if isinstance(turned, list) else [turned]) and matrix.open is None and not matrix.transpose:
        yield (*key, turn), f"this needs the transpose; set transpose = true in [matrix.{name}]"
    if key[0] != "product" and matrix.kind == "matrix":
        yield (*key, "matrix"), f"{name!r} is of kind 'matrix', which has no ranks; set kind = \"graph\" in its section"


def _check_kernel(key: Key, kernel: str) -> Problems:
    """Whether there is a kernel of that name anywhere; where it computes, and on what, the step finds out."""
    what, for_steps = ("products", False) if key[0] == "product" else ("PageRank", True)
    known = ["auto", *dict.fromkeys(k for b in BACKENDS for k in list_kernels(b, for_steps=for_steps))]
    if kernel not in known:
        there = f"; there are {', '.join(known)}"
        yield (*key, "kernel"), f"there is no kernel {kernel!r} for {what}{suggest(kernel, known) or there}"


def _check_point(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    if key[0] != "batch":
        yield from _check_kernel(key, section.kernel)
    if key[0] == "product":
        if section.beta and section.y is None:
            yield (*key, "y"), f"beta = {section.beta:g} needs y, which it is the factor of"
        return
    more = ("stop",) if key[0] == "run" else ()
    alphas = section.alpha if isinstance(section.alpha, list) else [section.alpha]
    asked = {name: getattr(section, name) for name in ("tol", "tol_mode", "max_iter", "precision", *more)}
    alone = [("alpha", alpha) for alpha in alphas] + [(name, asked[name]) for name in ("tol", "stop") if name in asked]
    wrong = [((*key, name), said) for name, value in alone if (said := _find_error(PageRankOptions, **{name: value}))]
    together = "" if wrong else _find_error(PageRankOptions, alphas[0], **asked)
    yield from wrong or ([(key, together)] if together else [])
    if (
        section.dangling is not None
        and not is_url(section.dangling)
        and (said := _find_error(check_dangling, section.dangling))
    ):
        yield (*key, "dangling"), said
    if key[0] == "run" and section.nstart == PREVIOUS:
        yield from _check_previous(pipeline, key)
    if key[0] == "run" and section.checkpoint and not (wrong or together):
        options = PageRankOptions(alphas[0], **asked)
        if said := _find_error(check_checkpoint, "", None, False, options):
            yield (*key, "checkpoint"), said


def _check_previous(pipeline: Pipeline, key: Key) -> Problems:
    if pipeline.output.scaler != "none":
        yield (*key, "nstart"), 'previous ranks start a run as they were computed; set scaler = "none" in [output]'
    if not pipeline.output.is_loadable:
        yield (*key, "nstart"), "previous ranks are read again; have zarr or parquet among the formats of [output]"


# --- where and how ---------------------------------------------------------------------------------------------------


def _check_outputs(pipeline: Pipeline) -> Problems:
    output = pipeline.output
    if output.compare and not output.is_loadable:
        yield ("output", "compare"), "ranks to compare with are read again; have zarr or parquet among the formats"
    if "://" in (pipeline.folder or ""):
        yield ("folder",), "this is a local path, for records; a URL that results go to is folder in [output]"


def _check_cluster(pipeline: Pipeline) -> Problems:
    cluster = pipeline.cluster
    if cluster is None:
        return
    if (cluster.kind == "address") != (cluster.address is not None):
        yield (
            ("cluster", "address"),
            'the address of a scheduler goes with kind = "address"; give both or neither',
        )
    if cluster.kind != "address":
        from mgspmv.distribute.managers import check_shared, find_manager

        try:
            find_manager(cluster.kind)
            check_shared(cluster.kind, cluster.tls)
        except OptionError as error:
            yield ("cluster", "kind"), str(error)
    elif cluster.options:
        yield ("cluster", "options"), "says what is started, and the cluster of an address runs already"
    if cluster.kind == "address" and cluster.workers is not None:
        yield ("cluster", "workers"), "says how many are started, and the cluster of an address runs already"
    if cluster.kind == "address" and cluster.tls == "temporary":
        yield ("cluster", "tls"), "a cluster that runs has certificates already; name their folder"
