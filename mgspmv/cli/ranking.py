"""Commands that rank the vertices of a graph: PageRank, of one vector or many, HITS and other centralities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from mgspmv.cli.iteration import Iteration, VectorIteration, find_outputs
from mgspmv.cli.options import option
from mgspmv.cli.program import Answer
from mgspmv.cli.results import answer_batch
from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import SPARSE_KERNELS

if TYPE_CHECKING:
    from mgspmv.scores import Scaler

_KERNELS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.step_backends)


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
        from mgspmv.api import Checkpoint

        given = dict(vars(self))
        every_s, resume = given.pop("checkpoint_every"), given.pop("resume")
        if self.checkpoint is None:
            if every_s is not None or resume:
                name = "--resume" if resume else "--set checkpoint_every"
                raise OptionError(f"{name} needs the place of the checkpoints; add --checkpoint")
            return given
        seconds = {} if every_s is None else {"every_s": every_s}
        return given | {"checkpoint": Checkpoint(self.checkpoint, resume=resume, **seconds)}


def pagerank(own: PageRankFlags, ranking: RankingOptions, reverse: bool = False, scaler: str = "none") -> Answer:
    """Compute PageRank of a graph. Ranks that did not converge are written too, with exit code 5."""
    outputs = ranking.find_outputs()
    vectors = ("personalization", "dangling", "out_weight")
    solution, failure = ranking.compute("pagerank", vectors, reverse=reverse, **own.arguments)
    order, solution = solution.check_order(ranking.top), solution.scale(cast("Scaler", scaler))
    return ranking.write(solution, outputs, failure, order)


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
    outputs = iteration.find_outputs()
    own: dict[str, Any] = {"alpha": alpha or 0.85, "dangling": dangling, "out_weight": out_weight, "width": width}
    own |= {"keep_top": keep_top, "precision": precision, "transport": transport}
    vectors = ("dangling", "out_weight")
    batch, failure = iteration.compute("pagerank_batch", vectors, reverse=reverse, seeds=personalization, **own)
    return outputs.write(batch, answer_batch(batch, top, outputs.paths, failure))


def hits(iteration: VectorIteration, hubs: list[str] | None = None, normalized: bool = True) -> Answer:
    """Compute hubs and authorities (HITS) of a graph; --output takes the authorities. Needs the stored transpose."""
    of_hubs = find_outputs(hubs, overwrite=iteration.overwrite, option="--hubs")
    of_authorities = iteration.find_outputs()
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
    return iteration.answer("katz", ["beta"], alpha=number, beta=beta, normalized=normalized)


def eigenvector(iteration: VectorIteration) -> Answer:
    """Compute the eigenvector centrality of the vertices of a graph."""
    return iteration.answer("eigenvector_centrality")


def stationary(iteration: VectorIteration, lazy: float = 0.0) -> Answer:
    """Compute the stationary vector of a Markov chain, a store of kind stochastic."""
    return iteration.answer("stationary", lazy=lazy)
