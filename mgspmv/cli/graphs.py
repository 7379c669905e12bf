"""Graphs that commands rank: matrix stores, and files of edges, which are read into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import print_note
from mgspmv.cli.placement import PlacementOptions
from mgspmv.cli.stored import list_report
from mgspmv.errors import OptionError, SourceError, StoreFormatError

if TYPE_CHECKING:
    from mgspmv.model import Kind


@contextmanager
def open_graph(graph: str, place: PlacementOptions, *, kind: Kind = "graph", transpose: bool = False) -> Iterator[Any]:
    """Open a store, or read edges into memory; how they were read is printed as a note.

    Parameters
    ----------
    place : where the graph is ranked
    kind : kind of matrix that is made from edges
    transpose : whether the transpose is needed; that of a store must be stored

    Raises
    ------
    OptionError : edges, and the workers of a cluster, which cannot reach the memory of this process
    SourceError : edges that cannot be read
    StoreError : a store that cannot be read
    """
    from mgspmv import api
    from mgspmv.api.inputs import as_matrix

    try:
        matrix = as_matrix(graph, kind, transpose=transpose, threads=place.threads)
    except SourceError as error:
        if graph.rstrip("/").endswith(".zarr"):
            with suppress(StoreFormatError):
                api.open(graph)  # raises what is wrong with it as a store
        if error.line_number is not None:
            print_note("note: `mgspmv ingest` has options on how edges are read, and its STORE can be ranked")
        raise
    with matrix:
        if matrix.info.url != graph and matrix.info.url.startswith("memory://"):
            if not place.is_embedded:
                raise OptionError(
                    f"{graph} is a file of edges, which is read into the memory of this process, where workers cannot "
                    f"reach it; store it by `mgspmv ingest {graph} STORE`, and rank that"
                )
            lines = list_report(matrix.ingest_report)
            for line in (line for line in lines if not line.startswith("warning: ")):  # warnings were shown as such
                print_note(line)
        yield matrix
