"""A cluster of several machines for one run: the scheduler in this process, and workers in jobs of Slurm or PBS.

dask-jobqueue writes the jobs, one for each node, queues and cancels them; what it finds in Dask's own configuration
(`~/.config/dask/jobqueue.yaml`) counts where nothing else is said. Workers end when they miss the scheduler: jobs end
with this process, also when it is killed.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
from distributed.core import Status
from distributed.utils import get_ip, get_ip_interface

from mgspmv.distribute.connect import Serving, serve_at, start_cluster
from mgspmv.distribute.tls import MODULE, is_tls_required
from mgspmv.errors import ClusterError, MissingDependencyError, OptionError
from mgspmv.partition import parse_bytes
from mgspmv.processes import find_state_folder

WAIT_S = 3600.0
"""Seconds that jobs wait for nodes, unless told otherwise."""
SAID_LINES = 3
"""Of the log of a job that failed, in an error."""
_LOOK_S = 2.0
"""Seconds between two questions to the batch system."""
_ANSWER_S = 30.0
"""Seconds for an answer of it; it is asked again later."""
_JOIN_S = 0.05
"""Seconds between two looks at whether workers have joined."""
_ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "TIMEOUT"),
)
"""Of a job of Slurm."""
_LETTERS = {"Q": "PENDING", "H": "HELD", "W": "WAITING", "R": "RUNNING", "S": "SUSPENDED", "B": "RUNNING"}
"""States of PBS that a job has which has not ended."""
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")

logger = logging.getLogger("mgspmv.runs")


# --- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What each job asks its batch system for; None as Dask's configuration has it, else the system's own default."""

    queue: str | None = None
    """Slurm's partition, or PBS's queue."""
    account: str | None = None
    walltime: str | None = None
    """As hours:minutes:seconds."""
    cores: int | None = None
    """Of a node; default with Slurm the whole node, and for PBS they must be said."""
    memory: int | None = None
    """Bytes of a node; said with `cores`."""
    gpus: int | None = None
    """Of a node, each with a worker; default none."""
    interface: str | None = None
    """Network interface of scheduler and workers, such as ib0."""
    protocol: str | None = None
    """Of Dask: tcp or ucxx."""
    directives: tuple[str, ...] = ()
    """More of what a job says to its batch system, such as --constraint=a100."""
    wait: float = WAIT_S
    """Seconds to wait for the nodes."""


KEYS = ("queue", "account", "walltime", "cores", "memory", "gpus", "interface", "protocol", "directive", "wait")


def parse_job(given: Sequence[str]) -> Job:
    """Read `KEY=VALUE`; `directive` may be there several times.

    Raises
    ------
    OptionError : no such key, a key twice, or a value that it cannot have
    """
    values: dict[str, Any] = {}
    for text in given:
        key, sign, value = (part.strip() for part in text.partition("="))
        if key not in KEYS or not sign or not value:
            raise OptionError(f"job {text!r}: wanted KEY=VALUE, where KEY is one of {', '.join(KEYS)}")
        if "\n" in value:
            raise OptionError(f"job {text!r}: a value is one line")
        if key == "directive":
            values["directives"] = (*values.get("directives", ()), value)
        elif key in values:
            raise OptionError(f"job {text!r}: {key} is given twice")
        else:
            values[key] = _READERS[key](key, value) if key in _READERS else value
    return Job(**values)


def _read_count(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise OptionError(f"job {key}={value}: wanted a number from 1 on")
    return int(value)


def _read_seconds(key: str, value: str) -> float:
    return float(_read_count(key, value))


def _read_size(key: str, value: str) -> int:
    return parse_bytes(value)


def _read_protocol(key: str, value: str) -> str:
    if value not in ("tcp", "ucxx"):
        raise OptionError(f"job {key}={value}: wanted tcp or ucxx")
    return value


_READERS: dict[str, Callable[[str, str], Any]] = {
    "cores": _read_count,
    "gpus": _read_count,
    "wait": _read_seconds,
    "memory": _read_size,
    "protocol": _read_protocol,
}


# --- batch systems ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A batch system, as its own programs and dask-jobqueue know it."""

    name: str
    submit: str
    """Program that queues a job."""
    cluster: str
    """Class of dask-jobqueue."""
    section: str
    """Of Dask's configuration, below `jobqueue`."""
    look: Callable[[Sequence[str]], dict[str, str] | None]
    """The states of jobs that wait or run, with why they wait; None where it does not answer now."""
    ask_node: Callable[[Job, int | None, int | None], dict[str, Any]]
    """Arguments of the class by which a job gets its node."""


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "no answer")


