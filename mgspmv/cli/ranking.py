"""Commands that rank the vertices of a graph: PageRank, of one vector or many, HITS and other centralities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from mgspmv.cli.options import option
from mgspmv.cli.output import MODE, Answer, note_checkpoint, print_note
from mgspmv.cli.placement import ComputingOptions, PlacementOptions, open_client
from mgspmv.cli.results import answer_batch, answer_ranks
from mgspmv.cli.stores import list_report
from mgspmv.errors import ConvergenceError, OptionError, SourceError
from mgspmv.kernels.catalogue import SPARSE_KERNELS

if TYPE_CHECKING:
    from mgspmv.api.ranking import Checkpoint
    from mgspmv.model import Event, Kind, Phase, Stability
    from mgspmv.results import Solution
    from mgspmv.scores import Scaler

STDOUT = "-"
_KERNELS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.step_backends)


# --- options ---------------------------------------------------------------------------------------------------------


def check_outputs(named: Sequence[str], *, overwrite: bool, option: str = "-o") -> None:
    """Check that results can be written to the values of an option: files, and `-` for standard output.

    Raises
    ------
    OptionError : an unknown suffix; `-` with --json, which also writes to standard output
    StoreExistsError : a file exists and is not to be overwritten
    """
    from mgspmv.saving import check_target

    if STDOUT in named and MODE.get().json:
        raise OptionError(f"{option} - and --json both write to standard output; leave one of them out")
    for path in list_files(named):
        check_target(path, overwrite=overwrite)


def list_files(named: Sequence[str]) -> list[str]:
    """Return the outputs that are files."""
    return [path for path in named if path != STDOUT]


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

    def compute(
        self, call: str, vectors: Sequence[str] = (), *, reverse: bool = False, seeds: str | None = None, **own: Any
    ) -> tuple[Any, ConvergenceError | None]:
        """Check the outputs, and call a function of the API; return its result, and the error if it did not converge.

        Parameters
        ----------
        vectors : names in `own` that are vectors over vertices
        reverse : call it with the transpose
        seeds : table of the personalizations of a batch
        """
        import mgspmv as mg
        from mgspmv.cli.vectors import read_vectors
        from mgspmv.ingest.vector_files import read_seeds

        check_outputs(self.output or (), overwrite=self.overwrite)
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
                return getattr(mg, call)(self.place.place(matrix, client, **placing), **options, progress=progress)

            return _listen(compute, self.place, own.get("checkpoint"))

    def write(self, result: Any, answer: Answer, named: Sequence[str] | None = None) -> Answer:
        """Write a result to each output, each atomically; return the answer, for `-` with the lines of the CSV.

        Parameters
        ----------
        named : outputs; default those of `-o`
        """
        from mgspmv.saving import generate_csv

        named = (self.output if named is None else named) or ()
        files = list_files(named)
        for k, path in enumerate(files):
            note_checkpoint(f"{', '.join(files[:k]) or 'nothing'} is written")
            result.save(path, overwrite=self.overwrite)
        return replace(answer, lines=generate_csv(result)) if STDOUT in named else answer


@dataclass(frozen=True, kw_only=True)
class VectorIteration(Iteration):
    """Options shared by commands that iterate over one vector."""

    nstart: str | None = None
    precision: Annotated[str, option("Precision of vectors and values.", "float64|float32")] = "float64"
    executor: Annotated[str, option("Executor of the iterations.", "auto|embedded|tasks|supersteps")] = "auto"
    top: int = 10

    def __post_init__(self) -> None:
        if self.executor == "embedded" and not self.place.is_embedded:
            raise OptionError("--executor embedded computes in this process; leave out --cluster and --scheduler")

    def compute(self, call: str, vectors: Sequence[str] = (), **own: Any) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API for one vector, as `Iteration.compute`."""
        own |= {name: getattr(self, name) for name in ("nstart", "precision", "executor")}
        return super().compute(call, ["nstart", *vectors], **own)

    def answer(
        self,
        solution: Solution,
        failure: ConvergenceError | None = None,
        order: Stability | None = None,
        named: Sequence[str] | None = None,
    ) -> Answer:
        """Write a vector, and make the answer; `order` as in `answer_ranks`, `named` as in `write`."""
        files = list_files((self.output if named is None else named) or ())
        return self.write(solution, answer_ranks(solution, solution.top(self.top), files, failure, order), named)


@contextmanager
def _open_graph(graph: str, place: PlacementOptions, *, kind: Kind = "graph", transpose: bool = False) -> Iterator[Any]:
    """Open a store, or read edges into memory; how they were read is printed as a note.

    Parameters
    ----------
    place : where the graph is ranked
    kind : kind of matrix that is made from edges
    transpose : whether the transpose is needed; that of a store must be stored
    """
    import mgspmv as mg
    from mgspmv.api.inputs import as_matrix

    try:
        reading: dict[str, Any] = {"transpose": transpose, "threads": place.threads}
        matrix = as_matrix(graph, kind, **reading) if place.is_embedded else mg.open(graph)
    except SourceError as error:
        if error.line_number is not None:
            print_note("note: `mgspmv ingest` has options on how edges are read, and its STORE can be ranked")
        raise
    with matrix:
        if matrix.info.url != graph and matrix.info.url.startswith("memory://"):
            for line in list_report(matrix.ingest_report):
                if not line.startswith("warning: "):  # warnings were shown as such
                    print_note(line)
        yield matrix


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


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RankingOptions(VectorIteration):
    """Options of a PageRank run that other iterations have too."""

    precision: str = "exact"


