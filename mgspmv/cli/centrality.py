"""Commands of the iterations over products: `hits`, `katz`, `eigenvector` and `stationary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgspmv.cli.iteration import VectorIteration, find_outputs
from mgspmv.cli.program import Answer
from mgspmv.errors import OptionError


def _answer(iteration: VectorIteration, call: str, vectors: Sequence[str] = (), **own: Any) -> Answer:
    """Compute one vector by a function of the API, write it, and make the answer."""
    outputs = find_outputs(iteration.output, overwrite=iteration.overwrite)
    solution, failure = iteration.compute(call, vectors, **own)
    return iteration.write(solution, outputs, failure)


def hits(iteration: VectorIteration, hubs: list[str] | None = None, normalized: bool = True) -> Answer:
    """Compute hubs and authorities (HITS) of a graph; --output takes the authorities. Needs the stored transpose."""
    of_hubs = find_outputs(hubs, overwrite=iteration.overwrite, option="--hubs")
    of_authorities = find_outputs(iteration.output, overwrite=iteration.overwrite)
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


def katz(iteration: VectorIteration, alpha: str = "0.1", beta: str = "1.0", normalized: bool = True) -> Answer:
    """Compute the Katz centrality of the vertices of a graph."""
    from mgspmv.cli.vectors import to_number

    number = to_number(alpha)
    if number is None and alpha != "auto":
        raise OptionError(f"--alpha must be a number or auto, not {alpha!r}")
    return _answer(iteration, "katz", ["beta"], alpha=number, beta=beta, normalized=normalized)


def eigenvector(iteration: VectorIteration) -> Answer:
    """Compute the eigenvector centrality of the vertices of a graph."""
    return _answer(iteration, "eigenvector_centrality")


def stationary(iteration: VectorIteration, lazy: float = 0.0) -> Answer:
    """Compute the stationary vector of a Markov chain, a store of kind stochastic."""
    return _answer(iteration, "stationary", lazy=lazy)
