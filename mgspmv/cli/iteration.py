"""Commands that iterate over vectors: shared options, graphs that they rank, progress and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.mode import MODE, note_checkpoint, print_note
from mgspmv.cli.options import option
from mgspmv.cli.placement import ComputingOptions, PlacementOptions, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.results import answer_ranks
from mgspmv.cli.stores import list_report
from mgspmv.errors import ConvergenceError, MgspmvError, OptionError, SourceError, StoreFormatError

if TYPE_CHECKING:
    from mgspmv.api import Checkpoint
    from mgspmv.model import Event, Kind, Phase, Stability
    from mgspmv.results import Solution

STDOUT = "-"


@dataclass(frozen=True)
class Outputs:
    """Outputs of one result: files and standard output."""

    paths: list[str]
    prints: bool
    """Whether the CSV is written to standard output, and the answer to standard error."""

    overwrite: bool

    def write(self, result: Any, answer: Answer) -> Answer:
        """Write ranks to each of `paths`, each atomically; return the answer, where requested with their CSV lines."""
        from mgspmv.saving import generate_csv

        for k, path in enumerate(self.paths):
            note_checkpoint(f"{', '.join(self.paths[:k]) or 'nothing'} is written")
            result.save(path, overwrite=self.overwrite)
        return replace(answer, lines=generate_csv(result)) if self.prints else answer


def find_outputs(named: Sequence[str] | None, *, overwrite: bool, option: str = "-o") -> Outputs:
    """Separate files from `-`, and check that results can be written there.

    Parameters
    ----------
    named : values of the option

    Raises
    ------
    OptionError : an unknown suffix; `-` with --json, which also writes to standard output
    StoreExistsError : a file exists and is not to be overwritten
    """
    from mgspmv.saving import check_target

    outputs = Outputs([path for path in named or [] if path != STDOUT], STDOUT in (named or []), overwrite)
    if outputs.prints and MODE.get().json:
        raise OptionError(f"{option} - and --json both write to standard output; leave one of them out")
    for path in outputs.paths:
        check_target(path, overwrite=overwrite)
    return outputs


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Options shared by commands that iterate over vectors."""

    graph: str
    output: list[str] | None = None
    tol: float | None = None
    norm: str = "l1"
    max_iter: int = 100
    weight: bool = True
    place: ComputingOptions
    overwrite: bool = False

    def find_outputs(self) -> Outputs:
        """Find the outputs of `-o`, as `find_outputs`."""
        return find_outputs(self.output, overwrite=self.overwrite)

    def compute(
        self, call: str, vectors: Sequence[str] = (), *, reverse: bool = False, seeds: str | None = None, **own: Any
    ) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API; return its result, and the error if it did not converge.

        Parameters
        ----------
        vectors : names in `own` that are vectors over vertices
        reverse : call it with the transpose
        seeds : table of the personalizations of a batch
        """
        from mgspmv import api
        from mgspmv.cli.vectors import read_vectors
        from mgspmv.ingest.vector_files import read_seeds

        options: dict[str, Any] = {name: getattr(self, name) for name in ("tol", "norm", "max_iter", "weight")} | own
        placing = {name: options.pop(name) for name in ("executor", "kernel", "transport", "recover") if name in own}
        reading: dict[str, Any] = {"kind": "stochastic" if call == "stationary" else "graph"}
        reading["transpose"] = reverse or call == "hits"
        with _open_graph(self.graph, self.place, **reading) as opened, opened.T if reverse else opened as matrix:
            if seeds is not None:
                options["personalization"] = read_seeds(seeds, string_ids=matrix.info.vertex_ids == "string")
            given = {name: options.pop(name) for name in vectors}
            options |= read_vectors(matrix, aligns=call == "pagerank", **given)

            def compute(client: Any, progress: Callable[[Event | Phase], None]) -> Any:
                return getattr(api, call)(self.place.place(matrix, client, **placing), **options, progress=progress)

            return _listen(compute, self.place, own.get("checkpoint"))


@dataclass(frozen=True, kw_only=True)
class VectorIteration(Iteration):
    """Options shared by commands that iterate over one vector."""

    nstart: str | None = None
    precision: Annotated[str, option("Precision of vectors and values.", "float64|float32")] = "float64"
    executor: Annotated[str, option("Executor of the iterations.", "auto|embedded|tasks|supersteps")] = "auto"
    top: int = 10

    def __post_init__(self) -> None:
        if self.executor == "embedded" and not self.place.is_embedded:
            raise OptionError("--set executor=embedded computes in this process; leave out --cluster and --scheduler")

    def compute(self, call: str, vectors: Sequence[str] = (), **own: Any) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API for one vector, as `Iteration.compute`."""
        own |= {name: getattr(self, name) for name in ("nstart", "precision", "executor")}
        return super().compute(call, ["nstart", *vectors], **own)

    def answer(self, call: str, vectors: Sequence[str] = (), **own: Any) -> Answer:
        """Compute one vector by a function of the API, write it, and make the answer."""
        outputs = self.find_outputs()
        solution, failure = self.compute(call, vectors, **own)
        return self.write(solution, outputs, failure)

    def write(
        self,
        solution: Solution,
        outputs: Outputs,
        failure: ConvergenceError | None,
        order: Stability | None = None,
    ) -> Answer:
        """Write a vector, and make the answer; `order` as in `answer_ranks`."""
        return outputs.write(solution, answer_ranks(solution, solution.top(self.top), outputs.paths, failure, order))


