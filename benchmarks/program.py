"""Command lines of the benchmarks: options that several share, and how a benchmark ends."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.measure import say
from mgspmv.errors import MgspmvError
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import has_device

PRECISIONS = ("float32", "exact")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser whose help is the module's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the file for all that was found; its folder must exist before anything is timed."""
    parser.add_argument("--json", type=parse_output, metavar="FILE", help="write all that was found")


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder for graphs, and files for what was found."""
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep the graphs here (a temporary folder)")
    add_json_option(parser)
    parser.add_argument("--markdown", type=parse_output, metavar="FILE", help="write the tables")


def add_backend_option(parser: argparse.ArgumentParser) -> None:
    """Add the choice of host or device."""
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="(cuda where there is one)")


def add_precision_option(parser: argparse.ArgumentParser, default: str = "both") -> None:
    """Add the precisions of iterations that are timed."""
    parser.add_argument("--precision", choices=(*PRECISIONS, "both"), default=default, help=f"({default})")


def add_matrix_options(parser: argparse.ArgumentParser, dtype: str) -> None:
    """Add the matrices of a product and what their values are."""
    parser.add_argument("stores", nargs="*", metavar="STORE", help="stored matrices")
    parser.add_argument("--matrix", action="append", default=[], metavar="NAME", help="a matrix of --list; repeatable")
    parser.add_argument("--dtype", choices=("float32", "float64", "both"), default=dtype, help=f"({dtype})")
    parser.add_argument("--values", action="store_true", default=None, help="give all values (as each is)")
    parser.add_argument("--pattern", action="store_false", dest="values", help="take values from all")


def choose_dtypes(asked: str) -> tuple[str, ...]:
    """Choose the dtypes that `both`, or one name, means."""
    return ("float32", "float64") if asked == "both" else (asked,)


def add_size_options(parser: argparse.ArgumentParser, most: str) -> None:
    """Add how often each is timed and how large made matrices are."""
    parser.add_argument("--rounds", type=parse_count, metavar="N", help=most)
    parser.add_argument(
        "--size", type=parse_count, metavar="N", help="entries of each made matrix, about (as --list names them)"
    )


def add_graph_options(parser: argparse.ArgumentParser, scale: int) -> None:
    """Add a stored graph, or the sizes of an R-MAT graph."""
    parser.add_argument("--store", metavar="STORE", help="a graph (an R-MAT graph is generated)")
    parser.add_argument("--scale", type=int, default=scale, help=f"of that, 2^scale vertices ({scale})")
    parser.add_argument("--edge-factor", type=int, default=16, help="of that, edges per vertex (16)")


def parse_output(text: str) -> Path:
    """Parse the name of a file that can be written."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, got {text!r}")
    return path


def parse_count(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def choose_backend(backend: str) -> Backend:
    """Choose the backend that was asked for; with `auto`, `cuda` where there is a device."""
    if backend == "auto":
        return "cuda" if has_device() else "cpu"
    return "cuda" if backend == "cuda" else "cpu"


def choose_precisions(asked: str) -> list[Any]:
    """Choose the precisions that `both`, or one name, means."""
    return [p for p in PRECISIONS if asked in (p, "both")]


def print_names(**listed: Sequence[tuple[str, str, str]]) -> None:
    """Print what can be named, by what it is."""
    for what, rows in listed.items():
        print(f"{what}:")
        widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
        for name, kind, text in rows:
            print(f"  {name:{widths[0]}}  {kind:{widths[1]}}  {text}")


def write_json(path: Path | None, found: dict[str, Any]) -> None:
    """Write what was found, where a file was given."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def end(report: str, what: str, wrong: Sequence[str]) -> int:
    """Print the tables; the exit code is 1 where something was wrong."""
    print(report)
    if wrong:
        say(f"error: wrong {what}: {'; '.join(wrong)}; see the tables")
    return int(bool(wrong))


def run_program(main: Callable[[], int]) -> NoReturn:
    """End this process with what `main` returns, or with an error in one line."""
    try:
        sys.exit(main())
    except MgspmvError as error:
        sys.exit(f"error: {error}")