@dataclass(frozen=True)
class PageRankFlags:
    """Options specific to PageRank, as arguments of `mgspmv.pagerank`."""

    alpha: Annotated[float, option("Damping factor.")] = 0.85
    stop: Annotated[str, option("Stop criterion; topk:K once the K highest are proven.", "change|topk:K")] = "change"
    personalization: str | None = None
    dangling: str | None = None
    out_weight: str | None = None
    kernel: Annotated[str, option(f"Kernel: auto, {_KERNELS}.", "NAME")] = "auto"
    transport: str = "auto"
    checkpoint: str | None = None
    checkpoint_every: float | None = None
    resume: Annotated[bool, option("Resume from the last checkpoint, or start if none exists.")] = False
    recover: Annotated[int, option("On a cluster: maximum number of restarts after lost workers.", "N", min=0)] = 5

    @property
    def arguments(self) -> dict[str, Any]:
        """Options as arguments of the function, with one for the checkpoint.

        Raises
        ------
        OptionError : options of a checkpoint without its place
        """
        from mgspmv.api.ranking import Checkpoint

        given = dict(vars(self))
        every_s, resume = given.pop("checkpoint_every"), given.pop("resume")
        if self.checkpoint is None:
            if every_s is not None or resume:
                name = "--resume" if resume else "--checkpoint-every"
                raise OptionError(f"{name} needs the place of the checkpoints; add --checkpoint")
            return given
        seconds = {} if every_s is None else {"every_s": every_s}
        return given | {"checkpoint": Checkpoint(self.checkpoint, resume=resume, **seconds)}


def pagerank(own: PageRankFlags, ranking: RankingOptions, reverse: bool = False, scaler: str = "none") -> Answer:
    """Compute PageRank of a graph. Ranks that did not converge are written too, with exit code 5."""
    vectors = ("personalization", "dangling", "out_weight")
    solution, failure = ranking.compute("pagerank", vectors, reverse=reverse, **own.arguments)
    order = solution.check_order(ranking.top)
    return ranking.answer(solution.scale(cast("Scaler", scaler)), failure, order)


def pagerank_batch(
    iteration: Iteration,
    personalization: str | None = None,
    alpha: list[float] | None = None,
    top: int | None = None,
    keep_top: Annotated[int | None, option("Highest ranks to keep per vector; default all.", min=1)] = None,
    dangling: str | None = None,
    out_weight: str | None = None,
    reverse: bool = False,
    precision: str = "exact",
    width: Annotated[int | None, option("Vectors per pass; default the fastest that fits.", "2|4|8|16|32|64")] = None,
    transport: str = "auto",
) -> Answer:
    """Compute PageRank of a graph for many personalizations at once. Exit code 5 if one did not converge."""
    own: dict[str, Any] = {"alpha": alpha or 0.85, "dangling": dangling, "out_weight": out_weight, "width": width}
    own |= {"keep_top": keep_top, "precision": precision, "transport": transport}
    vectors = ("dangling", "out_weight")
    batch, failure = iteration.compute("pagerank_batch", vectors, reverse=reverse, seeds=personalization, **own)
    return iteration.write(batch, answer_batch(batch, top, list_files(iteration.output or ()), failure))


def hits(iteration: VectorIteration, hubs: list[str] | None = None, normalized: bool = True) -> Answer:
    """Compute hubs and authorities (HITS) of a graph; --output takes the authorities. Needs the stored transpose."""
    check_outputs(hubs or (), overwrite=iteration.overwrite, option="--hubs")
    if STDOUT in (hubs or ()) and STDOUT in (iteration.output or ()):
        raise OptionError("--hubs - and -o - both write to standard output; name a file for one of them")
    found, failure = iteration.compute("hits", normalized=normalized)
    answers = {
        "hubs": iteration.answer(found.hubs, named=hubs or ()),
        "authorities": iteration.answer(found.authorities),
    }
    parts = [part for name, answer in answers.items() for part in (name, *answer.parts)]
    lines = next((answer.lines for answer in answers.values() if answer.lines is not None), None)
    return Answer({name: answer.payload for name, answer in answers.items()}, parts, failure, lines)


def katz(iteration: VectorIteration, alpha: str = "0.1", beta: str = "1.0", normalized: bool = True) -> Answer:
    """Compute the Katz centrality of the vertices of a graph."""
    from mgspmv.cli.vectors import to_number

    number = to_number(alpha)
    if number is None and alpha != "auto":
        raise OptionError(f"--alpha must be a number or auto, not {alpha!r}")
    return iteration.answer(*iteration.compute("katz", ["beta"], alpha=number, beta=beta, normalized=normalized))


def eigenvector(iteration: VectorIteration) -> Answer:
    """Compute the eigenvector centrality of the vertices of a graph."""
    return iteration.answer(*iteration.compute("eigenvector_centrality"))


def stationary(iteration: VectorIteration, lazy: float = 0.0) -> Answer:
    """Compute the stationary vector of a Markov chain, a store of kind stochastic."""
    return iteration.answer(*iteration.compute("stationary", lazy=lazy))
