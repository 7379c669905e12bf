"""PageRank on the GPUs of this machine, of which a rank is killed or stopped: recovered, or ended in words, in time.

    python -m tests.support.chaos.devices --workers 2 4 --json gpus.json

The program is started with `--cluster cuda` and keeps checkpoints. A while after the first one a worker is struck. What
ends with an error is started once more with `--resume`, and must end with the ranks of a run without faults. The exit
code is 1 where one did not, or took longer than it may. `--one-device` has all workers share one GPU as if each had its
own, on a host of its own: NCCL connects them by sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import psutil

from benchmarks.tables import Setting
from tests.support.chaos.programs import list_session
from tests.support.chaos.runs import ALPHA, find_saved, make_graph
from tests.support.chaos.verdicts import Ending, Verdict, Wanted, judge
from tests.support.commands import ENVIRONMENT, PROGRAM
from tests.support.waiting import wait_for

OWN_DEVICE = Path(__file__).with_name("own_device.py")
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
IN_TIME_S = 60.0
"""Within which a run is to have ended with an error, or more than without faults that it is to take at most."""
START_S = 300.0
"""For the first checkpoint, with CUDA's start, loading, and kernels that are compiled the first time."""
HANG_S = 300.0
TIMEOUT_S = 15.0
CHECKPOINT_EVERY_S = 2.0
TRIED = 300
"""Iterations by which it is found how many to do."""
TOO_LATE = "nothing was lost, as it was struck at its end; give it more --seconds"


@dataclass(frozen=True)
class Ended:
    """A run of the program."""

    ending: Ending
    seconds: float
    """From its start."""
    struck_s: float = 0.0
    """After which it was struck."""
    kept: str = ""
    """What it had kept by then."""


