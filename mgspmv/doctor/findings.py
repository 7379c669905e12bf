"""Findings of checks, and a runner of checks that catches errors and limits their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any, Literal

from mgspmv.errors import MgspmvError

FindingStatus = Literal["ok", "warning", "wrong", "skipped"]
"""Result of a check; `warning`: works, but is slow or may fail later; `skipped`: not checked, or does not exist."""


@dataclass(frozen=True)
class Finding:
    """Result of a check."""

    status: FindingStatus
    found: str
    """Result in one line, or the reason why it is unknown."""
    remedy: str = ""
    """Remedy for what is wrong and for warnings, in whole sentences."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Measurements for programs: JSON values, with units in their names."""
    name: str = ""
    """Name of the check, such as `limits`."""
    where: str = ""
    """Worker that was checked; empty for this machine."""

    @property
    def needs_remedy(self) -> bool:
        """True if a remedy is required."""
        return self.status in ("warning", "wrong")


Findings = Finding | Iterable[Finding]


class Skipped(Exception):
    """Reason why a check cannot run; `run_check` turns it into a finding."""


def ok(found: str, **values: Any) -> Finding:
    """Make a finding of status `ok`."""
    return Finding("ok", found, values=values)


def warn(found: str, remedy: str, **values: Any) -> Finding:
    """Make a finding of status `warning`: it works, but is slow or may fail later."""
    return Finding("warning", found, remedy, values)


def wrong(found: str, remedy: str, **values: Any) -> Finding:
    """Make a finding of status `wrong`: it does not work."""
    return Finding("wrong", found, remedy, values)


def run_check(name: str, check: Callable[[], Findings], limit_s: float) -> list[Finding]:
    """Run a check in a thread, which is abandoned after the time limit, and return its findings.

    Errors become findings: those of this package are `wrong`, others `skipped`.
    """
    found: list[Finding] = []

    def work() -> None:
        try:
            findings = check()
            for finding in [findings] if isinstance(findings, Finding) else findings:
                found.append(finding)
        except Skipped as error:
            found.append(Finding("skipped", str(error)))
        except MgspmvError as error:
            remedy = "Read the logs of the named workers, and restart them."
            found.append(wrong(shorten(error), remedy, error=type(error).__name__))
        except (Exception, SystemExit) as error:  # libraries may raise SystemExit
            found.append(Finding("skipped", f"the check failed: {type(error).__name__}: {shorten(error)}"))

    # A daemon thread does not keep the process alive if the check hangs.
    thread = Thread(target=work, name=f"mgspmv-doctor-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        remedy = "Runs would hang for the same reason: restart the component that hangs, or increase --set timeout."
        found = [wrong(f"the check did not finish within {limit_s:g} s", remedy, limit_s=limit_s)]
    return [replace(finding, name=name) for finding in found]


def shorten(text: object, limit: int = 500) -> str:
    """Return the text of an error in one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
