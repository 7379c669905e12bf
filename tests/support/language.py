"""Check of the language of documentation, docstrings, comments and messages: phrases that readers have to decode.

`make lint` runs it over the package, the CUDA sources and the documentation: python -m tests.support.language docs
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

SUFFIXES = (".py", ".cu", ".cuh", ".md")
LEFT_OUT = ("docs", "measured")
"""Folder of records of measurements, which are not edited afterwards."""

PHRASES: dict[str, str] = {
    r"(?:come|comes|came|coming) by": "are streamed",
    r"(?:no|have|has|had|enough|without) room|room for": "does not fit; memory for",
    r"(?:go|goes|gone|going|went) on": "continue, resume",
    r"(?:is|are|was|were|be) (?:not )?there(?=[.,;:)]|$)|(?:that|which) (?:is|are) (?:not )?there|is there to": (
        "existing, missing"
    ),
    r"what (?:is|was) (?:not )?(?:there|said|meant)": "existing; output",
    r"(?:is|are|was|were) there (?:still|too|before)": "still exists, existed",
    r"(?:that|which|it|this) is said|is said (?:by|before|of|rather)": "is reported",
    r"beside": "next to, compared with, in addition to",
    r"(?:is|are|was|were|be|not) refused|refuses?": "raises, rejects, does not accept",
    r"wanted": "expected, requested",
    r"(?:came|comes?) (?:of|out|within|along|through)|(?:what|nothing) (?:came|comes)": "got, received, resulted",
    r"(?:for|of|by|to|in|and|as) who|who(?:ever)? (?:reads|wants|has|reaches)|whoever|nobody|somebody|anybody": (
        "name the thing"
    ),
    r"of (?:its|their|his|one's|your|our) own(?! process)|an own": "separate",
    r"so many(?! that)": "N",
    r"for so long": "for N seconds",
    r"the same bits|bit for bit|(?:has|have|had|with) the bits": "bit-identical",
    r"(?:is|are|was|were) gone": "no longer exists, was removed",
    r"(?:something|anything|nothing|another|other) else than": "not a",
    r"as of(?! (?:\d|v\d|version|\w+ \d|this))": "see, as for, as in",
    r"(?<!there )(?:is|are|was|were) no(?= (?!longer|more|later|larger|smaller|faster)[a-zA-Z])": "is not a",
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
    r"as (?:asked|ever)": "as requested, as usual",
    r"(?<!are )(?<!is )all the same(?! \w)": "still, anyway",
    r"but for(?! (?:example|instance))": "except for",
    r"whatever (?:ends|ended|comes|came|else|else's)|what of (?:it|them)|gives what": "name the thing",
    r"all (?:that )?there (?:is|are)|that there (?:is|are) not": "all; missing",
    r"how far (?:it|they|a run|the run) (?:is|are|was|were|came|got)": "progress",
    r"(?:takes?|need|needs) yet": "time left",
    r"of before": "previous",
    r"(?:made|make|makes) again|beg[aiu]ns? again": "rebuilt, recomputed, restarted",
    r"(?:give|gives|gave|given|giving) back": "return, release",
    r"(?:is|are|was|were) at work": "is running",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"afresh|anew|thereof|therein|whence": "plain words",
    r"quarters? of an hour": "15 minutes",
    r"(?:artefact|labell(?:ed|ing)|modell(?:ed|ing)|whilst|amongst|programme|fulfil)s?": "American spelling",
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
    """Yield the position of each phrase in a text, the phrase and its replacement.

    A blank in a phrase is a blank or the end of a line.
    """
    for phrase, instead in PHRASES.items():
        pattern = phrase.replace(" ", r"\s")
        for found in re.finditer(rf"(?<![\w`.-])(?:{pattern})(?![\w-])", text, re.IGNORECASE):
            yield found.start(), " ".join(found[0].split()), instead


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings and comments of a Python file, the comments of a CUDA file, or the text of a page in Markdown.

    Each has the line where it begins. Expressions in f-strings are left out.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from read_markdown(text)
        return
    if path.suffix != ".py":
        for found in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield text.count("\n", 0, found.start()) + 1, found[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            is_format = re.match(r"[rR]?[fF]", token.string) is not None
            yield token.start[0], re.sub(r"\{[^{}]*\}", "{}", token.string) if is_format else token.string


def read_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield the headings, paragraphs and cells of a page, without code, HTML and addresses of links."""
    line = 1
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            yield line, "".join(map(_show, token.children or ()))


def _show(token: Token) -> str:
    """Return a piece of a line as a reader sees it, code as an empty span."""
    if token.type == "code_inline":
        return "``"
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    return token.content if token.type in ("text", "image") else ""


def find_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder that are checked."""
    if path.is_file():
        yield path
    for own in sorted(path.rglob("*")):
        if own.suffix in SUFFIXES and own.parts[-3:-1] != LEFT_OUT:
            yield own


def check_language(path: Path) -> Iterator[Finding]:
    """Yield the phrases in a file."""
    for line, text in read_prose(path):
        for start, phrase, instead in find_phrases(text):
            yield Finding(path, line + text.count("\n", 0, start), phrase, instead)


def main(names: list[str]) -> int:
    """Print the phrases in files and in the files of folders; return 1 if there are any."""
    paths = [path for name in names for path in find_files(Path(name))]
    findings = [finding for path in paths for finding in check_language(path)]
    print(*findings, sep="\n")
    print(f"{len(findings)} phrases in {len(paths)} files")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
