"""Check of the language of docstrings, comments, help texts and messages: phrases that readers have to decode.

`make lint` runs it over the package and the CUDA sources: python -m tests.support.language mgspmv kernels
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PHRASES: dict[str, str] = {
    r"(?:come|comes|came|coming) by": "are streamed",
    r"(?:no|have|has|had|enough|without) room|room for": "does not fit; memory for",
    r"(?:go|goes|gone|going|went) on": "continue, resume",
    r"(?:is|are|was|were|be) (?:not )?there(?=[.,;:)]|$)|(?:that|which) (?:is|are) (?:not )?there|is there to": (
        "existing, missing"
    ),
    r"what (?:is|was) (?:there|said|meant)": "existing; output",
    r"beside": "next to, compared with, in addition to",
    r"(?:is|are|was|were|be|not) refused|refuses?": "raises, rejects, does not accept",
    r"wanted": "expected, requested",
    r"(?:came|comes?) (?:of|out|within|along|through)|nothing (?:came|comes)": "got, received, resulted",
    r"(?:for|of|by|to|in|and|as) who|who(?:ever)? (?:reads|wants|has|reaches)|whoever|nobody|somebody|anybody": (
        "name the thing"
    ),
    r"of (?:its|their|his|one's) own(?! process)": "separate",
    r"so many(?! that)": "N",
    r"the same bits|bit for bit": "bit-identical",
    r"(?:is|are|was|were) gone": "no longer exists, was removed",
    r"(?:something|anything|nothing|another|other) else than": "not a",
    r"[Aa]s of (?=`)": "see, as for",
    r"(?<!there )(?<!There )(?:is|are|was|were) no(?= (?!longer|more|later|larger|smaller|faster)[a-zA-Z])": "is not a",
    r"be had": "be obtained",
    r"(?<=, )for (?:it|they|there|this|that|its|these) (?:is|are|has|have|was|were)": "because",
    r"(?:turned|other way|way) round": "reversed; vice versa",
    r"(?:stands?|stood) in (?:a|the|it|its)": "is in",
    r"without a word|in silence": "silently",
    r"on the way": "during the run",
    r"what (?:it|they) (?:is|are|has|have) of": "its",
    r"no (?:such )?\w+ of (?:somebody|others)": "not a",
    r"do(?:es)? without": "is computed without",
    r"makes? (?:something|nothing) of": "use",
    r"as (?:it|they) (?:is|are|was|were) (?:there|come)": "as found",
    r"(?:colour|neighbour|behaviour|favour|honour|centre|licence|catalogues|analyse|grey)\w*": "American spelling",
    r"\w*(?:specialis|normalis|optimis|initialis|recognis|organis|serialis|parallelis|minimis|maximis|summaris)\w*": (
        "American spelling"
    ),
}
"""Phrases, as regular expressions between word boundaries, and their replacements in plain technical English."""


@dataclass(frozen=True)
class Finding:
    """Phrase in a file."""

    path: Path
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: write {self.instead!r} instead of {self.phrase!r}"


def find_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the position of each phrase in a text, the phrase and its replacement."""
    for phrase, instead in PHRASES.items():
        for found in re.finditer(rf"(?<![\w`.-])(?:{phrase})(?![\w-])", text):
            yield found.start(), found[0], instead


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings and comments of a Python file, or the comments of a CUDA file, with their lines.

    Expressions in f-strings are left out.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for found in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield text.count("\n", 0, found.start()) + 1, found[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            is_format = re.match(r"[rR]?[fF]", token.string) is not None
            yield token.start[0], re.sub(r"\{[^{}]*\}", "{}", token.string) if is_format else token.string


def check_language(path: Path) -> Iterator[Finding]:
    """Yield the phrases in a file."""
    for line, text in read_prose(path):
        for start, phrase, instead in find_phrases(text):
            yield Finding(path, line + text.count("\n", 0, start), phrase, instead)


def main(folders: list[str]) -> int:
    """Print the phrases in the files of folders; return 1 if there are any."""
    paths = [
        path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.suffix in (".py", ".cu", ".cuh")
    ]
    findings = [finding for path in paths for finding in check_language(path)]
    print(*findings, sep="\n")
    print(f"{len(findings)} phrases in {len(paths)} files")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
