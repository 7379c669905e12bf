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

_ADVISED = ("ingest", "reorder")
"""Commands whose names are verbs of advice in messages; words such as update or report have other meanings too."""

_MASKED = re.compile(r"""(?<![\w=])(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|--[a-z-]+ \w+=\S+)""")
_MARK = re.compile(r"\0(\d+)\0")
_ARGUMENT = re.compile(
    r"""
    (?<![\w./?&=$-])(?P<name>[a-z]\w*)=(?![=>]|[A-Z]+\b)
    (?P<value>
        \.\.\.
        | (?P<text>"[^"]*"|'[^']*')
        | \([^()]*\)
        | \[[^\[\]]*\]
        | (?!\.(?:[\s,;:)]|$))[^\s,;:()\[\]"'=]+?(?=\.?(?:[\s,;:)\]]|$))
    )?
    (?(text)(?P<more>(?:(?:,?[ ](?:or|and)[ ]|,[ ])\0\d+\0)*))
    """,
    re.VERBOSE,
)
"""Pattern of an argument with its value and alternative values."""

_SEPARATOR = r"(?:,? (?:or|and) |, )"
_COMMAND = re.compile(r"(?<![\w.])mgspmv\.([a-z_]+)\(store\)")
_CALL = re.compile(r"(?<!\w)\.?[a-z_][\w.]*\((?!s\))")
_VERBS = "pass|leave|use|give|name|choose|allow|add|raise|set|ingest|compute|make|free|take|say|call|increase"
_ADVICE = re.compile(rf"\b(?:{_VERBS})\b")
_SUBJECT = re.compile(r"^([a-z_]+)(?= (?:must|is 0|has|sums to|holds) )|(?<=: )([a-z_]+)(?= must )")
_BARE = re.compile(r"(?<![\w./?&=$-])(?<!--set )[a-z]+(?:_[a-z]+)+(?![\w(=/]|\.\w)")
_ALTERNATIVE = re.compile(rf"(,? (?:or|and|else) (?=(?:{_VERBS})\b)|, (?:or|else) )")
_VERB = re.compile(r"\b(pass|give|set|use|say|with|leave) $")


@dataclass(frozen=True)
class Option:
    """One parameter of a command."""

    name: str
    """Name of the option, such as `--weights`, or of the positional argument in the synopsis, such as `STORE`."""
    negation: str | None = None
    """Name of the negated option, such as `--no-weights`."""
    is_flag: bool = False
    is_positional: bool = False
    takes_auto: bool = False
    """Whether `auto` means None in Python."""
    is_setting: bool = False
    """Whether it is a key of `--set`; the name is then such as `--set kernel`."""


def find_options(command: Any) -> dict[str, Option]:
    """Return the options of a command of click by the names of its parameters, and its settings."""
    settings = getattr(command.callback, "settings", ())
    found = {name: Option(f"--set {name}", is_setting=True) for name in settings}
    for own in command.params:
        if own.param_type_name == "argument":
            metavar = (own.metavar or own.name.upper()).strip("[].")
            found[own.name] = Option(metavar, is_positional=True)
        else:
            names = [max(each, key=len) for each in (own.opts, own.secondary_opts) if each]
            takes_auto = "auto" in (own.metavar or "").split("|") and own.default != "auto"
            negation = names[1] if len(names) > 1 else None
            found[own.name] = Option(names[0], negation, bool(own.is_flag), takes_auto=takes_auto)
    if "scheduler" in found and "cluster" in found:
        for name in ("client", "where"):
            found.setdefault(name, Option("--cluster or --scheduler"))
    return found


def translate(message: str, options: CommandOptions, commands: Mapping[str, CommandOptions] | None = None) -> str:
    """Return a message with a command's options in place of arguments.

    `ids="string"` becomes `--ids string`, `weights=False` becomes `--no-weights`, and `mgspmv.transpose(store)` the
    command. Advice that the command cannot follow, as it has no such option, is left out. Text in quotes stays.

    Parameters
    ----------
    options : of the command that runs
    commands : options of all commands, by the name of the command
    """
    masked: list[str] = []

    def mask(found: re.Match[str]) -> str:
        masked.append(found[0])
        return f"\0{len(masked) - 1}\0"

    called = _COMMAND.sub(lambda found: _write_command(found, commands or {}), message)
    first, *advice = _MASKED.sub(mask, called).split("; ")
    first = _SUBJECT.sub(lambda found: _rename(found[0], options) or found[0], first)
    own = _Translator(options, {name: commands[name] for name in _ADVISED if commands and name in commands}, masked)
    segments = [own.translate(first)[0], *filter(None, map(own.translate_advice, advice))]
    return own.unmask("; ".join(segments))


