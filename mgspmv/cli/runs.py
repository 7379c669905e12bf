"""Commands for the runs on a cluster: `status` and `cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from mgspmv.cli.placement import PlacementOptions, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.tables import tabulate
from mgspmv.errors import OptionError


def status(*, scheduler: str | None = None, tls: str | None = None, wait: float = 30.0) -> Answer:
    """List the latest runs on a cluster, newest first.

    Without --scheduler, uses the cluster that `mgspmv cluster start` started on this machine.
    """
    from mgspmv.monitor.events import list_known_runs

    with _open_client(scheduler, tls, wait) as client:
        runs = list_known_runs(client)
    titles = ("run", "state", "computes", "iterations", "change", "since", "seconds", "workers", "matrix")
    shown = tabulate(titles, list(map(_list_cells, runs)), n_texts=9) if runs else "no runs on this cluster"
    return Answer({"runs": runs}, [shown])


def cancel(run: str, *, scheduler: str | None = None, tls: str | None = None, wait: float = 30.0) -> Answer:
    """Cancel a run on a cluster: its command ends as with Ctrl-C.

    Without --scheduler, uses the cluster that `mgspmv cluster start` started on this machine.
    """
    from mgspmv.monitor.events import cancel_run, list_known_runs

    with _open_client(scheduler, tls, wait) as client:
        found = _find_run(list_known_runs(client), run)
        name, was = found["run"], found["state"]
        has_answered = not found["is_running"] or cancel_run(client, name, wait)
        [left] = [known for known in list_known_runs(client) if known["run"] == name]
    said = f"run {name} is cancelled" if found["is_running"] else f"run {name} had ended: {was}"
    if not has_answered:
        said = f"{said}; its command did not answer within {wait:g} s, and was ended on the workers"
    return Answer(left, [said])


def _find_run(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [run for run in runs if run["run"].startswith(name)]
    if len(found) != 1:
        known = ", ".join(run["run"] for run in found or runs) or "none"
        which = f"{len(found)} runs of this cluster begin" if found else "no run of this cluster begins"
        raise OptionError(f"{which} with {name!r}; give one of {known}")
    return found[0]


@contextmanager
def _open_client(scheduler: str | None, tls: str | None, wait: float) -> Iterator[Any]:
    """Connect to the named cluster, or to the only one of this machine."""
    place = PlacementOptions(scheduler=scheduler, tls=tls, timeout=wait)
    if scheduler is None:
        from mgspmv.launching import list_clusters

        found = [cluster for cluster in list_clusters() if cluster.state == "running"]
        if len(found) != 1:
            names = ", ".join(f"{cluster.name} at {cluster.scheduler}" for cluster in found)
            which = (
                f"{len(found)} clusters run on this machine ({names})" if found else "no cluster runs on this machine"
            )
            raise OptionError(f"{which}; name one by --scheduler ADDRESS")
        place = replace(place, scheduler=found[0].scheduler, tls=found[0].certificates)
    with open_client(place) as client:
        yield client


def _list_cells(run: dict[str, Any]) -> tuple[str, ...]:
    change = "" if run["change"] is None else f"{run['change']:.3g}"
    since = datetime.fromtimestamp(run["began"]).strftime("%Y-%m-%d %H:%M:%S")
    numbers = f"{run['iterations']:,}", change, since, f"{run['seconds']:.3g}", str(run["workers"])
    return run["run"], run["state"], run["operation"], *numbers, run["matrix"]