def _look_at_slurm(jobs: Sequence[str]) -> dict[str, str] | None:
    command = ["squeue", "--noheader", f"--jobs={','.join(jobs)}", "--states=all", "--format=%i|%T|%r"]
    done = _ask(*command)
    if done.returncode:
        return {} if "Invalid job id" in done.stderr else None
    found = {}
    for line in done.stdout.splitlines():
        job, state, reason = line.split("|", 2)
        if state not in _ENDED_STATES:
            found[job] = state if reason == "None" else f"{state} ({reason})"
    return found


def _look_at_pbs(jobs: Sequence[str]) -> dict[str, str] | None:
    done = _ask("qstat", *jobs)
    if done.returncode and not ("Unknown Job" in done.stderr or "has finished" in done.stderr):
        return None
    rows = [line.split() for line in done.stdout.splitlines()]
    numbered = {row[0].partition(".")[0]: row[-2] for row in rows if len(row) > 2}
    states = {job: _LETTERS.get(numbered.get(job.partition(".")[0], "")) for job in jobs}
    return {job: state for job, state in states.items() if state is not None}


def _ask_slurm(job: Job, cores: int | None, memory: int | None) -> dict[str, Any]:
    directives = ["--nodes=1", *([f"--gpus-per-node={job.gpus}"] if job.gpus else [])]
    if cores is None:  # the numbers must be there, and are left out of the job
        asked: dict[str, Any] = {"cores": 1, "memory": "1GB", "job_directives_skip": ["--cpus-per-task", "--mem="]}
        return asked | {"job_extra_directives": [*directives, "--exclusive", "--mem=0"]}
    return {"cores": cores, "memory": memory, "job_extra_directives": directives}


def _ask_pbs(job: Job, cores: int | None, memory: int | None) -> dict[str, Any]:
    if cores is None:
        raise OptionError(
            "PBS must be told what a node has: give cores and memory of the job, or write them into jobqueue.yaml"
        )
    gpus = f":ngpus={job.gpus}" if job.gpus else ""
    spec = f"select=1:ncpus={cores}:mem={-(-(memory or 0) // 2**20)}mb{gpus}"
    return {"cores": cores, "memory": memory, "resource_spec": spec, "job_extra_directives": []}


SYSTEMS = {
    "slurm": System("Slurm", "sbatch", "SLURMCluster", "slurm", _look_at_slurm, _ask_slurm),
    "pbs": System("PBS", "qsub", "PBSCluster", "pbs", _look_at_pbs, _ask_pbs),
}


# --- the cluster -----------------------------------------------------------------------------------------------------


