"""Tables of what is listed in the program: exit codes, kernels, and definitions to copy."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_tables import escape, make_table, show_code

from mgspmv import errors
from mgspmv.cli import app
from mgspmv.kernels.catalogue import KERNELS

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"(\d+) ([^,.]+)")


def write_exit_codes() -> str:
    """A row for each exit code that the program's help names."""
    by_code: dict[int, list[str]] = {}
    for name, value in vars(errors).items():
        if name.endswith("Error"):
            by_code.setdefault(value.exit_code, []).append(f"[`{name}`][mgspmv.errors.{name}]")
    codes = CODE.findall(str(app.info.epilog))
    rows = ((code, meaning, ", ".join(by_code.get(int(code), ()))) for code, meaning in codes)
    return make_table(("code", "means", "errors"), rows)


def write_kernels() -> str:
    """A row for each kernel."""
    rows = (
        (
            show_code(own.name),
            *map(", ".join, (own.backends, own.step_backends)),
            *map(escape, (own.summary, own.needs or "", own.literature)),
        )
        for own in KERNELS.values()
    )
    return make_table(("kernel", "products on", "PageRank on", "does", "needs", "source"), rows)


def write_definitions() -> str:
    """Each definition as it is, below its name."""
    return "\n".join(
        f"## {path.name}\n\n[Download](pipelines/{path.name})\n\n```toml\n{path.read_text()}```\n"
        for path in sorted((ROOT / "pipelines").glob("*.toml"))
    )
