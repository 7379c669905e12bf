"""What a check finds, and how checks are run: none raises, and none hangs for longer than it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any, Literal, TypeVar

Status = Literal["ok", "warning", "wrong", "skipped"]
"""`warning` is what works and costs time or will be missed; `skipped` what could not be checked, or is not there."""
Kind = Literal["host", "device", "storage", "cluster"]
"""What it is about."""

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Raises
    ------
    ValueError : it is wrong, or a warning, and does not say what that means and what to do
    """

    status: Status
    """What is to be thought of it."""
    found: str
    """What there is, or why it was not found out."""
    meaning: str = ""
    """What follows from it, of what is wrong and of warnings."""
    remedy: str = ""
    """What to do, likewise: whole sentences."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was measured, for programs: JSON values, with units in their names."""
    name: str = ""
    """Of the check, such as `open-files`."""
    kind: Kind = "host"
    """Of the check."""
    where: str = ""
    """The machine or worker that it is about; empty for the machine of this process."""

    def __post_init__(self) -> None:
        if self.needs_remedy and not (self.found and self.meaning and self.remedy):
            raise ValueError(f"a finding of status {self.status} says what it means and what to do: {self}")

    @property
    def needs_remedy(self) -> bool:
        """Whether there is something to do."""
        return self.status in ("warning", "wrong")


def ok(found: str, **values: Any) -> Finding:
    """All is well."""
    return Finding("ok", found, values=values)


def warn(found: str, meaning: str, remedy: str, **values: Any) -> Finding:
    """It works, and costs time or will be missed."""
    return Finding("warning", found, meaning, remedy, values)


def wrong(found: str, meaning: str, remedy: str, **values: Any) -> Finding:
    """It does not work."""
    return Finding("wrong", found, meaning, remedy, values)


def skip(why: str, **values: Any) -> Finding:
    """It was not checked."""
    return Finding("skipped", why, values=values)


def hang(limit_s: float, what: str = "what it asks does not answer") -> Finding:
    """It did not end in its time."""
    return wrong(
        f"the check did not end within {limit_s:g} s",
        f"A run that needs the same would hang too: {what}.",
        "Look at what the other findings say of it, and restart what hangs; --timeout SECONDS gives each check more "
        "time.",
        limit_s=limit_s,
    )


Findings = Finding | Iterable[Finding]


@dataclass(frozen=True)
class Check:
    """A question, and how it is answered."""

    name: str
    """As its findings have it."""
    kind: Kind
    """Likewise."""
    find: Callable[[], Findings]
    """Answers it; several findings may come one after the other."""

    def label(self, finding: Finding) -> Finding:
        """The finding as one of this check, unless it is one of another that this one had made."""
        return finding if finding.name else replace(finding, name=self.name, kind=self.kind)


def name_check(function: Callable[..., Any]) -> str:
    """`open-files` of `check_open_files`."""
    return function.__name__.removeprefix("check_").replace("_", "-")


def make_check(kind: Kind, function: Callable[[], Findings]) -> Check:
    """A check that a function is."""
    return Check(name_check(function), kind, function)


def run_check(check: Check, limit_s: float) -> list[Finding]:
    """What a check finds within its time, in a thread that is left behind when it hangs.

    An error that the check did not expect is a finding as well: it was not checked, and why.
    """
    found: list[Finding] = []
    is_done = Event()

    def work() -> None:
        try:
            found.extend(list_findings(check.find))
        finally:
            is_done.set()

    Thread(target=work, name=f"mgspmv-doctor-{check.name}", daemon=True).start()
    if not is_done.wait(limit_s):
        return [check.label(hang(limit_s))]
    return [check.label(finding) for finding in found]


def list_findings(find: Callable[[], Findings]) -> list[Finding]:
    """What a function finds, and the error that it ended with, if it did."""
    found: list[Finding] = []
    try:
        findings = find()
        if isinstance(findings, Finding):
            return [findings]
        for finding in findings:
            found.append(finding)
    except (Exception, SystemExit) as error:  # SystemExit: of a library that gives up
        found.append(skip(f"it could not be checked: {type(error).__name__}: {shorten(error)}"))
    return found


def shorten(text: object, limit: int = 300) -> str:
    """What an error says, in one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
