"""Runs on clusters that faults strike, each from a seed, and a page of what became of them.

    python -m tests.support.chaos.campaign --seeds 0:200 --parallel 2 --json chaos.json --markdown chaos.md

Seeds that the file has are not run again, so that a campaign that was broken off goes on. The exit code is 1 when a run
ended as it may not; its folder stays then, with all that its processes said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.tables import Setting
from tests.support.chaos.fleet import StartError
from tests.support.chaos.plans import KINDS, Plan, draw
from tests.support.chaos.runs import ITERATIONS, N_VERTICES, TIMEOUT_S, Record, StrikeError, Undisturbed, run_plan

HEADER = ("seed", "drive", "workers", "faults", "struck", "ended", "s", "lost s", "epochs", "kept", "said", "went on")
KIND_HEADER = ("fault", "runs", "exact", "clear error", "else", "median lost s", "most lost s")
SAID = 100
"""Characters of an error in the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; 1 when one ended as it may not."""
    options = _parse(arguments)
    setting = Setting.observe("tests.support.chaos.campaign", arguments)
    records = _load(options.json)
    with tempfile.TemporaryDirectory(prefix="chaos-graph-") as graphs:
        folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
        folder.mkdir(parents=True, exist_ok=True)
        undisturbed = measure(Undisturbed.compute(Path(graphs, "graph.zarr")), options.parallel, folder)
        left = [draw(seed) for seed in options.seeds if seed not in records]
        run_all(left, undisturbed, options, folder, records)
    chosen = [records[seed] for seed in options.seeds if seed in records]
    if options.markdown:
        options.markdown.write_text(write_page(chosen, setting, undisturbed))
    wrong = [record for record in chosen if not record.is_right]
    _say(f"{len(chosen)} runs: {_count([record.verdict for record in chosen])}; {len(wrong)} not as they may, {folder}")
    return int(bool(wrong))


def measure(undisturbed: Undisturbed, parallel: int, folder: Path) -> Undisturbed:
    """What runs without faults take, as many of them at a time as will be later."""
    seconds, iterating = {}, {}
    for drive in ITERATIONS:
        plan = Plan(-1, drive, False, (), "here")
        with ThreadPoolExecutor(parallel) as pool:
            records = list(pool.map(lambda _, plan=plan: run_plan(plan, undisturbed, folder), range(2 * parallel)))
        if not all(record.is_right for record in records):
            raise SystemExit(f"runs without faults end as they may not: {records}, {folder}")
        seconds[drive] = statistics.median(record.seconds for record in records)
        iterating[drive] = statistics.median(record.iterating_s for record in records)
        _say(f"{drive} without faults: {seconds[drive]:.1f} s, of which iterations {iterating[drive]:.1f} s")
    return replace(undisturbed, seconds=seconds, iterating_s=iterating)


def run_all(
    plans: Sequence[Plan],
    undisturbed: Undisturbed,
    options: argparse.Namespace,
    folder: Path,
    records: dict[int, Record],
) -> None:
    """Run these and add their records, which are written each time; those that cannot be run here are said."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(options.parallel))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # who interrupts waits for those that run
        runs = {}
        for plan in plans:
            if why := plan.why_not():
                _say(f"seed {plan.seed} is left out: {why}")
            else:
                runs[pool.submit(run_plan, plan, undisturbed, folder)] = plan
        for run in as_completed(runs):
            try:
                record = run.result()
            except (StartError, StrikeError) as error:
                _say(f"seed {runs[run].seed} has no result: {error}")
                continue
            records[record.seed] = record
            _say(f"seed {record.seed}: {record.verdict}, {record.seconds:.1f} s; {', '.join(record.faults)}")
            if not record.is_right:
                _say(f"    {record.said} {record.resumed}")
            if options.json:
                _save(options.json, records)


def write_page(records: Sequence[Record], setting: Setting, undisturbed: Undisturbed) -> str:
    """All that was found, in Markdown."""
    verdicts = _count([record.verdict for record in records])
    taken = ", ".join(f"{drive} {s:.1f} s ({ITERATIONS[drive]} iterations)" for drive, s in undisturbed.seconds.items())
    wrong = sum(not record.is_right for record in records)
    lines = [
        f"# {len(records)} runs with faults, {setting.date.partition(' ')[0]}",
        "",
        "What `tests/support/chaos/campaign.py` found; [faults.md](../faults.md) says what it does.",
        f"{N_VERTICES:,} vertices on four workers, `--timeout {TIMEOUT_S:g}`; runs without faults take: {taken}.",
        "",
        f"Ended: {verdicts}. Ended as they may not: {wrong}.",
        "What was not exact went on from its checkpoint to the exact ranks, where the last column does not say else.",
        "",
        "```measured",
        *setting.lines(),
        "```",
        "",
        "## By fault",
        "",
        *_tabulate(KIND_HEADER, [_describe_kind(kind, records) for kind in KINDS]),
        "",
        "## All runs",
        "",
        *_tabulate(HEADER, [_describe(record) for record in records]),
        "",
    ]
    return "\n".join(lines)


def _describe_kind(kind: str, records: Sequence[Record]) -> list[str]:
    """Of a kind of fault, the runs that it struck, whatever else did."""
    own = [r for r in records if any(f.startswith(kind) and s for f, s in zip(r.faults, r.struck, strict=True))]
    verdicts = Counter(record.verdict for record in own)
    known = [str(verdicts.pop(name, 0)) for name in ("exact", "clear error")]
    lost = [record.lost_s for record in own if record.lost_s is not None]
    return [
        kind,
        str(len(own)),
        *known,
        ", ".join(f"{n} {name}" for name, n in verdicts.items()),
        f"{statistics.median(lost):.1f}" if lost else "",
        f"{max(lost):.1f}" if lost else "",
    ]


def _describe(record: Record) -> list[str]:
    return [
        str(record.seed),
        record.drive,
        record.workers,
        "; ".join(record.faults),
        "; ".join(when or "not" for when in record.struck),
        record.verdict,
        f"{record.seconds:.1f}",
        "" if record.lost_s is None else f"{record.lost_s:+.1f}",
        str(record.epochs or ""),
        str(record.kept or ""),
        record.said[:SAID],
        record.resumed[:SAID],
    ]


def _tabulate(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *cells)]


def _count(names: Sequence[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in Counter(names).most_common())


def _load(path: Path | None) -> dict[int, Record]:
    if path is None or not path.exists():
        return {}
    return {own["seed"]: Record(**own) for own in json.loads(path.read_text())["records"]}


def _save(path: Path, records: dict[int, Record]) -> None:
    text = json.dumps({"records": [asdict(records[seed]) for seed in sorted(records)]}, indent=1)
    beside = path.with_suffix(".part")
    beside.write_text(text)
    beside.replace(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_read_seeds, default=range(20), metavar="A:B|A,B", help="which runs (0:20)")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at a time (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was found; seeds that it has are not run again")
    parser.add_argument("--markdown", "-o", type=Path, metavar="FILE", help="write a page of all")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for the files of runs (a temporary folder)")
    return parser.parse_args(arguments)


def _read_seeds(text: str) -> Sequence[int]:
    first, sign, last = text.partition(":")
    return range(int(first), int(last)) if sign else [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
