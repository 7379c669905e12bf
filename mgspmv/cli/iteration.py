"""Commands that iterate over one vector: shared options, progress and output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.graphs import GRAPH, open_graph
from mgspmv.cli.mode import note_checkpoint, print_note
from mgspmv.cli.options import option
from mgspmv.cli.outputs import Outputs
from mgspmv.cli.placement import ComputingOptions, PlacementOptions, check_choices, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.solutions import answer_ranks
from mgspmv.errors import ConvergenceError

if TYPE_CHECKING:
    from mgspmv.api import Checkpoint
    from mgspmv.model import Event, Phase, Stability
    from mgspmv.results import Solution


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Options shared by commands that iterate over one vector."""

    graph: Annotated[str, GRAPH]
    output: list[str] | None = None
    tol: float | None = None
    norm: str = "l1"
    max_iter: int = 100
    nstart: str | None = None
    ignore_weights: bool = False
    precision: Annotated[str, option("Precision of vectors and values.", "float64|float32")] = "float64"
    place: ComputingOptions
    executor: Annotated[str, option("Executor of the iterations.", "auto|embedded|tasks|supersteps")] = "auto"
    top: int = 10
    overwrite: bool = False

    def compute(
        self, call: str, vectors: Sequence[str] = (), *, reverse: bool = False, **own: Any
    ) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API; return its result, and the error if it did not converge.

        Parameters
        ----------
        vectors : names in `own` that are vectors over vertices
        reverse : call it with the transpose
        """
        from mgspmv import api
        from mgspmv.cli.vectors import read_vectors

        check_choices(self.place, executor=self.executor, **{name: own[name] for name in ("transport",) if name in own})
        options = {name: getattr(self, name) for name in ("tol", "norm", "max_iter", "precision")}
        options |= {"weight": not self.ignore_weights} | own
        placing = {name: options.pop(name) for name in ("kernel", "transport", "recover") if name in own}
        reading: dict[str, Any] = {"kind": "stochastic" if call == "stationary" else "graph"}
        reading["transpose"] = reverse or call == "hits"
        with open_graph(self.graph, self.place, **reading) as opened, opened.T if reverse else opened as matrix:
            given = {"nstart": self.nstart} | {name: options.pop(name) for name in vectors}
            options |= read_vectors(matrix, aligns=call == "pagerank", **given)

            def compute(client: Any, progress: Callable[[Event | Phase], None]) -> Any:
                placed = self.place.place(matrix, client, executor=self.executor, **placing)
                return getattr(api, call)(placed, **options, progress=progress)

            return listen(compute, self.place, own.get("checkpoint"))

    def write(
        self,
        solution: Solution,
        outputs: Outputs,
        failure: ConvergenceError | None,
        order: Stability | None = None,
    ) -> Answer:
        """Write a vector, and make the answer; `order` as in `answer_ranks`."""
        from mgspmv.saving import generate_csv

        outputs.save(solution, overwrite=self.overwrite)
        answer = answer_ranks(solution, solution.top(self.top), outputs.paths, failure, order)
        return outputs.print(answer, generate_csv(solution))


def listen(
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
