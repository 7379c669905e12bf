"""What a definition must hold that no section of it says alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mgspmv.api.checkpointing import check_checkpoint
from mgspmv.errors import OptionError
from mgspmv.iterate.options import PageRankOptions
from mgspmv.pipeline.definition import PREVIOUS, Pipeline, list_points, suggest
from mgspmv.pipeline.steps import list_matrices

Key = tuple[str, ...]
"""Names of tables and of the key in them."""
Problems = Iterator[tuple[Key, str]]
"""What is wrong, with the key that it is wrong with."""


def find_problems(pipeline: Pipeline) -> list[tuple[Key, str]]:
    """What is wrong, with the key that it is wrong with; what runs share is said once."""
    problems = dict.fromkeys(_check_names(pipeline))
    for key, section in _list_sections(pipeline):
        found = [*_check_matrices(pipeline, key, section), *_check_labels(key, section)]
        if key[0] != "product":
            found += _check_ranks(pipeline, key, section)
        problems |= dict.fromkeys((_find_origin(pipeline, own), said) for own, said in found)
    return [*problems]


def _list_sections(pipeline: Pipeline) -> Iterator[tuple[Key, Any]]:
    """What is computed, with its key."""
    is_unnamed = pipeline.run is not None and not pipeline.run.__pydantic_extra__
    for name, run in pipeline.runs.items():
        yield ("run",) if is_unnamed else ("run", name), run
    for table in ("batch", "product"):
        for name, section in getattr(pipeline, table).items():
            yield (table, name), section


def _find_origin(pipeline: Pipeline, key: Key) -> Key:
    """Where the value of a run's key is from: what a run does not say itself is of [run]."""
    if key[0] != "run" or len(key) < 3 or pipeline.run is None:
        return key
    is_shared = key[2] in pipeline.run.model_fields_set - pipeline.run.__pydantic_extra__[key[1]].model_fields_set
    return ("run", *key[2:]) if is_shared else key


def _check_names(pipeline: Pipeline) -> Problems:
    taken: dict[str, str] = {}
    for table, names in (("run", [*pipeline.runs]), ("batch", [*pipeline.batch]), ("product", [*pipeline.product])):
        for name in names:
            if taken.setdefault(name, table) != table:
                yield (table, name), f"a {taken[name]} has this name, and results of both would go to one folder"


def _check_matrices(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Whether its matrices are there, and have what it needs."""
    known = pipeline.matrix
    names = list_matrices(pipeline, section)
    for name in names:
        if name not in known:
            there = suggest(name, [*known]) or f"; there are {', '.join(known)}"
            yield (*key, "matrix"), f"there is no matrix {name!r}{there}"
    turn = "transpose" if key[0] == "product" else "reverse"
    turned = getattr(section, turn)
    is_turned = any(turned) if isinstance(turned, list) else turned
    for name in filter(known.__contains__, names):
        if is_turned and known[name].open is None and not known[name].transpose:
            yield (*key, turn), f"this needs the transpose; set transpose = true in [matrix.{name}]"
        if key[0] != "product" and known[name].kind == "matrix":
            said = f"{name!r} is of kind 'matrix', which has no ranks; set kind = \"graph\" in its section"
            yield (*key, "matrix"), said


def _check_labels(key: Key, section: Any) -> Problems:
    labels = [point.label for point in list_points(section)]
    for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
        yield key, f"two of its combinations would both be called {label!r}; name files differently"


def _check_ranks(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Whether options of PageRank go together, and with [output]."""
    for point in list_points(section):
        own = point.section
        names = ("tol", "tol_mode", "max_iter", "precision", *(("stop",) if key[0] == "run" else ()))
        try:
            options = PageRankOptions(**{name: getattr(own, name) for name in names})
        except OptionError as error:
            yield key, str(error)
            continue
        if key[0] != "run":
            continue
        if own.checkpoint:
            try:
                check_checkpoint("", None, False, options)
            except OptionError as error:
                yield (*key, "checkpoint"), str(error)
        if own.nstart == PREVIOUS and pipeline.output.scaler != "none":
            said = 'previous ranks start a run as they were computed; set scaler = "none" in [output]'
            yield (*key, "nstart"), said
        if own.nstart == PREVIOUS and not pipeline.output.is_loadable:
            said = "previous ranks are read again; have zarr or parquet among the formats of [output]"
            yield (*key, "nstart"), said