@dataclass(frozen=True)
class Row:
    """What became of a run that was struck."""

    workers: int
    transport: str
    fault: str
    struck: str
    verdict: str
    after_s: float
    """From the fault to the end of the program."""
    lost_s: float | None
    """More than without faults; None where it did not come to its end."""
    said: str
    resumed: str
    is_right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; 1 when one ended as it may not."""
    options = _parse(arguments)
    setting = Setting.observe("tests.support.chaos.devices", arguments)
    if options.one_device:
        options.cluster = "local"
        ENVIRONMENT.update({"DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{OWN_DEVICE}']", "NCCL_SOCKET_IFNAME": "lo"})
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="chaos-gpus-", dir=options.folder) as folder:
        store = Path(folder, "graph.zarr")
        make_graph(store, options.vertices)
        for workers, transport in product(options.workers, options.transports):
            command = [str(store), "--cluster", options.cluster, "--workers", str(workers), "--json"]
            command += ["--backend", "cuda"] * options.one_device
            command += ["--transport", transport, "--timeout", f"{TIMEOUT_S}", "--alpha", f"{ALPHA}"]
            own = Path(folder, f"{workers}-{transport}")
            own.mkdir()
            command += ["--norm", "fixed", "--max-iter", str(_count_iterations(command, own, options.seconds))]
            rows += strike_all(command, (workers, transport), options.faults, own)
            _say(f"{workers} workers, {transport}: {[(row.fault, row.verdict, row.is_right) for row in rows]}")
    if options.json:
        options.json.write_text(
            json.dumps({"setting": asdict(setting), "rows": [asdict(row) for row in rows]}, indent=1)
        )
    return int(not all(row.is_right for row in rows))


def strike_all(command: Sequence[str], known: tuple[int, str], faults: Sequence[str], folder: Path) -> list[Row]:
    """A run without faults, and one with each."""
    undisturbed = _run_whole(command, folder / "undisturbed")
    answer = undisturbed.ending.answer
    wanted = Wanted(answer["digest"], tuple(answer["changes"]))
    transport = f"{known[1]}: {answer['matrix']['transport']}"
    return [_strike(command, (known[0], transport), fault, folder, wanted, undisturbed.seconds) for fault in faults]


def _count_iterations(command: Sequence[str], folder: Path, seconds: float) -> int:
    """That take about so many seconds."""
    few = [*command, "--norm", "fixed", "--max-iter"]
    _run_whole([*few, "10"], folder / "first")  # kernels are compiled
    taken_s = _run_whole([*few, f"{TRIED}"], folder / "tried").ending.answer["seconds"]
    return round(TRIED * seconds / sum(taken_s[part] for part in ("product", "exchange", "schedule")))


def _run_whole(command: Sequence[str], folder: Path) -> Ended:
    """Run the program, which is to come to its end."""
    ended = _run(command, folder, None)
    if ended.ending.exit_code != 0:
        raise SystemExit(f"a run without faults failed: {ended.ending.describe()}")
    return ended


def _strike(
    command: Sequence[str], known: tuple[int, str], fault: str, folder: Path, wanted: Wanted, undisturbed_s: float
) -> Row:
    struck = _run(command, folder / fault, FAULTS[fault])
    verdict = judge(struck.ending, wanted)
    after_s, lost_s = struck.seconds - struck.struck_s, struck.seconds - undisturbed_s
    is_exact = verdict is Verdict.EXACT
    is_too_late = is_exact and not struck.ending.answer["recoveries"]
    resumed = ""
    if verdict is Verdict.ERROR:
        again = _run([*command, "--resume"], folder / fault, None)
        resumed = str(judge(again.ending, wanted, must_be_exact=True))
    is_right = verdict.is_right and resumed in ("", Verdict.EXACT)
    is_right &= (lost_s if is_exact else after_s) <= IN_TIME_S and not is_too_late
    when = f"{struck.struck_s:.1f} s, {struck.kept}"
    said = TOO_LATE if is_too_late else struck.ending.describe()
    return Row(*known, fault, when, str(verdict), after_s, lost_s if is_exact else None, said, resumed, is_right)


def _run(command: Sequence[str], folder: Path, sign: int | None) -> Ended:
    """Run the program, and send a signal to a worker of it some time after the first checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").unlink(missing_ok=True)
    given = ["--output", "ranks.zarr", "--overwrite", "--log", "log.jsonl", "--checkpoint", "run.zarr"]
    given += ["--checkpoint-every", f"{CHECKPOINT_EVERY_S}"]
    began_s, struck_s, kept = time.monotonic(), 0.0, ""
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        how = {"cwd": folder, "env": ENVIRONMENT, "stdout": out, "stderr": err, "start_new_session": True}
        process = subprocess.Popen([*PROGRAM, "pagerank", *command, *given], **how)
        try:
            if sign is not None:
                kept = _await_kept(process, folder / "log.jsonl")
                time.sleep(CHECKPOINT_EVERY_S / 2)
                struck_s = time.monotonic() - began_s
                os.kill(_find_worker(process.pid), sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(HANG_S)
            seconds, code = time.monotonic() - began_s, process.poll()
            wait_for(lambda: not list_session(process.pid), 10.0)
            left = tuple(list_session(process.pid)) if code is not None else ()
        finally:
            for pid in list_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        texts = [Path(folder, name).read_text() for name in ("out", "err")]
    ending = Ending(code, *texts, left, find_saved(folder / "ranks.zarr"))
    return Ended(ending, seconds, struck_s, kept)


def _await_kept(process: subprocess.Popen[bytes], log: Path) -> str:
    """What the program said of its first checkpoint."""

    def find() -> list[str]:
        if process.poll() is not None:
            raise SystemExit("the program ended before its first checkpoint; give it more --seconds")
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if '"checkpoint of iteration' in line]

    if not wait_for(find, START_S):
        raise SystemExit(f"no checkpoint came within {START_S:g} s")
    return str(json.loads(find()[0])["message"]).partition(":")[0]


def _find_worker(pid: int) -> int:
    """Id of the last worker that the program started, or that was forked from the server it started."""
    children = [(child, " ".join(child.cmdline())) for child in psutil.Process(pid).children()]
    workers = [child for child, command in children if "spawn_main" in command]
    workers += [forked for child, command in children if "forkserver" in command for forked in child.children()]
    return max((worker.create_time(), worker.pid) for worker in workers)[1]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], help="GPUs (2 4)")
    parser.add_argument("--transports", nargs="+", default=["auto", "nccl"], help="(auto nccl)")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), help="(kill stop)")
    parser.add_argument("--vertices", type=int, default=1 << 22, help="of the graph (2^22)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the iterations of each run (20)")
    parser.add_argument("--cluster", default="cuda", help="local tries it without GPUs (cuda)")
    parser.add_argument("--one-device", action="store_true", help="all workers share one GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for graph and checkpoints (a temporary folder)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