@contextmanager
def start_jobs(
    kind: str,
    n_nodes: int,
    job: Job,
    n_workers: int | None = None,
    threads: int | None = None,
    python: str | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[Any]:
    """A scheduler in this process, and workers that have joined it from a job on each node; jobs end with the context.

    Parameters
    ----------
    kind : of `SYSTEMS`
    n_workers : of each node; default one for each GPU, or one
    threads : of each worker; default so many that a node's workers have one for each of its cores
    python : of the nodes, the path of a program; default that of this process
    on_wait : is told what jobs wait for, whenever that changes; default the log

    Raises
    ------
    MissingDependencyError : dask-jobqueue or the batch system is not there
    OptionError : PBS is not told what a node has, UCX is to be encrypted, or there is no such interface
    ClusterError : a job was refused, ended, or did not get its node in time
    """
    system = SYSTEMS[kind]
    _need(system)
    if job.protocol == "ucxx" and is_tls_required():
        raise OptionError("protocol=ucxx does not encrypt, and connections must be encrypted; leave one of both out")
    with ExitStack() as stack:
        logs = Path(_get(system, "log-directory") or stack.enter_context(_make_folder()))
        n_workers = _count_workers(system, job, n_workers)
        given = _describe(system, job, n_workers, threads, python, logs)
        serving = stack.enter_context(serve_at(_choose_address(system, job)))
        cluster = stack.enter_context(start_cluster(partial(_make, system, given, serving), serving))
        _submit(system, cluster, n_nodes)
        _await_joined(system, cluster, n_nodes * n_workers, job.wait, on_wait or logger.info, logs)
        yield cluster


def _need(system: System) -> None:
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise MissingDependencyError(
            f"jobs of {system.name} are queued by dask-jobqueue, which is not installed; install mgspmv[jobqueue]"
        )
    if shutil.which(system.submit) is None:
        raise MissingDependencyError(
            f"jobs of {system.name} are queued by {system.submit}, which is not on this machine; give the command "
            "where it is, such as on a login node"
        )
    with patch.object(signal, "signal"):  # it takes SIGINT when it is imported, and fails where a thread may not
        import dask_jobqueue  # noqa: F401 (gives Dask's configuration its defaults)


def _get(system: System, key: str) -> Any:
    """What Dask's configuration says."""
    return dask.config.get(f"jobqueue.{system.section}.{key}")


@contextmanager
def _make_folder() -> Iterator[str]:
    """For what jobs write, where nodes reach it if they have the home of the user."""
    state = find_state_folder()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jobs-", dir=state, ignore_cleanup_errors=True) as folder:
        yield folder


def _count_workers(system: System, job: Job, n_workers: int | None) -> int:
    """Of a node."""
    if job.gpus is not None and n_workers not in (None, job.gpus):
        raise OptionError(f"each of the {job.gpus} GPUs of a node has a worker, so there cannot be {n_workers}")
    return n_workers or job.gpus or _get(system, "processes") or 1


def _describe(
    system: System, job: Job, n_workers: int, threads: int | None, python: str | None, logs: Path
) -> dict[str, Any]:
    """Arguments of dask-jobqueue's class."""
    cores, memory = job.cores or _get(system, "cores"), job.memory or _get(system, "memory")
    if (cores is None) != (memory is None):
        raise OptionError("cores and memory of a job go together; give both or neither")
    asked = system.ask_node(job, cores, parse_bytes(memory) if memory else None)
    share = f"$((SLURM_CPUS_ON_NODE / {n_workers}))" if cores is None else max(1, cores // n_workers)
    options = ["--nthreads", str(threads or share), "--memory-limit", "0"]
    options += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    options += ["--device-memory-limit", "0"] if job.gpus else ["--nworkers", str(n_workers)]
    options += (
        ["--preload", MODULE] if job.gpus and is_tls_required() else []
    )  # dask-cuda takes none of a configuration
    own = {
        "queue": job.queue,
        "account": job.account,
        "walltime": job.walltime,
        "interface": job.interface,
        "protocol": job.protocol,
        "python": python,
        "processes": n_workers,
        "worker_command": "dask_cuda.cli" if job.gpus else "distributed.cli.dask_worker",
        "worker_extra_args": [*_get(system, "worker-extra-args"), *options],
        "job_name": "mgspmv",
        "job_script_prologue": [*_get(system, "job-script-prologue"), *_list_certificates()],
        "log_directory": str(logs),
    }
    directives = [*asked["job_extra_directives"], *_get(system, "job-extra-directives"), *job.directives]
    return asked | own | {"job_extra_directives": directives}


def _list_certificates() -> list[str]:
    """What a job says so that its workers find the certificates; nothing without TLS."""
    if not is_tls_required():
        return []
    config = Path(dask.config.get("distributed.comm.tls.worker.cert")).parent / "dask.yaml"
    if not config.is_file():
        raise OptionError(
            f"there is no {config}, by which workers of jobs find the certificates; `mgspmv certificates DIR` makes "
            "one with them"
        )
    return [f"export DASK_CONFIG={shlex.quote(str(config))}"]


def _choose_address(system: System, job: Job) -> str:
    """Of this machine: that of the interface which is asked for, else of the one that leads to other networks."""
    configured: Mapping[str, Any] = _get(system, "scheduler-options")
    interface = configured.get("interface") or job.interface or _get(system, "interface")
    try:
        return str(configured.get("host") or (get_ip_interface(interface) if interface else get_ip()))
    except ValueError as error:
        raise OptionError(f"this machine has no address at a network interface {interface} ({error})") from error


def _make(system: System, given: Mapping[str, Any], serving: Serving) -> Any:
    """A scheduler, and no jobs yet."""
    import dask_jobqueue

    kind = getattr(dask_jobqueue, system.cluster)

    class ClosedJob(kind.job_cls):  # type: ignore[misc, name-defined]
        """Says that it is closed when it is, which Dask asserts of those that somebody still holds at the end."""

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    options = dict(_get(system, "scheduler-options"))
    options.pop("interface", None)
    options |= {"host": serving.host, "port": serving.port, "dashboard_address": serving.dashboard_address}
    return kind(job_cls=ClosedJob, scheduler_options=options, silence_logs=serving.log_level, **given)


def _submit(system: System, cluster: Any, n_nodes: int) -> None:
    """Queue the jobs."""

    async def submit() -> None:
        cluster.scale(jobs=n_nodes)
        await cluster._correct_state()  # scale alone does not tell of errors

    try:
        cluster.sync(submit)
    except RuntimeError as error:
        said = str(error).partition("stderr:")[2] or str(error)
        lines = [line.strip().removeprefix(f"{system.submit}: ").removeprefix("error: ") for line in said.splitlines()]
        raise ClusterError(
            f"{system.name} refuses the job: {' / '.join(filter(None, lines))}; correct job=, or what jobqueue.yaml "
            "of Dask has",
            phase="start",
        ) from error


def _await_joined(
    system: System, cluster: Any, wanted: int, wait_s: float, on_wait: Callable[[str], None], logs: Path
) -> None:
    jobs = [str(job.job_id) for job in cluster.workers.values()]
    deadline, next_look = time.monotonic() + wait_s, 0.0
    told = f"waiting for jobs of {system.name}, which does not answer"
    while (joined := len(cluster.scheduler.workers)) < wanted:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"after {wait_s:g} s still {told}, so the jobs are cancelled; ask for less, wait longer by the job's "
                "key wait, or queue the whole command as a job, which deploy/ has scripts for",
                phase="start",
            )
        if time.monotonic() > next_look:
            states, next_look = system.look(jobs), time.monotonic() + _LOOK_S
            if states is None:
                continue
            if missing := [job for job in jobs if job not in states]:
                raise _explain_end(system, missing[0], logs)
            if (text := _describe_waiting(system, states, joined, wanted)) != told:
                on_wait(told := text)
        time.sleep(_JOIN_S)


def _describe_waiting(system: System, states: Mapping[str, str], joined: int, wanted: int) -> str:
    """Such as `waiting for 3 of 4 workers, jobs of Slurm: 1 RUNNING, 3 PENDING (Resources)`."""
    named = ", ".join(f"{count} {state}" for state, count in sorted(Counter(states.values()).items()))
    return f"waiting for {wanted - joined} of {wanted} workers, jobs of {system.name}: {named}"


def _explain_end(system: System, job: str, logs: Path) -> ClusterError:
    """Of a job that ended before its workers joined, with what it wrote last."""
    files = [path for path in logs.glob("*") if job.partition(".")[0] in path.name]
    lines = [line.strip() for path in files for line in path.read_text(errors="replace").splitlines() if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    said = " / ".join(exceptions[-1:] or lines[-SAID_LINES:]) or "nothing"
    return ClusterError(
        f"job {job} of {system.name} ended before its workers joined (said: {said}); nodes need the same mgspmv and "
        "Python as here, at the same path or that of remote_python=, and must reach this machine",
        phase="start",
    )
