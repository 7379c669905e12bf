"""Commands of PageRank: `pagerank` and `pagerank-batch`."""

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
    outputs = find_outputs(ranking.output, overwrite=ranking.overwrite)
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
    outputs = find_outputs(iteration.output, overwrite=iteration.overwrite)
    own: dict[str, Any] = {"alpha": alpha or 0.85, "dangling": dangling, "out_weight": out_weight, "width": width}
    own |= {"keep_top": keep_top, "precision": precision, "transport": transport}
    vectors = ("dangling", "out_weight")
    batch, failure = iteration.compute("pagerank_batch", vectors, reverse=reverse, seeds=personalization, **own)
    return outputs.write(batch, answer_batch(batch, top, outputs.paths, failure))
