"""Checks of a cluster: its workers, their versions, clocks, limits and GPUs, what they reach, and an all-gather."""

from __future__ import annotations

import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from mgspmv.distribute.agent import TIME_OP
from mgspmv.distribute.cluster import CHECKED, Cluster, WorkerInfo, list_differences
from mgspmv.distribute.gathering import gather_on_cluster, settle_within
from mgspmv.distribute.places import choose_places
from mgspmv.doctor.findings import Check, Finding, Findings, name_check, ok, shorten, skip, warn, wrong
from mgspmv.doctor.storage import check_store
from mgspmv.errors import ClusterError, MgspmvError, WorkerTimeoutError
from mgspmv.exchange.direct import name_host
from mgspmv.exchange.links import Member
from mgspmv.model import default_threads

ROUND_TRIPS = 8
"""To each worker, of which the quickest tells its clock."""
SKEW_S, WRONG_SKEW_S = 1.0, 300.0
"""Seconds that a clock may differ: above the first, times in logs mislead; above the other, certificates and signed
requests to object stores are refused, some of them."""
SLOW_LATENCY_S = 0.05
"""Of an exchange between workers, many of which are an iteration's least."""
SLOW_BYTES_PER_S = 100e6
"""Received by each worker, about that of a network of 1 Gbit/s."""
LOOKED_HOSTS = 16
"""Machines whose own checks are made, at most."""


@dataclass
class Reached:
    """A cluster, and what checks before found out of it.

    Parameters
    ----------
    stores : paths and URLs that workers are to read
    examine : makes the checks of a machine; called on one worker of each
    """

    cluster: Cluster
    limit_s: float
    stores: Sequence[str] = ()
    examine: Callable[[float], list[Finding]] | None = None
    workers: list[WorkerInfo] = field(default_factory=list)
    """Those that answered."""

    @property
    def members(self) -> list[Member]:
        """Of these workers."""
        return [worker.member for worker in self.workers]


class _BusyError(Exception):
    """Another run has the lease."""


def make_cluster_checks(reached: Reached) -> list[Check]:
    """All checks of a cluster, in the order in which they build on each other."""
    functions = (
        check_worker_versions,
        check_workers,
        check_worker_limits,
        check_clock_skew,
        check_worker_gpus,
        check_all_gather,
        check_worker_machines,
        check_worker_stores,
    )
    return [
        Check(name_check(function), "cluster", partial(_catch, partial(function, reached))) for function in functions
    ]


def _catch(find: Callable[[], Findings]) -> Iterator[Finding]:
    """What a check finds; where a run has the workers, or they fail, this is what it finds."""
    try:
        found = find()
        yield from [found] if isinstance(found, Finding) else found
    except _BusyError:
        yield skip("another run has the workers; ask again when it has ended")
    except MgspmvError as error:
        yield _blame_cluster(error)


def check_worker_versions(reached: Reached) -> Findings:
    """Whether all workers have the versions of this process."""
    members = list(reached.cluster.describe_workers())
    answers = reached.cluster.ask_each(members, {"op": "versions", "packages": [*CHECKED]}, reached.limit_s)
    found = {m: answer["packages"] for m, answer in answers.items() if not isinstance(answer, Exception)}
    if not found:
        return skip("no worker answered")
    differences = list_differences(found)
    if not differences:
        return ok(f"{len(found)} workers have the versions of this process", workers=len(found))
    return wrong(
        "; ".join(differences),
        "A run would be refused: ranks could differ in bits, and what is sent could not be read.",
        "Install the same versions on all workers as here, and start the workers again.",
        differences=differences,
    )


