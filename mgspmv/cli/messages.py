"""Messages of the package with command-line options in place of Python arguments."""

from __future__ import annotations

import re
import shlex
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CommandOptions = Mapping[str, "Option"]
"""Parameters of a command by their names."""

UNTRANSLATED = ("run",)
"""Commands with arguments in a file, where keys have the names of Python's arguments."""

ADVISED = ("ingest", "reorder")
"""Commands whose names are verbs of advice in messages; words such as update or report have other meanings too."""

_MASKED = re.compile(r"""(?<![\w=])(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|--[a-z-]+ \w+=\S+)""")
_MARK = re.compile(r"\0(\d+)\0")
_ARGUMENT = re.compile(
    r"""
    (?<![\w./?&=$-])(?P<name>[a-z]\w*)=(?![=>]|[A-Z]+\b)
    (?P<value>
        \.\.\. | "[^"]*" | '[^']*' | \([^()]*\) | \[[^\[\]]*\]
        | (?!\.(?:[\s,;:)]|$))[^\s,;:()\[\]"'=]+?(?=\.?(?:[\s,;:)\]]|$))
    )?
    (?P<others>(?:(?:,|,?\ or)\ \0\d+\0(?!=))*)
    """,
    re.VERBOSE,
)
"""Pattern of an argument with its value, or with several such as `'sum', 'first' or 'keep'`."""

_CALL = re.compile(r"(?<!\w)\.?[a-z_][\w.]*\((?!s\))")
_SUBJECT = re.compile(r"^([a-z_]+)(?= (?:must|is 0|has|sums to|holds) )|(?<=: )([a-z_]+)(?= must )")
_BARE = re.compile(r"(?<![\w./?&=$-])[a-z]+(?:_[a-z]+)+(?![\w(=/]|\.\w)")
_VERBS = "pass|leave|use|give|name|choose|allow|add|raise|set|ingest|compute|make|free|take|say|call|increase"
_ADVICE = re.compile(rf"\b(?:{_VERBS})\b")
_ALTERNATIVE = re.compile(rf"(,? (?:or|and|else) (?=(?:{_VERBS})\b)|,? or (?=\w+=)|, (?=\w+=)|, (?:or|else) )")


@dataclass(frozen=True)
class Option:
    """One parameter of a command."""

    name: str
    """Name of the option, such as `--weights`, or of the positional argument in the synopsis, such as `STORE`."""
    negation: str | None = None
    """Name of the negated option, such as `--no-weights`."""
    is_flag: bool = False
    is_positional: bool = False

    def write(self, value: str) -> str:
        """Return the option with a value that is written as in Python."""
        if value in ("", "...", "(...)", "[...]"):
            return self.name
        if self.is_flag:
            return (self.negation if value == "False" else None) or self.name
        return f"{self.name} {_write_value(value)}"


def find_options(command: Any) -> dict[str, Option]:
    """Return the options of a command of click by the names of its parameters."""
    found: dict[str, Option] = {}
    for own in command.params:
        if own.param_type_name == "argument":
            metavar = (own.metavar or own.name.upper()).strip("[].")
            found[own.name] = Option(metavar, is_positional=True)
        else:
            names = [max(each, key=len) for each in (own.opts, own.secondary_opts) if each]
            found[own.name] = Option(names[0], names[1] if len(names) > 1 else None, bool(own.is_flag))
    if "scheduler" in found and "cluster" in found:
        for name in ("client", "where"):
            found.setdefault(name, Option("--cluster or --scheduler"))
    return found


def translate(message: str, options: CommandOptions, others: Mapping[str, CommandOptions]) -> str:
    """Return a message with a command's options in place of arguments.

    `ids="string"` becomes `--ids string`, and `weights=False` becomes `--no-weights`. Advice that the command cannot
    follow, as it has no such option, is left out. Text in quotes stays.

    Parameters
    ----------
    options : of the command that runs
    others : options of the commands of `ADVISED`, by the name of the command
    """
    masked: list[str] = []

    def mask(found: re.Match[str]) -> str:
        masked.append(found[0])
        return f"\0{len(masked) - 1}\0"

    first, *advice = _MASKED.sub(mask, message).split("; ")
    own = _Translator(options, others, masked)
    first = _SUBJECT.sub(lambda found: own.rename(found[0]), first)
    return own.unmask("; ".join([own.translate(first)[0], *filter(None, map(own.translate_advice, advice))]))


@dataclass(frozen=True)
class _Translator:
    options: CommandOptions
    others: Mapping[str, CommandOptions]
    masked: list[str]

    def unmask(self, text: str) -> str:
        return _MARK.sub(lambda found: self.masked[int(found[1])], text)

    def rename(self, name: str) -> str:
        option = self.options.get(name)
        return name if option is None or option.is_positional else option.name

    def translate_advice(self, text: str) -> str:
        """Translate the alternatives that the command supports; empty where it supports none."""
        if not _ADVICE.search(text):
            return self.translate(text)[0]
        first, *rest = _ALTERNATIVE.split(text)
        kept, is_known = "", True
        for joint, part in zip(["", *rest[::2]], [first, *rest[1::2]], strict=True):
            verb = (
                "" if is_known or not _ARGUMENT.match(part) else "pass "
            )  # which may be left out with the part before
            translated, is_known = self.translate(part)
            if is_known:
                kept = f"{kept}{joint}{verb}{translated}" if kept else f"{verb}{translated}"
        return kept

    def translate(self, text: str) -> tuple[str, bool]:
        """Translate a part of a message; also return whether all of it has a counterpart on the command line.

        Options are those of the command of `others` that is named last before the argument, else the running command's.
        """
        is_known = not _CALL.search(text)

        def write(found: re.Match[str]) -> str:
            nonlocal is_known
            name, words = found["name"], re.findall(r"\w+", text[: found.start()])
            known = [*(self.others[word] for word in words[::-1] if word in self.others), self.options]
            option = next((each[name] for each in known if name in each), None)
            is_known = is_known and option is not None
            if option is None:
                return found[0]
            others = _MARK.sub(lambda other: _write_value(self.masked[int(other[1])]), found["others"])
            return f"{option.write(self.unmask(found['value'] or ''))}{others}"

        translated = _ARGUMENT.sub(write, text)
        return _BARE.sub(lambda found: self.rename(found[0]), translated), is_known


def _write_value(value: str) -> str:
    """Write a Python literal as a shell argument, and None, a choice by the program, as auto; other text stays."""
    try:
        literal = literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    if isinstance(literal, tuple | list):
        return shlex.quote(",".join(map(str, literal)))
    if isinstance(literal, str):
        return "$'\\t'" if literal == "\t" else shlex.quote(literal)
    return "auto" if literal is None else value
