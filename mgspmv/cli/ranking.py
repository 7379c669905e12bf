"""Commands that rank the vertices of a graph: PageRank, of one vector or many, HITS and other centralities."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from mgspmv.cli.clusters import ComputingOptions, open_client
from mgspmv.cli.options import option
from mgspmv.cli.output import MODE, Answer, note_checkpoint, print_note
from mgspmv.cli.results import answer_batch, answer_ranks
from mgspmv.cli.stores import list_report
from mgspmv.errors import ConvergenceError, MgspmvError, OptionError, SourceError, SourceNotFoundError
from mgspmv.ingest.tokens import is_plain_integer
from mgspmv.kernels.catalogue import SPARSE_KERNELS

if TYPE_CHECKING:
    from mgspmv.api.ranking import Checkpoint
    from mgspmv.model import Event, Kind, Phase, Stability
    from mgspmv.results import Solution
    from mgspmv.scores import Scaler

FILE, IDS = "file:", "id:"
"""Prefixes of a value that mark it as a file or as ids."""

_ENTRY = re.compile(r'(?:^|,)\s*(?:"((?:[^"]|"")*)"\s*(?:=\s*([^,]*?)\s*)?(?=,|$)|([^,]*))')

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
        from mgspmv.kernels.context import begin_context

        if self.place.is_embedded and self.place.backend != "cpu":
            begin_context()  # before others are imported

        import mgspmv as mg
        from mgspmv.ingest.vertex_vectors import read_seeds

        check_outputs(self.output or (), overwrite=self.overwrite)
        options: dict[str, Any] = {name: getattr(self, name) for name in ("tol", "norm", "max_iter", "weight")} | own
        placing = {name: options.pop(name) for name in ("executor", "kernel", "transport", "recover") if name in own}
        given = {name: options.pop(name) for name in vectors}
        kind: Kind = "stochastic" if call == "stationary" else "graph"
        transpose = reverse or call == "hits"

        def read(matrix: Any) -> None:
            if seeds is not None:
                options["personalization"] = read_seeds(seeds, string_ids=matrix.info.vertex_ids == "string")
            options.update(read_vectors(matrix, aligns=call == "pagerank", **given))

        @contextmanager
        def place(client: Any) -> Iterator[Any]:
            if opened is not None:
                yield self.place.place(opened.T if reverse else opened, client, **placing)
                return
            placing.pop("recover", None)  # rows without a store are not read again
            began = time.perf_counter()
            with self.place.read_edges(self.graph, client, kind=kind, **placing) as matrix:
                matrix.reading_s = time.perf_counter() - began
                _note_report(matrix)
                read(matrix)
                yield matrix

        with _open_graph(self.graph, self.place, kind=kind, transpose=transpose) as opened:
            if opened is not None:
                read(opened.T if reverse else opened)
            elif own.get("checkpoint") is not None:
                raise OptionError(
                    f"{self.graph} has edges, which are in no store that --checkpoint could name; make one by `mgspmv "
                    "ingest`, and name it"
                )
            with _listen(own.get("checkpoint")) as hear, open_client(self.place, waits=False) as client:
                try:
                    with place(client) as matrix:
                        return getattr(mg, call)(matrix, **options, progress=hear), None
                except ConvergenceError as error:
                    return error.solution, error

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
def _open_graph(graph: str, place: ComputingOptions, *, kind: Kind, transpose: bool) -> Iterator[Any]:
    """Open a store, or read edges into memory; None for edges that the workers of a cluster are to read.

    Parameters
    ----------
    place : where the graph is ranked
    kind : kind of matrix that is made from edges
    transpose : whether the transpose is needed; that of a store must be stored

    Raises
    ------
    OptionError : saved ranks; edges whose transpose is needed on a cluster
    """
    from mgspmv.api.arguments import as_matrix, find_store

    try:
        if not place.is_embedded and find_store(graph) is None:
            if _has_ranks(graph):
                raise SourceError(f"{graph} has saved ranks")
            if transpose:
                raise OptionError(
                    f"{graph} has edges, of which workers make no transpose; make a store of them by `mgspmv ingest "
                    "--transpose`, and name it"
                )
            yield None
            return
        reading: dict[str, Any] = {"transpose": transpose, "threads": place.threads, "backend": place.backend}
        matrix = as_matrix(graph, kind, **reading)
    except SourceError as error:
        if _has_ranks(graph):
            raise OptionError(f"{graph} has saved ranks, not a graph; name its store, or its file of edges") from error
        if error.line_number is not None:
            print_note("note: `mgspmv ingest` has options on how edges are read, and its STORE can be ranked")
        raise
    with matrix:
        if matrix.info.url != graph and matrix.info.url.startswith("memory://"):
            _note_report(matrix)
        yield matrix


def _note_report(matrix: Any) -> None:
    """Print how edges were read, as notes."""
    for line in list_report(matrix.ingest_report):
        if not line.startswith("warning: "):  # warnings were shown as such
            print_note(line)


def _has_ranks(path: str) -> bool:
    from mgspmv.results import load_solution

    with suppress(MgspmvError):
        load_solution(path)
        return True
    return False


@contextmanager
def _listen(checkpoint: Checkpoint | None) -> Iterator[Callable[[Event | Phase], None]]:
    """Yield a function for `progress`, which notes what is kept, in the checkpoints of the run if it has any."""
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
    try:
        yield hear
    except KeyboardInterrupt:
        if last is not None:
            note_checkpoint(f"after {last.iteration} iterations, change {last.change:.3g}; {kept}")
        raise


# --- vectors over vertices -------------------------------------------------------------------------------------------


def read_vectors(matrix: Any, *, aligns: bool = False, **given: str | None) -> dict[str, Any]:
    """Read the given vectors, by the names of the arguments that take them.

    Parameters
    ----------
    matrix : whose vertices the vectors are over
    aligns : `nstart` may be earlier ranks of the graph, as in `mgspmv.api.arguments.read_vector`
    given : value of each on the command line; None where not given

    Raises
    ------
    OptionError : malformed ids or, after `id:`, ids that the store does not have
    SourceNotFoundError : neither a file nor ids of the store
    SourceError, StoreError : a file that cannot be read
    """
    return {name: _read(name, text, matrix, aligns) for name, text in given.items() if text is not None}


def _read(name: str, text: str, matrix: Any, aligns: bool) -> Any:
    from mgspmv.api.arguments import read_vector
    from mgspmv.files import is_url
    from mgspmv.ingest.vertex_vectors import DANGLING_RULES
    from mgspmv.lookup import ArrayLookup

    if name == "dangling" and text in DANGLING_RULES:
        return text
    if name == "beta" and (number := to_number(text)) is not None:
        return number
    is_marked = text.startswith(FILE) and not text.startswith(f"{FILE}//")
    if not (is_marked or (not is_url(text) and not text.startswith(IDS) and Path(text).exists())):
        ids = matrix.vertex_ids
        try:
            found = parse_ids(name, text.removeprefix(IDS), string_ids=ids is not None and ids.dtype == object)
            ArrayLookup(matrix.shape[0], ids).find_all(name, list(found))
            return found
        except OptionError as error:
            if text.startswith(IDS):
                raise
            if not is_url(text):  # vertices may have URLs as ids
                rules = f"; expected {', '.join(DANGLING_RULES)}, a file or ids" if name == "dangling" else ""
                raise SourceNotFoundError(f"{error}; and no file {text!r} exists{rules}") from error
    path = text.removeprefix(FILE) if is_marked else text
    return read_vector(path, matrix.vertex_ids, aligns=aligns and name == "nstart")


def to_number(text: str) -> float | None:
    """Return text as a number, None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_ids(name: str, text: str, *, string_ids: bool) -> dict[Any, float] | list[Any]:
    """Read ids between commas, such as `alice`, `alice=2,bob=1` or `"Smith, J"=2`.

    Parameters
    ----------
    name : of the argument, for messages
    string_ids : ids are strings, as they are in a store with such `vertex_ids`; else they are integers

    Returns
    -------
    A mapping of ids to numbers, or a list of ids where none has a number.

    Raises
    ------
    OptionError : an empty, repeated or, in a store of integer ids, non-integer id; numbers for some ids only
    """
    entries = [_parse_entry(name, *entry.groups(), string_ids=string_ids) for entry in _ENTRY.finditer(text)]
    ids = [label for label, _ in entries]
    repeated = next((label for k, label in enumerate(ids) if label in ids[:k]), None)
    if repeated is not None:
        raise OptionError(f"{name} has the id {repeated!r} more than once; give each id one number")
    numbers = {label: number for label, number in entries if number is not None}
    if numbers and len(numbers) < len(ids):
        bare = next(label for label in ids if label not in numbers)
        raise OptionError(f"{name} has numbers for some ids and none for {bare!r}; give each a number, or none")
    return numbers or ids


def _parse_entry(
    name: str, quoted: str | None, number: str | None, plain: str, *, string_ids: bool
) -> tuple[int | str, float | None]:
    """Return an id and its number, of a quoted id with its number, or of a plain one that may end in a number."""
    if quoted is None:
        label, sign, end = plain.strip().rpartition("=")
        value = to_number(end) if sign else None
        label = (plain if value is None else label).strip()
    else:
        label, value = quoted.replace('""', '"'), None if number is None else to_number(number)
        if number is not None and value is None:
            raise OptionError(f"{name} has {number!r} for the id {label!r}; give it a number")
    if not label:
        raise OptionError(f"{name} has an empty id; write ids between commas, such as a,b or a=2,b=1")
    if not (string_ids or is_plain_integer(label)):
        raise OptionError(f"{name} has the id {label!r}, which no vertex has; ids of this store are integers")
    return label if string_ids else int(label), value


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
    return Answer({name: answer.find_payload() for name, answer in answers.items()}, parts, failure, lines)


def katz(iteration: VectorIteration, alpha: str = "0.1", beta: str = "1.0", normalized: bool = True) -> Answer:
    """Compute the Katz centrality of the vertices of a graph."""
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
