"""Commands for persistent clusters on this machine: `cluster start`, `status` and `stop`."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.mode import ARGS, print_note
from mgspmv.cli.options import option
from mgspmv.cli.placement import quieten_dask
from mgspmv.cli.program import Answer
from mgspmv.cli.tables import tabulate, tabulate_fields
from mgspmv.errors import ClusterError, MgspmvError, OptionError

if TYPE_CHECKING:
    from mgspmv.launching import Launched

DEFAULT = "default"
"""Name of a cluster that was started without a name."""
ASK_S = 2.0
"""Seconds to wait for a scheduler to list its runs before it is stopped."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


# --- start -----------------------------------------------------------------------------------------------------------


def start(
    *,
    name: Annotated[str, option("Name of the cluster, unique on this machine.", "NAME", "--name")] = DEFAULT,
    backend: Annotated[str, option("Device of the workers; auto is cuda if a GPU exists.", "auto|cpu|cuda")] = "auto",
    workers: int | None = None,
    threads: int | None = None,
    protocol: Annotated[str, option("Dask's protocol between GPU workers.", "tcp|ucxx")] = "tcp",
    host: Annotated[str, option("Address to listen on; use --tls if others reach it.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, option("Port of the scheduler; 0 for any free one.", min=0, max=65535)] = 0,
    dashboard_port: int | None = None,
    dashboard_origin: list[str] | None = None,
    tls: str | None = None,
    wait: float = 120.0,
    foreground: Annotated[bool, option("Stay in the foreground, as for services.")] = False,
) -> Answer:
    """Start a scheduler and workers on this machine that run until `mgspmv cluster stop`."""
    from mgspmv import launching

    _check(name, backend, protocol, dashboard_origin or [])
    if foreground:
        asked: dict[str, Any] = {"backend": backend, "workers": workers, "threads": threads, "protocol": protocol}
        asked |= {"tls": tls, "host": host, "scheduler_port": port}
        asked |= {"dashboard_port": dashboard_port, "dashboard_origins": dashboard_origin or []}

        def notify(launched: Launched) -> None:
            print_note(_describe_started(launched))
            _warn(host, tls)

        launching.serve(name, notify, **asked)
        return Answer({"cluster": name, "state": "stopped"}, [f"cluster {name} is stopped"])
    launched = launching.start(name, ARGS.get(), wait)
    _warn(host, tls)
    return Answer(_describe(launched), [_describe_started(launched)])


def _check(name: str, backend: str, protocol: str, origins: list[str]) -> None:
    from mgspmv.cluster.allowed_hosts import parse_host

    if not _NAME.fullmatch(name):
        raise OptionError(f"--name takes letters, digits, '.', '_' and '-', a letter or digit first, not {name!r}")
    if protocol == "ucxx" and backend == "cpu":
        raise OptionError("--protocol ucxx is for workers on GPUs; leave it out, or --backend cpu")
    for origin in origins:
        try:
            parse_host(origin)
        except ValueError as error:
            raise OptionError(
                "--dashboard-origin must be a host as in the browser's address bar, such as dash.example.org or "
                f"dash.example.org:8443, not {origin!r}"
            ) from error


def _warn(host: str, tls: str | None) -> None:
    from mgspmv.cluster.allowed_hosts import is_local

    if tls is None and not is_local(host):
        print_note(f"warning: clients that reach {host} can run code here; add --tls to require certificates")


def _describe(launched: Launched) -> dict[str, Any]:
    """Describe a cluster without connecting to it, as JSON values."""
    known = asdict(launched)
    return {"cluster": known.pop("name"), "state": launched.state} | known


def _describe_started(launched: Launched) -> str:
    kind = "GPU" if launched.backend == "cuda" else "CPU"
    tls = [] if launched.certificates is None else ["--tls", launched.certificates]
    command = shlex.join(["mgspmv", "pagerank", "web.zarr", "--scheduler", str(launched.scheduler), *tls])
    told = [
        f"cluster {launched.name} runs: {launched.workers} {kind} workers, process {launched.pid}",
        f"  scheduler       {launched.scheduler}",
        f"  dashboard       {launched.dashboard}",
        f"  {command}   ranks a store on it",
        f"  mgspmv cluster status {launched.name}   shows its state",
        f"  mgspmv cluster stop {launched.name}   stops it",
    ]
    return "\n".join(told)


# --- status ----------------------------------------------------------------------------------------------------------


def status(name: str | None = None, *, wait: float = 10.0) -> Answer:
    """List the clusters of this machine, or show one. Exit code 7 if that is still starting or does not answer."""
    from mgspmv.launching import find_cluster, list_clusters

    if name is not None:
        asked = _ask(find_cluster(name), wait)
        fields = asked | {"began": _format_time(asked["began"])}
        code = 0 if asked["state"] == "running" else ClusterError.exit_code
        return Answer({"clusters": [asked]}, [tabulate_fields(fields)], exit_code=code)
    all_asked = [_ask(cluster, wait) for cluster in list_clusters()]
    if not all_asked:
        return Answer({"clusters": []}, ["no clusters run on this machine; `mgspmv cluster start` starts one"])
    titles = ("workers", "runs", "cluster", "state", "backend", "scheduler", "since")
    return Answer({"clusters": all_asked}, [tabulate(titles, list(map(_list_cells, all_asked)), n_texts=5)])


def _ask(launched: Launched, timeout_s: float) -> dict[str, Any]:
    """Describe a cluster with its joined workers and runs; the state is `silent` if it does not answer."""
    from mgspmv.cluster.dask_cluster import Cluster
    from mgspmv.cluster.tls import use_tls
    from mgspmv.monitor.events import list_known_runs

    asked = _describe(launched) | {"joined": None, "runs": None, "problem": None}
    if launched.state != "running":
        return asked
    try:
        with quieten_dask(), use_tls(launched.certificates), closing(Cluster(launched.scheduler, timeout_s)) as cluster:
            running = [run["run"] for run in list_known_runs(cluster.client) if run["is_running"]]
            return asked | {"joined": len(cluster.describe_workers()), "runs": running}
    except MgspmvError as error:
        return asked | {"state": "silent", "problem": str(error)}


def _list_cells(asked: dict[str, Any]) -> tuple[Any, ...]:
    joined, runs = ("?" if asked[key] is None else asked[key] for key in ("joined", "runs"))
    since = _format_time(asked["began"])
    workers = f"{joined} of {asked['workers']}" if asked["workers"] else ""
    n_runs = runs if runs == "?" else len(runs)
    return workers, n_runs, asked["cluster"], asked["state"], asked["backend"], asked["scheduler"] or "", since


def _format_time(began: float) -> str:
    return datetime.fromtimestamp(began).strftime("%Y-%m-%d %H:%M:%S")


# --- stop ------------------------------------------------------------------------------------------------------------


def stop(name: str = DEFAULT, wait: float = 30.0) -> Answer:
    """Stop a cluster and wait until its processes have exited; runs on it fail."""
    from mgspmv import launching

    launched = launching.find_cluster(name)
    runs = _ask(launched, ASK_S)["runs"] or []
    is_clean = launching.stop(launched, wait)
    said = "is stopped" if is_clean else f"did not exit within {wait:g} s and was killed"
    ended = [f"  run {run} ended with it" for run in runs]
    payload = {"cluster": name, "state": "stopped", "is_killed": not is_clean, "runs": runs}
    return Answer(payload, ["\n".join([f"cluster {name} {said}", *ended])])
