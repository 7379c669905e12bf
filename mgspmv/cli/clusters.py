"""Clusters: options that place a command on one or in this process, and commands: `cluster start`, `status`, `stop` on
this machine, `status` and `cancel` of the runs on any cluster, and `doctor`."""

from __future__ import annotations

import json
import logging
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Annotated, Any, get_args

from mgspmv.cli.options import option
from mgspmv.cli.output import ARGS, Answer, end_meanwhile, open_progress, print_note, tabulate, tabulate_fields
from mgspmv.errors import ClusterError, MgspmvError, OptionError

if TYPE_CHECKING:
    from mgspmv.api.matrix import Matrix
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.launching import Launched
    from mgspmv.monitor.progress import ProgressLine

DEFAULT = "default"
"""Name of a cluster that was started without a name."""
ASK_S = 2.0
"""Seconds to wait for a scheduler to list its runs before it is stopped."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


# --- placement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlacementOptions:
    """Placement of a command, by its options; this process when neither cluster nor scheduler is given."""

    cluster: str | None = None
    workers: int | None = None
    threads: int | None = None
    cluster_option: list[str] | None = None
    scheduler: str | None = None
    tls: str | None = None
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.cluster is not None and self.scheduler is not None:
            raise OptionError("--cluster starts a cluster and --scheduler uses a running one; give only one of them")
        if self.cluster is not None:
            if self.cluster in ("local", "cuda"):
                from mgspmv.cluster.forking import begin_server

                begin_server(has_devices=self.cluster == "cuda")  # loads modules while others are loaded here
            from mgspmv.cluster.managers import find_manager

            find_manager(self.cluster)
        if self.options and self.cluster is None:
            raise OptionError("--cluster-option configures a started cluster; add --cluster, or leave it out")
        if self.workers is not None and self.cluster is None:
            raise OptionError("--workers is the size of a started cluster; add --cluster, or leave it out")
        if self.tls is not None and self.is_embedded:
            raise OptionError("--tls encrypts the connections of a cluster; add --cluster or --scheduler")
        if self.tls == "temporary" and self.cluster is None:
            raise OptionError("--tls temporary needs --cluster; name the folder of the running cluster's certificates")
        if not self.timeout > 0:
            raise OptionError(f"--timeout must be a positive number of seconds, not {self.timeout:g}")

    def choose_backend(self, backend: str) -> str:
        """Resolve `auto` for started workers: `cpu` for `local`, and `cuda` for `cuda`."""
        started = {"local": "cpu", "cuda": "cuda"}
        return started.get(self.cluster or "", backend) if backend == "auto" else backend

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the cluster's class."""
        given = [parse_setting("--cluster-option", text, "queue=gpu") for text in self.cluster_option or ()]
        for key, _ in given:
            if key in ("kind", "workers", "threads", "on_note"):
                raise OptionError(f"--cluster-option cannot set {key}; use --cluster, --workers and --threads")
        return dict(given)

    @property
    def is_embedded(self) -> bool:
        """True if this process computes."""
        return self.cluster is None and self.scheduler is None


@dataclass(frozen=True)
class ComputingOptions(PlacementOptions):
    """Placement of a command that computes products, with memory limits."""

    backend: str = "auto"
    device_memory: str | None = None
    host_memory: str | None = None

    def place(self, matrix: Matrix, client: Any, **options: Any) -> Matrix:
        """Return a matrix placed on a client, or in this process without one.

        Parameters
        ----------
        options : others of `Matrix.on`
        """
        given = self._limits | options
        backend: Any = self.choose_backend(self.backend)
        if client is None:
            return matrix.on(backend, **given)
        return matrix.on(client, backend=backend, timeout=self.timeout, **given)

    def read_edges(self, source: str, client: Any, **options: Any) -> DistributedMatrix:
        """Let the workers of a client read edges and hold them; `options` are others of `mgspmv.read_edges`."""
        import mgspmv as mg

        backend: Any = self.choose_backend(self.backend)
        return mg.read_edges(source, client, backend=backend, timeout=self.timeout, **self._limits | options)

    @property
    def _limits(self) -> dict[str, Any]:
        return {"threads": self.threads, "device_memory": self.device_memory, "host_memory": self.host_memory}


