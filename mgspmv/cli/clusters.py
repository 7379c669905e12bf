"""Commands about clusters of this machine that go on by themselves: `cluster start`, `status` and `stop`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgspmv.cli.mode import ARGS, say
from mgspmv.cli.options import Tls
from mgspmv.cli.place import quieten_dask
from mgspmv.cli.program import Answer, add_command
from mgspmv.cli.tables import format_bytes, tabulate, tabulate_fields
from mgspmv.errors import ClusterError, MgspmvError, OptionError, escape_controls

if TYPE_CHECKING:
    from mgspmv.launching.serving import Asked
    from mgspmv.launching.state import Launched

app = typer.Typer(
    no_args_is_help=True, help="Start a cluster of this machine's GPUs or processors, which goes on by itself; end it."
)

DEFAULT = "default"
"""Name of a cluster that nobody named."""
ASK_S = 2.0
"""Seconds for a scheduler that is to be ended to name the runs that end with it."""


def _add(command: Callable[..., Answer]) -> Callable[..., Answer]:
    add_command(app, command)
    return command


# --- start -----------------------------------------------------------------------------------------------------------


@_add
def start(
    name: Annotated[  # typer 0.27 would call it --NAME
        str, typer.Option("--name", metavar="NAME", help="Of the cluster; one of a name on a machine.")
    ] = DEFAULT,
    backend: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Workers on GPUs or not; auto is cuda with a GPU.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes; default one for each GPU, or as Dask chooses.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each worker; default so many that all have one for each processor.")
    ] = None,
    protocol: Annotated[str, typer.Option(metavar="tcp|ucxx", help="Of Dask between GPU workers.")] = "tcp",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; others get in there, so also give --tls.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the scheduler; 0 for any that is free.")] = 0,
    dashboard_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Of the dashboard; default 8787, or one that is free where that is taken."),
    ] = None,
    dashboard_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]", help="Also let browsers reach the dashboard as this host, as behind a proxy; repeat."
        ),
    ] = None,
    tls: Tls = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Until all workers must have joined.")] = 120.0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Do not go on alone, but end with this command, as services want it.")
    ] = False,
) -> Answer:
    """Start a scheduler and workers on this machine, which go on until `mgspmv cluster stop`."""
    from mgspmv.launching.serving import Asked

    if not timeout > 0:
        raise OptionError(f"--timeout must be a positive number of seconds, not {timeout:g}")
    origins = tuple(dashboard_origin or ())
    asked = Asked(name, backend, workers, threads, protocol, host, port, tls, dashboard_port, origins)
    return _serve(asked) if foreground else _start_apart(asked, timeout)


def _serve(asked: Asked) -> Answer:
    from mgspmv.launching.serving import serve

    def tell(launched: Launched) -> None:
        say(_describe_started(launched))
        _warn(asked)

    serve(asked, tell)
    return Answer({"cluster": asked.name, "state": "stopped"}, [f"cluster {asked.name} is stopped"])


def _start_apart(asked: Asked, timeout_s: float) -> Answer:
    from mgspmv.launching.starting import Failure, start_apart

    started = start_apart(asked, ARGS.get(), timeout_s)
    if isinstance(started, Failure):
        print(escape_controls(started.said), file=sys.stderr)
        return Answer(started.payload, [], exit_code=started.exit_code)
    _warn(asked)
    return Answer(_describe(started), [_describe_started(started)])


def _warn(asked: Asked) -> None:
    if asked.tls is None and not asked.is_local:
        say(f"warning: whoever reaches {asked.host} can run code here; --tls lets in nobody without a certificate")


def _describe(launched: Launched) -> dict[str, Any]:
    """All that is known of a cluster without asking it, as JSON values."""
    is_on = launched.state == "running"
    return {
        "cluster": launched.name,
        "state": launched.state,
        "host": launched.host,
        "pid": launched.process.pid,
        "began": launched.began,
        "version": launched.version,
        "backend": launched.backend or None,
        "workers": launched.n_workers,
        "threads": launched.threads,
        "scheduler": launched.scheduler,
        "scheduler_file": str(launched.scheduler_file) if is_on else None,
        "dashboard": launched.dashboard,
        "certificates": launched.certificates,
        "folder": str(launched.folder),
    }


def _describe_started(launched: Launched) -> str:
    words = _name_workers(launched)
    told = [
        f"cluster {launched.name} runs: {words}, process {launched.process.pid} of {launched.host}",
        f"  scheduler       {launched.scheduler}",
        f"  scheduler file  {launched.scheduler_file}",
        f"  dashboard       {launched.dashboard}",
        f"  {_name_command(launched)}   ranks a store on it",
        f"  mgspmv cluster status {launched.name}   says how it is",
        f"  mgspmv cluster stop {launched.name}   ends it",
    ]
    return "\n".join(told)


def _name_workers(launched: Launched) -> str:
    kind = "GPU" if launched.backend == "cuda" else "CPU"
    return f"{launched.n_workers} {kind} workers of {launched.threads} threads"


def _name_command(launched: Launched) -> str:
    """The command that computes on it."""
    tls = [] if launched.certificates is None else ["--tls", launched.certificates]
    return shlex.join(["mgspmv", "pagerank", "web.zarr", "--scheduler", str(launched.scheduler), *tls])


# --- status ----------------------------------------------------------------------------------------------------------


@_add
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of a cluster; default all.")] = None,
    *,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For a scheduler to answer.")] = 10.0,
) -> Answer:
    """List the clusters of this machine, or say all of one: workers, what they take, and what is computed.

    The exit code is 7 where the one that is named does not run, or does not answer.
    """
    from mgspmv.launching.state import find_cluster, list_clusters

    if name is not None:
        asked = _ask(find_cluster(name), timeout)
        is_on = asked["state"] == "running" and asked["problem"] is None
        return Answer({"clusters": [asked]}, _show(asked), exit_code=0 if is_on else ClusterError.exit_code)
    all_asked = [_ask(cluster, timeout) for cluster in list_clusters()]
    if not all_asked:
        return Answer({"clusters": []}, ["there are no clusters on this machine; `mgspmv cluster start` starts one"])
    titles = ("workers", "runs", "cluster", "state", "backend", "scheduler", "began")
    return Answer({"clusters": all_asked}, [tabulate(titles, [_list_cells(asked) for asked in all_asked], n_texts=5)])


def _ask(launched: Launched, timeout_s: float) -> dict[str, Any]:
    """What is known of a cluster, and what its scheduler says."""
    asked = _describe(launched) | {"joined": None, "runs": None, "problem": None}
    if launched.state != "running":
        return asked
    try:
        workers, runs = _ask_scheduler(launched, timeout_s)
    except MgspmvError as error:
        return asked | {"problem": str(error)}
    return asked | {"joined": workers, "runs": runs}


def _ask_scheduler(launched: Launched, timeout_s: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Workers, and runs that go on."""
    from mgspmv.distribute.cluster import Cluster
    from mgspmv.distribute.tls import use_tls
    from mgspmv.monitor.known import list_known_runs

    with quieten_dask(), use_tls(launched.certificates):
        cluster = Cluster(launched.scheduler, timeout_s)
        try:
            workers = [_describe_worker(str(member), told) for member, told in cluster.describe_workers().items()]
            return workers, [run for run in list_known_runs(cluster.client) if run["is_running"]]
        finally:
            cluster.close()


