"""Checks of a definition that involve several of its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from mgspmv.api.checkpointing import read_checkpoint
from mgspmv.errors import OptionError
from mgspmv.pipeline.definition import LOADABLE, PREVIOUS, Pipeline, suggest
from mgspmv.pipeline.steps import list_matrices, list_points
from mgspmv.solvers.options import PageRankOptions

Key = tuple[str, ...]
"""Names of tables, and of the key in them."""
Problems = Iterator[tuple[Key, str]]
"""Pairs of a key and the problem with its value."""


def find_problems(pipeline: Pipeline) -> Problems:
    """Yield the problems of a definition, each with its key."""
    is_unnamed = pipeline.run is not None and not pipeline.run.__pydantic_extra__
    tables: dict[str, Any] = {"run": pipeline.runs, "batch": pipeline.batch, "product": pipeline.product}
    taken: dict[str, str] = {}
    for table, sections in tables.items():
        for name, section in sections.items():
            key = (table,) if table == "run" and is_unnamed else (table, name)
            if taken.setdefault(name, table) != table:
                yield key, f"a {taken[name]} has the same name, and both would write to the same folder; rename one"
            yield from _check_matrices(pipeline, key, section)
            points = list(list_points(section))
            for label, count in Counter(label for label, _ in points).items():
                if count > 1:
                    yield key, f"two combinations have the same label {label!r}; rename one of the files"
            if table != "product":
                yield from dict.fromkeys(own for _, point in points for own in _check_ranks(pipeline, key, point))


def _check_matrices(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Check that the matrices of a section exist, store a transpose if it is needed, and can be ranked."""
    known = pipeline.matrix
    turn = "transpose" if key[0] == "product" else "reverse"
    turned = getattr(section, turn)
    for name in list_matrices(pipeline, section):
        if name not in known:
            there = suggest(name, [*known]) or f"; known matrices: {', '.join(known)}"
            yield (*key, "matrix"), f"there is no matrix {name!r}{there}"
        elif turned not in (False, [False]) and known[name].open is None and not known[name].transpose:
            yield (*key, turn), f"this needs the transpose; set transpose = true in [matrix.{name}]"
        elif key[0] != "product" and known[name].kind == "matrix":
            said = f"{name!r} is of kind 'matrix' and cannot be ranked; set kind = \"graph\" in its section"
            yield (*key, "matrix"), said


def _check_ranks(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Check that options of PageRank are compatible with each other, and with [output]."""
    names = ("tol", "norm", "max_iter", "precision", *(("stop",) if key[0] == "run" else ()))
    try:
        options = PageRankOptions(**{name: getattr(section, name) for name in names})
        if key[0] == "run" and section.checkpoint:
            read_checkpoint("", options)
    except OptionError as error:
        yield key, str(error)
    output = pipeline.output
    if key[0] == "batch" and output.scaler != "none":
        yield key, f'batches do not support scaler = "{output.scaler}" in [output]; remove the scaler or the batch'
    if key[0] == "run" and section.nstart == PREVIOUS:
        if output.scaler != "none":
            said = 'nstart = "previous" needs unscaled ranks; set scaler = "none" in [output]'
            yield (*key, "nstart"), said
        if not set(output.formats) & set(LOADABLE):
            said = 'nstart = "previous" reads ranks in zarr or parquet; add one of them to formats in [output]'
            yield (*key, "nstart"), said