def check_workers(reached: Reached) -> Iterator[Finding]:
    """Whether there are workers, and all of them run and answer."""
    described = reached.cluster.describe_workers()
    paused = [str(m) for m, worker in described.items() if worker["status"] != "running"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that do not answer, which are named below
        reached.workers = reached.cluster.join(devices=True)
    joined = {member.address for member in reached.members}
    silent = [str(m) for m in described if m.address not in joined and str(m) not in paused]
    values = {"workers": len(described), "threads": sum(w.threads for w in reached.workers)}
    if paused:
        yield warn(
            f"{_list(paused)} {'is' if len(paused) == 1 else 'are'} not running",
            "Runs leave out workers that Dask has paused or is closing.",
            "Give them more memory, or start them with --memory-limit 0; restart those that do not come back.",
            paused=paused,
        )
    if silent:
        yield wrong(
            f"{_list(silent)} {'does' if len(silent) == 1 else 'do'} not answer",
            "A run would begin without these workers, or be ended by them.",
            "Look at their logs and machines, and restart them.",
            silent=silent,
        )
    if not (paused or silent):
        yield ok(f"{values['workers']} workers of {values['threads']} threads in all answer", **values)


def check_worker_limits(reached: Reached) -> Iterator[Finding]:
    """Whether Dask limits the memory of workers, and whether machines have a processor for each of their threads."""
    if not reached.workers:
        yield _skip_without_workers()
        return
    described = reached.cluster.describe_workers()
    limited = [str(member) for member in reached.members if described.get(member, {}).get("memory_limit")]
    crowded = _find_crowded(reached)
    values = {"limited": limited, "crowded": crowded}
    if limited:
        yield warn(
            f"Dask limits the memory of {_list(limited)}",
            "It counts rows as memory that nobody manages, pauses a worker that holds many of them, and restarts it.",
            "Start workers with --memory-limit 0; what they will hold is compared with what is free before it is read.",
            **values,
        )
    if crowded:
        first = crowded[0]
        more = f", and {len(crowded) - 1} machines likewise" if len(crowded) > 1 else ""
        yield warn(
            f"the workers on the machine of worker {first['worker']} have {first['threads']} threads for "
            f"{first['processors']} processors{more}",
            "Threads that share processors make each other wait, and every iteration with them.",
            "Start fewer workers there, or give them fewer threads (--nthreads).",
            **values,
        )
    if not (limited or crowded):
        yield ok("no worker has a limit of memory, and each of their threads has a processor", **values)


def _find_crowded(reached: Reached) -> list[dict[str, Any]]:
    """Machines with more threads of workers than processors, each by its first worker."""
    with reached.cluster.lease(_refuse):
        told = _run(reached, reached.members, tell_processors)
    hosts: dict[str, dict[str, Any]] = {}
    for worker, (host, processors) in zip(reached.workers, told, strict=True):
        own = hosts.setdefault(host, {"worker": str(worker.member), "threads": 0, "processors": processors})
        own["threads"] += worker.threads
    return [own for own in hosts.values() if own["threads"] > own["processors"]]


def tell_processors() -> tuple[str, int]:
    """The machine that this is, and how many of its processors this process may use."""
    return name_host(), default_threads()


def check_clock_skew(reached: Reached) -> Findings:
    """How far the clocks of workers are from that of this process: by the midpoint of the quickest round trip."""
    if not reached.workers:
        return _skip_without_workers()
    skews: dict[str, float] = {}
    doubt: dict[str, float] = {}
    silent = []
    deadline = time.monotonic() + reached.limit_s
    for member in reached.members:
        trips = []
        for _ in range(ROUND_TRIPS):
            if (trip := _time_trip(reached.cluster, member, reached.limit_s)) is not None:
                trips.append(trip)
            if time.monotonic() > deadline:
                break
        if not trips:
            silent.append(str(member))
            continue
        round_trip_s, skew_s = min(trips)
        skews[str(member)], doubt[str(member)] = skew_s, round_trip_s / 2
    return _judge_skews(skews, doubt, silent)


def _time_trip(cluster: Cluster, member: Member, wait_s: float) -> tuple[float, float] | None:
    """Seconds of a round trip to a worker, and how far its clock is ahead; None where there was no answer."""
    began, before = time.time(), time.perf_counter()
    told = cluster.ask_each([member], {"op": TIME_OP}, wait_s)[member]
    round_trip_s = time.perf_counter() - before
    return None if isinstance(told, Exception) else (round_trip_s, told - (began + round_trip_s / 2))


def _judge_skews(skews: dict[str, float], doubt: dict[str, float], silent: list[str]) -> Iterator[Finding]:
    if silent:
        yield wrong(
            f"{_list(silent)} did not tell the time",
            "A worker that does not answer ends the run that it is in.",
            "Look at their logs and machines, and restart them.",
            silent=silent,
        )
    if not skews:
        return
    values = {"skew_s": skews, "uncertainty_s": doubt}
    late = {name: skew for name, skew in skews.items() if abs(skew) - doubt[name] > SKEW_S}
    most = max(map(abs, skews.values()))
    if not late:
        yield ok(f"clocks of workers differ from that of this process by {1e3 * most:.3g} ms at most", **values)
        return
    judge = wrong if most > WRONG_SKEW_S else warn
    yield judge(
        f"clocks are off: {_list([f'{name} is {_show_skew(skew)}' for name, skew in late.items()])}",
        "Times in logs and traces of different machines cannot be compared; clocks minutes apart have object stores "
        "refuse requests and TLS refuse certificates.",
        "Have NTP set the clocks: `timedatectl set-ntp true`, or chrony, on these machines.",
        **values,
    )


def check_worker_gpus(reached: Reached) -> Findings:
    """Whether the workers that have GPUs have one each, all of one kind, and NCCL."""
    if not reached.workers:
        return _skip_without_workers()
    with_gpu = [w for w in reached.workers if w.device.problem is None]
    if not with_gpu:
        return skip(f"no worker has a GPU: {reached.workers[0].device.problem}")
    return list(_judge_gpus(reached.workers, with_gpu))


def _judge_gpus(workers: list[WorkerInfo], with_gpu: list[WorkerInfo]) -> Iterator[Finding]:
    kinds = Counter(w.device.name for w in with_gpu)
    values = {"gpus": dict(kinds), "workers": len(workers)}
    without = [str(w.member) for w in workers if w.device.problem is not None]
    if without:
        yield warn(
            f"{_list(without)} {'has' if len(without) == 1 else 'have'} no GPU, and {len(with_gpu)} others have",
            "Slices go through the hosts then, and the GPUs wait for processors in every iteration.",
            "Start one worker for each GPU with `dask cuda worker`, and no others.",
            without=without,
        )
    counts = Counter(w.device.id for w in with_gpu)
    sharing = [str(w.member) for w in with_gpu if counts[w.device.id] > 1]
    if sharing:
        yield warn(
            f"{_list(sharing)} share GPUs",
            "They take turns on it, and NCCL cannot be used between them.",
            "Start one worker for each GPU, which `dask cuda worker` does and `dask worker` does not.",
            sharing=sharing,
        )
    if len(kinds) > 1:
        yield warn(
            "the GPUs are of several kinds: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()),
            "Rows are shared out by the speed of their memory; the smallest decides what fits where all hold alike.",
            "Use GPUs of one kind in one cluster.",
            **values,
        )
    without_nccl = {str(w.member): w.device.nccl_problem for w in with_gpu if w.device.nccl_problem is not None}
    if without_nccl:
        yield wrong(
            f"{_list(list(without_nccl))} cannot use NCCL: {next(iter(without_nccl.values()))}",
            "Slices go through the hosts then, which takes many times as long.",
            "Install mgspmv[cuda12] or mgspmv[cuda13], which bring NCCL, on these workers.",
            without_nccl=without_nccl,
        )
    if not (without or sharing or len(kinds) > 1 or without_nccl):
        yield ok(", ".join(f"{n} {kind}" for kind, n in kinds.items()) + ", one for each worker", **values)


def check_all_gather(reached: Reached) -> Iterator[Finding]:
    """Whether small vectors reach all workers, by the transports that runs take, and how soon."""
    if not reached.workers:
        yield _skip_without_workers()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shared GPUs, which `check_worker_gpus` tells
        taken = choose_places(reached.workers, "auto", "auto").transport
    yield _gather(reached, "peer")
    if taken == "nccl":
        yield _gather(reached, "nccl")


def _gather(reached: Reached, transport: Literal["peer", "nccl"]) -> Finding:
    try:
        with reached.cluster.lease(_refuse):
            found = gather_on_cluster(reached.cluster, reached.members, transport, reached.limit_s)
    except _BusyError:
        raise
    except Exception as error:  # ours, Dask's for a worker that died, or CuPy's
        return wrong(
            f"by {transport}: {shorten(error)}",
            "A run would end in the same way.",
            "Restart the workers that are named. Look whether the network and its firewall let every worker connect to "
            "every other, on all ports, and whether other tasks take the workers' threads.",
            transport=transport,
            error=type(error).__name__,
        )
    problems = [one.problem for one in found if one.problem is not None]
    if problems:
        return wrong(
            f"by {transport}: {problems[0]}",
            "Ranks would be wrong, or the run would be ended by its checks.",
            "Between GPUs: switch off ACS in the firmware, or the IOMMU, and set NCCL_P2P_DISABLE=1 until then. Else "
            "look for damaged memory or network cards.",
            transport=transport,
            problems=problems,
        )
    return _judge_gathered(transport, len(found), found)


def _judge_gathered(transport: str, n: int, found: Sequence[Any]) -> Finding:
    latency_s, rate = max(one.latency_s for one in found), min(one.bytes_per_s for one in found)
    values: dict[str, Any] = {"transport": transport, "workers": n, "latency_s": latency_s, "bytes_per_s": rate}
    if transport == "nccl":
        values["direct"] = all(one.is_direct for one in found)
    if n == 1:
        return ok(f"by {transport}: there is one worker, which has nobody to send to", **values)
    how = " (runs write directly)" if values.get("direct") else ""
    said = f"by {transport}{how}: {n} workers in {1e3 * latency_s:.3g} ms, each receives {rate / 1e6:.3g} MB/s"
    if latency_s > SLOW_LATENCY_S or rate < SLOW_BYTES_PER_S:
        return warn(
            said,
            "Every iteration waits for at least one such exchange, however many workers there are.",
            "Use a faster network between the workers (--interface of `dask worker` chooses one), fewer workers with "
            "more threads, or end what else the machines do.",
            **values,
        )
    return ok(f"{said}, with the right sums", **values)


def check_worker_machines(reached: Reached) -> Iterator[Finding]:
    """The checks of a machine, on one worker of each that is not this one."""
    if not reached.workers or reached.examine is None:
        yield _skip_without_workers()
        return
    with reached.cluster.lease(_refuse):
        yield from _examine_machines(reached, reached.examine)


def _examine_machines(reached: Reached, examine: Callable[[float], list[Finding]]) -> Iterator[Finding]:
    hosts = _run(reached, reached.members, name_host)
    others: dict[str, Member] = {}
    for member, host in zip(reached.members, hosts, strict=True):
        if host != name_host():
            others.setdefault(host, member)
    chosen = list(others.values())[:LOOKED_HOSTS]
    said = f", of which {LOOKED_HOSTS} were looked at" if len(others) > LOOKED_HOSTS else ""
    yield ok(
        f"machines that workers are on: {len(set(hosts))}, of which not this one: {len(others)}{said}",
        machines=len(set(hosts)),
        others=len(others),
    )
    if chosen:
        found = _run(reached, chosen, partial(examine, reached.limit_s), reached.limit_s * 20)
        for member, findings in zip(chosen, found, strict=True):
            yield from (replace(finding, where=f"the machine of worker {member}") for finding in findings)


def check_worker_stores(reached: Reached) -> Iterator[Finding]:
    """Whether every worker reads what is named, all at the same time."""
    if not reached.stores:
        yield skip("no path or URL was named")
        return
    if not reached.workers:
        yield _skip_without_workers()
        return
    for store in reached.stores:
        with reached.cluster.lease(_refuse):
            found = _run(reached, reached.members, partial(check_store, store))
        yield _judge_stores(store, reached.members, found)


def _judge_stores(store: str, members: Sequence[Member], found: Sequence[Finding]) -> Finding:
    by_status: dict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for member, finding in zip(members, found, strict=True):
        by_status[finding.status].append((str(member), finding))
    values = {"store": store, "workers": {str(m): dict(f.values) for m, f in zip(members, found, strict=True)}}
    for status in ("wrong", "warning"):
        if by_status[status]:
            names = [name for name, _ in by_status[status]]
            _, first = by_status[status][0]
            remedy = first.remedy
            if status == "wrong":
                remedy = f"The path or URL must lead all workers to the same data. {remedy}"
            return replace(first, found=f"{_list(names)}: {first.found}", remedy=remedy, values=values)
    rate = sum(finding.values["bytes_per_s"] for finding in found)
    return ok(f"{len(found)} workers read {store} with {rate / 1e6:.3g} MB/s together", **values)


def _run(
    reached: Reached, members: Sequence[Member], task: Callable[[], Any], limit_s: float | None = None
) -> list[Any]:
    """What a function gives on each of these workers."""
    token = uuid.uuid4().hex
    futures = [reached.cluster.submit(member, f"mgspmv-doctor-{token}-{k}", task) for k, member in enumerate(members)]
    try:
        return settle_within(reached.cluster, futures, members, "doctor", limit_s or reached.limit_s)
    finally:
        reached.cluster.release(futures)


def _refuse() -> None:
    raise _BusyError


def _skip_without_workers() -> Finding:
    return skip("there are no workers that answer; see what else is said of them")


def _blame_cluster(error: MgspmvError) -> Finding:
    is_late = isinstance(error, WorkerTimeoutError)
    return wrong(
        shorten(error, 1000),
        "No run can begin on this cluster." if isinstance(error, ClusterError) else "A run would end in the same way.",
        "Look at the logs of the workers that are named, and restart them."
        if is_late
        else "Start the scheduler and workers, with the same versions as here, and look at their logs.",
        error=type(error).__name__,
    )


def blame_connection(error: MgspmvError) -> Finding:
    """What is wrong where a cluster could not be reached or started."""
    return wrong(
        shorten(error, 1000),
        "Nothing can run on this cluster.",
        "Start the cluster, look at its scheduler's log, and give the address that it prints, such as "
        "--scheduler tcp://10.0.0.1:8786; for --cluster cuda install mgspmv[cuda12] or mgspmv[cuda13].",
        error=type(error).__name__,
    )


def _list(names: Sequence[str], most: int = 5) -> str:
    said = f"worker{'s' if len(names) > 1 else ''} {', '.join(names[:most])}"
    return said if len(names) <= most else f"{said} and {len(names) - most} more"


def _show_skew(skew_s: float) -> str:
    return f"{abs(skew_s):.3g} s {'ahead' if skew_s > 0 else 'behind'}"