def _describe_worker(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Of a worker, as its scheduler tells of it."""
    metrics, device = told.get("metrics", {}), told.get("gpu") or {}
    return {
        "worker": name,
        "state": told["status"],
        "threads": told["nthreads"],
        "memory_bytes": metrics.get("memory"),
        "device": device.get("name"),
        "device_memory_bytes": device.get("memory-total"),
    }


def _list_cells(asked: dict[str, Any]) -> tuple[Any, ...]:
    workers, runs = ("?" if asked[key] is None else len(asked[key]) for key in ("joined", "runs"))
    return (
        f"{workers} of {asked['workers']}" if asked["workers"] else "",
        runs,
        asked["cluster"],
        _name_state(asked),
        asked["backend"] or "",
        asked["scheduler"] or "",
        _format_time(asked["began"]),
    )


def _name_state(asked: dict[str, Any]) -> str:
    return "silent" if asked["problem"] else str(asked["state"])


def _format_time(began: float) -> str:
    return datetime.fromtimestamp(began).strftime("%Y-%m-%d %H:%M:%S")


def _show(asked: dict[str, Any]) -> list[Any]:
    names = ("scheduler", "scheduler_file", "dashboard", "certificates", "problem", "folder")
    fields = {"cluster": asked["cluster"], "state": _name_state(asked)}
    fields |= {"process": f"{asked['pid']} of {asked['host']}", "began": _format_time(asked["began"])}
    if asked["workers"]:
        joined = "?" if asked["joined"] is None else len(asked["joined"])
        fields["workers"] = (
            f"{joined} of {asked['workers']}, backend {asked['backend']}, {asked['threads']} threads each"
        )
    fields |= {name.replace("_", " "): asked[name] for name in names if asked[name] is not None}
    if asked["state"] == "lost":
        fields["again"] = f"mgspmv cluster start --name {asked['cluster']}, with the options that it had"
    parts = [tabulate_fields(fields)]
    if asked["joined"]:
        titles = ("threads", "memory", "device memory", "worker", "state", "device")
        parts.append(tabulate(titles, [_list_worker(worker) for worker in asked["joined"]], n_texts=3))
    if asked["runs"]:
        runs = [(f"{r['iterations']:,}", r["run"], r["operation"], r["state"], r["matrix"]) for r in asked["runs"]]
        parts.append(tabulate(("iterations", "run", "computes", "state", "matrix"), runs, n_texts=4))
    return parts


def _list_worker(worker: dict[str, Any]) -> tuple[Any, ...]:
    memory, of = (
        "" if worker[key] is None else format_bytes(worker[key]) for key in ("memory_bytes", "device_memory_bytes")
    )
    return worker["threads"], memory, of, worker["worker"], worker["state"], worker["device"] or ""


# --- stop ------------------------------------------------------------------------------------------------------------


@_add
def stop(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Of the cluster.")] = DEFAULT,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Until it is killed that does not end.")] = 30.0,
) -> Answer:
    """End a cluster, and wait until its processes are gone; what is computed on it ends with an error."""
    from mgspmv.launching.state import end_processes, find_cluster, forget

    launched = find_cluster(name)
    asked = _ask(launched, ASK_S)
    is_clean = end_processes(launched.process, timeout)
    forget(launched)
    runs = asked["runs"] or []
    was_lost = asked["state"] == "lost"
    how = "was lost, and its name is free" if was_lost else "is stopped"
    said = [f"cluster {name} {how}" if is_clean else f"cluster {name} did not end within {timeout:g} s, and was killed"]
    said += [f"  run {run['run']}, {run['operation']} of {run['matrix']}, ended with it" for run in runs]
    payload = {"cluster": name, "state": "stopped", "was": asked["state"], "is_killed": not is_clean, "runs": runs}
    return Answer(payload, ["\n".join(said)])
