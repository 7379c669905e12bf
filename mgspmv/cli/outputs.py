"""Files that ranks are written to, and standard output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mgspmv.cli.mode import MODE, note_checkpoint
from mgspmv.cli.program import Answer
from mgspmv.errors import OptionError

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
