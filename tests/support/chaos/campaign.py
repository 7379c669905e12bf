"""Runs that faults strike, drawn from seeds: which faults, when, for how long, and where the run resumes.

    python -m tests.support.chaos.campaign --seeds 60 -o campaign.md

It prints a line per seed, and ends with code 1 if a run ended neither exactly nor with a clear error from whose
checkpoint it could resume. Needs root and `ip` for hosts that are cut off; such faults are not drawn without.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.tables import Setting, format_markdown
from tests.support.chaos.faults import PHASES, Cut, Fault, Interrupt, Kill, Moment, Retire, Stop
from tests.support.chaos.fleet import N_WORKERS, StartError
from tests.support.chaos.plans import Plan
from tests.support.chaos.runs import StrikeError, Undisturbed, run_plan
from tests.support.hosts import why_not_split

WORKERS = tuple(f"w{k}" for k in range(N_WORKERS))
MOST_FAULTS = 3
HEALS_S = (0.5, 2.0, 9.0)
"""Seconds after which a fault that can be undone is undone: before, about, and after the timeout of the runs."""
HEADER = ("seed", "executor", "faults", "struck", "ended", "resumed")


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    draw = random.Random(seed)
    executor = draw.choice(("supersteps", "supersteps", "tasks"))
    faults = tuple(_draw_fault(draw) for _ in range(draw.randint(1, MOST_FAULTS)))
    return Plan(faults, executor, draw.random() < 0.3, draw.choice(("here", "afresh", "again")))


def _draw_fault(draw: random.Random) -> Fault:
    moment = Moment(draw.choice([*PHASES, "iterate", "iterate"]), round(draw.random(), 2))
    kinds = [Kill, Kill, Stop, Retire, Interrupt] + ([] if why_not_split() else [Cut])
    kind = draw.choice(kinds)
    if kind is Interrupt:
        return Interrupt(moment)
    if kind is Retire:
        return Retire(moment, draw.choice(WORKERS))
    target = draw.choice((*WORKERS, *WORKERS, "scheduler", "driver"))
    if kind is Kill:
        return Kill(moment, target)
    # A program that is stopped for good hangs, as it should.
    heal_s = draw.choice(HEALS_S if target == "driver" else (None, *HEALS_S))
    return Stop(moment, target, heal_s=heal_s) if kind is Stop else Cut(moment, target, heal_s=heal_s)


def main() -> int:
    """Run the plans of all seeds; 1 if one ended as none may."""
    options = _parse()
    setting = Setting.observe("tests.support.chaos.campaign", sys.argv[1:])
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="mgspmv-campaign-") as name:
        folder = Path(name)
        undisturbed = Undisturbed.compute(folder / "graph.zarr")
        for seed in range(options.first, options.first + options.seeds):
            plan = draw_plan(seed)
            try:
                record = run_plan(plan, undisturbed, folder)
            except (StrikeError, StartError) as error:  # says nothing of mgspmv
                row = (f"{seed}", plan.executor, "; ".join(map(str, plan.faults)), f"{error}", "not counted", "")
            else:
                struck = "; ".join(at or "not" for at in record.struck)
                row = (f"{seed}", plan.executor, "; ".join(record.faults), struck, record.verdict, record.resumed)
                wrong += not record.is_right
            rows.append(row)
            print(" | ".join(row), flush=True)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in Counter(row[4] for row in rows).most_common())
    legend = (f"ended: {counts}; ended as none may, or could not resume: {wrong}.",)
    print(legend[0])
    if options.output:
        options.output.write_text(format_markdown([("Runs", [HEADER, *rows])], setting, legend))
    return int(wrong > 0)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60, help="number of seeds (60)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("-o", "--output", type=Path, help="write a table in Markdown here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