@contextmanager
def _open_graph(graph: str, place: PlacementOptions, *, kind: Kind = "graph", transpose: bool = False) -> Iterator[Any]:
    """Open a store, or read edges into memory; how they were read is printed as a note.

    Parameters
    ----------
    place : where the graph is ranked
    kind : kind of matrix that is made from edges
    transpose : whether the transpose is needed; that of a store must be stored

    Raises
    ------
    OptionError : saved ranks
    SourceError : edges that cannot be read
    StoreError : a store that cannot be read; edges, and the workers of a cluster, which cannot reach this process
    """
    from mgspmv import api
    from mgspmv.api.inputs import as_matrix

    try:
        reading: dict[str, Any] = {"transpose": transpose, "threads": place.threads}
        matrix = as_matrix(graph, kind, **reading) if place.is_embedded else api.open(graph)
    except SourceError as error:
        if _has_ranks(graph):
            raise OptionError(f"{graph} has saved ranks, not a graph; name its store, or its file of edges") from error
        if graph.rstrip("/").endswith(".zarr"):
            with suppress(StoreFormatError):
                api.open(graph)  # raises what is wrong with it as a store
        if error.line_number is not None:
            print_note("note: `mgspmv ingest` has options on how edges are read, and its STORE can be ranked")
        raise
    with matrix:
        if matrix.info.url != graph and matrix.info.url.startswith("memory://"):
            for line in list_report(matrix.ingest_report):
                if not line.startswith("warning: "):  # warnings were shown as such
                    print_note(line)
        yield matrix


def _has_ranks(path: str) -> bool:
    from mgspmv.results import load_solution

    with suppress(MgspmvError):
        load_solution(path)
        return True
    return False


def _listen(
    compute: Callable[[Any, Callable[[Event | Phase], None]], Any],
    place: PlacementOptions,
    checkpoint: Checkpoint | None = None,
) -> tuple[Any, ConvergenceError | None]:
    """Iterate in the given place; return the result, and the error if it did not converge.

    Parameters
    ----------
    compute : called with the client of a cluster, or None, and with a function for `progress`
    checkpoint : checkpoints of the run; None for none
    """
    from mgspmv.model import Event

    last: Event | None = None
    kept = "nothing is written"

    def hear(news: Event | Phase) -> None:
        nonlocal kept, last
        if isinstance(news, Event):
            last = news
        elif checkpoint is not None and news.name in ("checkpoint", "resume"):
            if news.name == "resume" and not news.done:
                print_note(f"no checkpoint in {checkpoint.place}; starting from the first iteration")
                return
            if news.name == "resume":
                print_note(f"resuming after iteration {news.done} from the checkpoint in {checkpoint.place}")
            kept = f"{checkpoint.place} has the checkpoint of iteration {news.done}; --resume resumes from it"
            note_checkpoint(kept)

    note_checkpoint(kept)
    with open_client(place) as client:
        try:
            return compute(client, hear), None
        except ConvergenceError as error:
            return error.solution, error
        except KeyboardInterrupt:
            if last is not None:
                note_checkpoint(f"after {last.iteration} iterations, change {last.change:.3g}; {kept}")
            raise
