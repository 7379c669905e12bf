"""Files that ranks are written to, and standard output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def save(self, result: Any, *, overwrite: bool) -> None:
        """Write ranks to each of `paths`, each atomically."""
        for k, path in enumerate(self.paths):
            note_checkpoint(f"{', '.join(self.paths[:k]) or 'nothing'} is written")
            result.save(path, overwrite=overwrite)

    def print(self, answer: Answer, lines: Iterator[bytes]) -> Answer:
        """Return the answer, with CSV lines for standard output where requested."""
        return replace(answer, lines=lines) if self.prints else answer


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

    outputs = Outputs([path for path in named or [] if path != STDOUT], STDOUT in (named or []))
    if outputs.prints and MODE.get().json:
        raise OptionError(f"{option} - and --json both write to standard output; leave one of them out")
    for path in outputs.paths:
        check_target(path, overwrite=overwrite)
    return outputs
