"""The command `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

from mgspmv.cli.mode import open_progress
from mgspmv.cli.placement import PlacementOptions, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.tables import tabulate
from mgspmv.errors import MgspmvError


def doctor(
    stores: list[str] | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    cluster_option: list[str] | None = None,
    scheduler: str | None = None,
    tls: str | None = None,
    wait: float = 30.0,
    warm: bool = False,
) -> Answer:
    """Check this machine, its GPUs or a cluster, and show problems with their remedies; exit code 1 if there are any.

    Warnings do not change the exit code. With --json the answer also has passed checks and measurements.
    """
    from mgspmv.doctor import examine
    from mgspmv.doctor.machine import FindingStatus

    place = PlacementOptions(cluster, workers, None, cluster_option, scheduler, tls, wait)
    with open_progress() as progress:
        reach = None if place.is_embedded else lambda: open_client(place, progress)
        found = examine(reach, stores or [], wait, progress.phase, warm)
    counts = {status: sum(finding.status == status for finding in found) for status in get_args(FindingStatus)}
    payload = {"findings": [asdict(finding) for finding in found], "counts": counts}
    wrong = [f"{own.name} on {own.where}" if own.where else own.name for own in found if own.status == "wrong"]
    error = MgspmvError(f"checks failed: {', '.join(dict.fromkeys(wrong))}") if wrong else None
    # Problems come before warnings.
    shown = sorted((each for each in found if each.needs_remedy), key=lambda finding: finding.status != "wrong")
    rows = []
    for finding in shown:
        where = f" ({finding.where})" if finding.where else ""
        rows += [(finding.name, finding.status, f"{finding.found}{where}"), ("", "", finding.remedy)]
    table = [tabulate(("check", "", "finding and remedy"), rows, n_texts=3)] if rows else []
    warnings = f"{counts['warning']} warning{'' if counts['warning'] == 1 else 's'}"
    said = f"{counts['ok']} ok, {warnings}, {counts['wrong']} wrong, {counts['skipped']} not checked"
    compiled = [finding.found for finding in found if finding.name == "kernels" and finding.status == "ok"]
    return Answer(payload, [*table, *compiled, said], error)
