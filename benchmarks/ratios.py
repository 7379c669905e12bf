"""Compare the times that two versions found: files that `--json` of pagerank, spmv and calls wrote.

    python -m benchmarks.ratios --before old-1.json old-2.json --after new-1.json new-2.json > ratios.md

Of each version the median of its files counts. A ratio above 1 says that the version after is faster. The exit code is
1 where a ratio is below --least, where a result was wrong, or where a version lacks what the other has timed.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.program import make_parser, run_program
from benchmarks.tables import format_ms, format_row

Key = tuple[str, str, str]
"""Matrix; program, kernel or precision; what was timed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the version after is slower, or wrong."""
    options = _parse(arguments)
    before, after = (collect_times(paths) for paths in (options.before, options.after))
    kept = [key for key in before if options.all or not key[1].startswith(("cu", "scipy"))]
    print("\n".join(format_ratios(before, after, kept)))
    ratios = {key: find_ratio(before, after, key) for key in kept}
    slower = [f"{' '.join(key)}: {ratio:.3f}" for key, ratio in ratios.items() if ratio < options.least]
    missing = sorted(" ".join(key) for key in set(before) ^ set(after))
    for said, found in (("below the least ratio", slower), ("in one version only", missing)):
        if found:
            print(f"\n{said}: {'; '.join(found)}")
    return int(bool(slower or missing))


def collect_times(paths: Sequence[Path]) -> dict[Key, list[float]]:
    """Collect the seconds in files, of each thing that was timed.

    Raises
    ------
    SystemExit : a file holds a result that was wrong
    """
    times: dict[Key, list[float]] = defaultdict(list)
    for path in paths:
        for record in json.loads(path.read_text())["records"]:
            if record.get("is_wrong"):
                raise SystemExit(f"{path}: a result was wrong: {record}")
            for key, seconds in _find_times(record):
                times[key].append(seconds)
    return dict(times)


def _find_times(record: dict[str, Any]) -> Iterator[tuple[Key, float]]:
    if "kernel" in record:
        for state, found in record.get("times", {}).items():
            yield (record["matrix"], f"{record['kernel']}, {record['dtype']}", state), found["median_s"]
    else:
        for what in ("iteration_s", "prepare_s", "call_s"):
            if record.get(what) is not None:
                yield (record["graph"], record["contender"], what.removesuffix("_s")), record[what]


def find_ratio(before: dict[Key, list[float]], after: dict[Key, list[float]], key: Key) -> float:
    """Divide the median before by that after; NaN where one is missing."""
    return median(before[key]) / median(after[key]) if key in before and key in after else float("nan")


def format_ratios(before: dict[Key, list[float]], after: dict[Key, list[float]], keys: Sequence[Key]) -> list[str]:
    """Format a row for each thing that was timed in both."""
    header = ["matrix", "of", "time", "before, ms", "after, ms", "ratio"]
    rows = [format_row(header), format_row(["---", "---", "---", "---:", "---:", "---:"])]
    for key in keys:
        if key in after:
            ratio = f"{find_ratio(before, after, key):.3f}"
            rows.append(format_row([*key, format_ms(median(before[key])), format_ms(median(after[key])), ratio]))
    return rows


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    files: dict[str, Any] = {"type": _parse_file, "nargs": "+", "required": True, "metavar": "FILE"}
    parser.add_argument("--before", **files)
    parser.add_argument("--after", **files)
    parser.add_argument("--least", type=float, default=0.97, help="ratio (0.97)")
    parser.add_argument("--all", action="store_true", help="other programs too")
    return parser.parse_args(arguments)


def _parse_file(text: str) -> Path:
    path = Path(text)
    try:
        json.loads(path.read_text())["records"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise argparse.ArgumentTypeError(f"expected a file that --json of a benchmark wrote, got {text!r}") from error
    return path


if __name__ == "__main__":
    run_program(main)
