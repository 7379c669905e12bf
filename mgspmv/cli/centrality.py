"""Commands of the iterations over products: `hits`, `katz`, `eigenvector` and `stationary`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgspmv.cli.options import (
    Backend,
    DriveName,
    EntriesAsOne,
    Limits,
    MaxIter,
    Normalized,
    Output,
    Overwrite,
    ProductPrecision,
    Start,
    StorePath,
    Tol,
    TolModeName,
    Top,
)
from mgspmv.cli.outputs import Outputs, find_outputs
from mgspmv.cli.place import Place, check_drive
from mgspmv.cli.program import Answer
from mgspmv.cli.solutions import answer_ranks
from mgspmv.cli.watching import listen
from mgspmv.errors import ConvergenceError, OptionError
from mgspmv.monitor.progress import find_change

if TYPE_CHECKING:
    from mgspmv.results import Solution


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What the commands that stand on power iteration share: their options, and what they do with them."""

    store: StorePath
    output: Output = None
    tol: Tol = None
    tol_mode: TolModeName = "l1"
    max_iter: MaxIter = 100
    nstart: Start = None
    ignore_weights: EntriesAsOne = False
    precision: ProductPrecision = "float64"
    backend: Backend = "auto"
    place: Place
    drive: DriveName = "auto"
    limits: Limits
    top: Top = 10
    overwrite: Overwrite = False

    def compute(self, call: str, vectors: Sequence[str] = (), **own: Any) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API.

        Parameters
        ----------
        vectors : those of its own options that are vectors over vertices
        """
        from mgspmv import api
        from mgspmv.cli.vectors import read_vectors

        place = self.place
        check_drive(self.drive, place)
        options = {name: getattr(self, name) for name in ("tol", "tol_mode", "max_iter", "precision", "drive")}
        options |= {"threads": place.threads, "timeout": place.timeout, **vars(self.limits)}
        options |= {"weights": not self.ignore_weights, "backend": place.choose_backend(self.backend), **own}
        with api.open_matrix(self.store) as matrix:
            given = {"nstart": self.nstart} | {name: options.pop(name) for name in vectors}
            find = partial(getattr(api, call), matrix, **options, **read_vectors(matrix, **given))
            return listen(find, place, find_change(self.tol, self.tol_mode, matrix.shape[0]), self.max_iter)

    def answer(self, call: str, vectors: Sequence[str] = (), **own: Any) -> Answer:
        """Call a function that finds one vector, write that, and say what it is."""
        outputs = self.find_outputs(self.output)
        solution, failure = self.compute(call, vectors, **own)
        return self.write(solution, outputs, failure)

    def find_outputs(self, named: Sequence[str] | None, option: str = "-o") -> Outputs:
        """Where a vector goes that an option names."""
        return find_outputs(named, overwrite=self.overwrite, option=option)

    def write(self, solution: Solution, outputs: Outputs, failure: ConvergenceError | None) -> Answer:
        """Write a vector, and say what it is."""
        from mgspmv.saving import generate_csv

        outputs.save(solution, overwrite=self.overwrite)
        answer = answer_ranks(solution, solution.top(self.top), outputs.paths, failure)
        return outputs.print(answer, generate_csv(solution))


def hits(
    iteration: Iteration,
    hubs: Annotated[
        list[str] | None, typer.Option("--hubs", metavar="HUBS", help="Where hubs go, as --output; repeatable.")
    ] = None,
    normalized: Normalized = True,
) -> Answer:
    """Find hubs and authorities of a graph; --output is for authorities. The store must hold the transpose."""
    of_hubs, of_authorities = iteration.find_outputs(hubs, "--hubs"), iteration.find_outputs(iteration.output)
    if of_hubs.prints and of_authorities.prints:
        raise OptionError("--hubs - and -o - both write to standard output; name a file for one of them")
    found, failure = iteration.compute("hits", normalized=normalized)
    answers = {
        "hubs": iteration.write(found.hubs, of_hubs, None),
        "authorities": iteration.write(found.authorities, of_authorities, None),
    }
    parts = [part for name, answer in answers.items() for part in (name, *answer.parts)]
    lines = next((answer.lines for answer in answers.values() if answer.lines is not None), None)
    return Answer({name: answer.payload for name, answer in answers.items()}, parts, failure, lines)


def katz(
    iteration: Iteration,
    alpha: Annotated[
        str, typer.Option(metavar="NUMBER|auto", help="Attenuation, below 1 / (the largest eigenvalue); or choose it.")
    ] = "0.1",
    beta: Annotated[
        str, typer.Option(metavar="NUMBER|FILE|IDS", help="What each vertex has of itself, or those named.")
    ] = "1.0",
    normalized: Normalized = True,
) -> Answer:
    """Find the Katz centrality of the vertices of a graph."""
    number = None if alpha == "auto" else _parse_number("--alpha", alpha)
    return iteration.answer("katz", ["beta"], alpha=number, beta=beta, normalized=normalized)


def _parse_number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{option} must be a number or auto, not {text!r}") from None


def eigenvector(iteration: Iteration) -> Answer:
    """Find the eigenvector centrality of the vertices of a graph."""
    return iteration.answer("eigenvector_centrality")


def stationary(
    iteration: Iteration,
    lazy: Annotated[float, typer.Option(help="Probability of staying; periodic chains need one.")] = 0.0,
) -> Answer:
    """Find the stationary vector of a Markov chain, a store of kind stochastic."""
    return iteration.answer("stationary", lazy=lazy)