def parse_setting(option: str, text: str, example: str) -> tuple[str, Any]:
    """Split KEY=VALUE of an option; the value is parsed as TOML or JSON, else, and if it is a time, kept as text.

    Raises
    ------
    OptionError : the text is not KEY=VALUE
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not (key and sign):
        raise OptionError(f"{option} {text}: expected KEY=VALUE, such as {example}")
    with suppress(tomllib.TOMLDecodeError):
        read = tomllib.loads(f"value = {value}")["value"]
        return key, value if isinstance(read, date | time) else read  # wall times are written as times
    with suppress(ValueError):
        return key, json.loads(value)
    return key, value


@contextmanager
def quieten_dask() -> Iterator[None]:
    """Keep loggers of Dask and other libraries off stderr; errors that end a run are raised, and printed once.

    Loggers of loaded programs have separate handlers.
    """
    import distributed  # noqa: F401 (or it would be loaded later, and give its loggers handlers then)

    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    others = [logging.root, *(logger for logger in loggers if logger.name.partition(".")[0] != "mgspmv")]
    handlers = [handler for logger in others for handler in logger.handlers]
    handlers += [] if logging.lastResort is None else [logging.lastResort]

    def reject(record: logging.LogRecord) -> bool:
        return False

    for handler in handlers:
        handler.addFilter(reject)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(reject)


@contextmanager
def open_client(place: PlacementOptions, progress: ProgressLine | None = None, *, waits: bool = True) -> Iterator[Any]:
    """Open the client of a cluster, or None where this process computes; a started cluster ends with the context.

    Parameters
    ----------
    progress : shows the phases of connecting; None for a separate display
    waits : False returns while the cluster ends, except after an error; the command waits for it at its end
    """
    if place.is_embedded:
        yield None
        return
    from mgspmv.cluster.managers import connect
    from mgspmv.monitor.events import find_dashboard

    with ExitStack() as stack:
        stack.enter_context(quieten_dask())
        with open_progress() if progress is None else nullcontext(progress) as shown:
            shown.phase("connecting" if place.cluster is None else "starting workers")
            client = stack.enter_context(
                connect(
                    place.cluster,
                    place.scheduler,
                    timeout=place.timeout,
                    workers=place.workers,
                    threads=place.threads,
                    options=place.options,
                    tls=place.tls,
                    on_note=print_note,
                )
            )
            if (dashboard := find_dashboard(client)) is not None:
                print_note(f"dashboard: {dashboard}")
        yield client
        if not waits:
            end_meanwhile(stack.pop_all().close)


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
    from mgspmv.cluster.security import parse_host

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
    from mgspmv.cluster.security import is_local

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


def show(name: str | None = None, *, wait: float = 10.0) -> Answer:
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
    rows = []
    for asked in all_asked:
        joined, runs = ("?" if asked[key] is None else asked[key] for key in ("joined", "runs"))
        workers = f"{joined} of {asked['workers']}" if asked["workers"] else ""
        n_runs = runs if runs == "?" else len(runs)
        named = asked["cluster"], asked["state"], asked["backend"], asked["scheduler"] or ""
        rows.append((workers, n_runs, *named, _format_time(asked["began"])))
    titles = ("workers", "runs", "cluster", "state", "backend", "scheduler", "since")
    return Answer({"clusters": all_asked}, [tabulate(titles, rows, n_texts=5)])


def _ask(launched: Launched, timeout_s: float) -> dict[str, Any]:
    """Describe a cluster with its joined workers and runs; the state is `silent` if it does not answer."""
    from mgspmv.cluster.dask_cluster import Cluster
    from mgspmv.cluster.security import use_tls
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


# --- runs ------------------------------------------------------------------------------------------------------------


def status(*, scheduler: str | None = None, tls: str | None = None, wait: float = 30.0) -> Answer:
    """List the latest runs on a cluster, newest first.

    Without --scheduler, uses the cluster that `mgspmv cluster start` started on this machine.
    """
    from mgspmv.monitor.events import list_known_runs

    with _open_client(scheduler, tls, wait) as client:
        runs = list_known_runs(client)
    rows = []
    for run in runs:
        change = "" if run["change"] is None else f"{run['change']:.3g}"
        times = _format_time(run["began"]), f"{run['seconds']:.3g}"
        row = run["run"], run["state"], run["operation"], f"{run['iterations']:,}", change, *times
        rows.append((*row, run["workers"], run["matrix"]))
    titles = ("run", "state", "computes", "iterations", "change", "since", "seconds", "workers", "matrix")
    return Answer({"runs": runs}, [tabulate(titles, rows, n_texts=9) if runs else "no runs on this cluster"])


def cancel(run: str, *, scheduler: str | None = None, tls: str | None = None, wait: float = 30.0) -> Answer:
    """Cancel a run on a cluster: its command ends as with Ctrl-C.

    Without --scheduler, uses the cluster that `mgspmv cluster start` started on this machine.
    """
    from mgspmv.monitor.events import cancel_run, list_known_runs

    with _open_client(scheduler, tls, wait) as client:
        runs = list_known_runs(client)
        matches = [known for known in runs if known["run"].startswith(run)]
        if len(matches) != 1:
            known = ", ".join(known["run"] for known in matches or runs) or "none"
            which = f"{len(matches)} runs of this cluster begin" if matches else "no run of this cluster begins"
            raise OptionError(f"{which} with {run!r}; give one of {known}")
        [found] = matches
        name, was = found["run"], found["state"]
        has_answered = not found["is_running"] or cancel_run(client, name, wait)
        [left] = [known for known in list_known_runs(client) if known["run"] == name]
    said = f"run {name} is cancelled" if found["is_running"] else f"run {name} had ended: {was}"
    if not has_answered:
        said = f"{said}; its command did not answer within {wait:g} s, and was ended on the workers"
    return Answer(left, [said])


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


# --- doctor ----------------------------------------------------------------------------------------------------------


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
    from mgspmv.doctor import FindingStatus, examine

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