def _write_command(found: re.Match[str], commands: Mapping[str, CommandOptions]) -> str:
    """Return a call of a package function as the command of the same name, or unchanged if there is none."""
    name = found[1].replace("_", "-")
    return f"`mgspmv {name} {commands[name]['store'].name}`" if name in commands else found[0]


def _rename(name: str, options: CommandOptions) -> str | None:
    option = options.get(name)
    return None if option is None or option.is_positional else option.name


@dataclass(frozen=True)
class _Translator:
    options: CommandOptions
    others: Mapping[str, CommandOptions]
    masked: list[str]

    def unmask(self, text: str) -> str:
        return _MARK.sub(lambda found: self.masked[int(found[1])], text)

    def translate_advice(self, text: str) -> str:
        """Translate the alternatives that the command supports; empty where it supports none."""
        first, *rest = _ALTERNATIVE.split(text)
        kept = ""
        for joint, part in zip(["", *rest[::2]], [first, *rest[1::2]], strict=True):
            translated, is_known = self.translate(part)
            if is_known or not _ADVICE.search(part):
                kept = f"{kept}{joint}{translated}" if kept else translated
        return kept

    def translate(self, text: str) -> tuple[str, bool]:
        """Translate a part of a message; also return whether all of it has a counterpart on the command line."""
        text, has_dropped = self._drop_unknown(text)
        is_known = not _CALL.search(text) and (not has_dropped or _ARGUMENT.search(text) is not None)
        done, end = "", 0
        for found in _ARGUMENT.finditer(text):
            option = self._find(found["name"], text[: found.start()])
            done += text[end : found.start()]
            end = found.end()
            if option is None:
                done += found[0]
                is_known = False
            else:
                done = self._write(done, option, found)
        done += text[end:]
        return _BARE.sub(lambda found: _rename(found[0], self.options) or found[0], done), is_known

    def _find(self, name: str, before: str) -> Option | None:
        """Find the option by name in the command named last before it, else in the running command; None if missing."""
        words = re.findall(r"\w+", before)
        named = [self.others[word] for word in words if word in self.others]
        return next((each[name] for each in (*named[::-1], self.options) if name in each), None)

    def _drop_unknown(self, text: str) -> tuple[str, bool]:
        """Drop arguments that the command lacks from lists with others that it has; return whether any was dropped."""
        found = list(_ARGUMENT.finditer(text))
        unknown = [own for own in found if self._find(own["name"], text[: own.start()]) is None]
        if not 0 < len(unknown) < len(found):
            return text, False
        for own in unknown:
            argument = re.escape(own[0])
            text = re.sub(rf"{_SEPARATOR}{argument}|{argument}{_SEPARATOR}", "", text, count=1)
        return text, True

    def _write(self, done: str, option: Option, found: re.Match[str]) -> str:
        value, more = found["value"] or "", found["more"] or ""
        if value in ("", "...", "(...)", "[...]"):
            return done + (option.name)
        if option.is_flag and value not in ("True", "False", "None"):  # such as "auto", which neither option means
            return f"{_drop_verb(done)}leave {option.name} out"
        if value == "None" and option.takes_auto:
            return f"{done}{option.name} auto"
        if option.is_setting and value in ("True", "False"):
            return f"{done}{option.name}={value.lower()}"
        if value in ("True", "False", "None"):
            return _write_flag(done, option, is_on=value not in ("False", "None"))
        more = _MARK.sub(lambda mark: self.masked[int(mark[1])][1:-1], more)
        sign = "=" if option.is_setting else " "
        return f"{done}{option.name}{sign}{_write_value(self.unmask(value))}{more}"


def _write_flag(done: str, option: Option, *, is_on: bool) -> str:
    name = option.name if is_on else option.negation
    if name:
        return done + name
    # The option is missing where leaving out the opposite one means the same.
    opposite = option.negation if is_on else option.name
    verb = _VERB.search(done)
    return f"{_drop_verb(done)}{'leave out' if verb and verb[1] != 'with' else 'without'} {opposite}"


def _drop_verb(done: str) -> str:
    verb = _VERB.search(done)
    return done[: verb.start()] if verb else done


def _write_value(value: str) -> str:
    """Quote a Python literal as a shell argument."""
    try:
        literal = literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    if isinstance(literal, tuple | list):
        return shlex.quote(",".join(map(str, literal)))
    if isinstance(literal, str):
        return "$'\\t'" if literal == "\t" else shlex.quote(literal)
    return value
