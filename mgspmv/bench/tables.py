"""What the benchmark found, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mgspmv.bench.contenders import PEER_TITLES
from mgspmv.bench.machines import State
from mgspmv.bench.spmv import Record
from mgspmv.kernels.select import Backend

LEGEND = (
    "Times are medians; the fastest kernel of each matrix is in bold type.",
    "{peer} / best: how many times as fast that kernel is{peer_note}.",
    "GB/s: minimal bytes of the product from CSR, over the time of {shown}; of copy: over the bandwidth of a copy, "
    "{copy:,.4g} GB/s in this run.",
    "of roofline: the least time over that of {shown}. The least time is that of the minimal bytes at the rate of the "
    "copy, or of as many reads of x as there are nonzeros at the rate of random ones, whichever is longer; more than "
    "100 % says that columns are not random.",
)
PEER_NOTES = {"cpu": ", with one thread", "cuda": ", beside the faster of its two CSR algorithms, preprocessed"}
SHOWN = {"cpu": "csr-rows", "cuda": "csr-vector"}
"""The kernel whose bandwidth is in the table."""


def format_report(
    setting: Mapping[str, str],
    records: Sequence[Record],
    left_out: Mapping[str, str],
    backend: Backend,
    copy_bytes_per_s: float,
) -> str:
    """All tables, below what they were measured on."""
    kernels = list(dict.fromkeys(r.kernel for r in records if not r.is_peer))
    shown = SHOWN[backend] if SHOWN[backend] in kernels else "".join(kernels[:1])
    parts = format_setting(setting)
    for dtype in dict.fromkeys(r.dtype for r in records):
        own = [r for r in records if r.dtype == dtype]
        for state in dict.fromkeys(s for r in own for s in r.times):
            parts += [
                "",
                f"### {dtype}, {state} caches: ms",
                "",
                *_tabulate(own, state, kernels, shown, PEER_TITLES[backend]),
            ]
        parts += list(_list_problems(own))
    if records:
        parts += ["", *_explain(shown, backend, copy_bytes_per_s)]
    if left_out:
        parts += ["", "Matrices left out:", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join([*parts, ""])


def format_setting(setting: Mapping[str, str]) -> list[str]:
    """Lines that say what was measured, when and on what."""
    return ["```", *(f"{name + ':':<10}{value}" for name, value in setting.items()), "```"]


def _explain(shown: str, backend: Backend, copy_bytes_per_s: float) -> Iterator[str]:
    words = {"shown": shown, "peer": PEER_TITLES[backend], "peer_note": PEER_NOTES[backend]}
    for line in LEGEND:
        yield f"- {line.format(**words, copy=copy_bytes_per_s / 1e9)}"


def _tabulate(records: Sequence[Record], state: State, kernels: Sequence[str], shown: str, peer: str) -> Iterator[str]:
    titles = ["matrix", "rows", "nonzeros", *kernels, peer, f"{peer} / best", f"{shown} GB/s", "of copy", "of roofline"]
    yield format_row(titles)
    yield format_row(["---", *["---:"] * (len(titles) - 1)])
    for matrix in dict.fromkeys(r.matrix for r in records):
        yield format_row(_make_cells([r for r in records if r.matrix == matrix], kernels, shown, state))


def _make_cells(records: Sequence[Record], kernels: Sequence[str], shown: str, state: State) -> list[str]:
    """A line of the table, the best kernel in bold type."""
    by_kernel = {r.kernel: r for r in records}
    medians = {r.kernel: r.times[state].median_s for r in records if state in r.times}
    best = min((medians[k] for k in kernels if k in medians), default=None)
    peer = min((medians[r.kernel] for r in records if r.is_peer and r.kernel in medians), default=None)
    cells = [records[0].matrix, f"{records[0].n_rows:,}", f"{records[0].nnz:,}"]
    for kernel in kernels:
        if kernel in medians:
            text = format_ms(medians[kernel])
            cells.append(f"**{text}**" if medians[kernel] == best else text)
        else:
            cells.append("WRONG" if by_kernel[kernel].is_wrong else "–")
    cells += [format_ms(peer), "" if peer is None or best is None else f"{peer / best:.2f}"]
    if shown not in medians:
        return [*cells, "", "", ""]
    rated = by_kernel[shown]
    shares = f"{rated.copy_share[state]:.0%}", f"{rated.roofline_share[state]:.0%}"
    return [*cells, f"{rated.bytes_per_s[state] / 1e9:,.4g}", *shares]


def _list_problems(records: Sequence[Record]) -> Iterator[str]:
    """What was not timed, a line a kernel."""
    problems = [r for r in records if r.problem is not None]
    if not problems:
        return
    yield from ("", "Not timed:", "")
    for kernel in dict.fromkeys(r.kernel for r in problems):
        reasons = (f"{r.matrix} ({_describe_problem(r)})" for r in problems if r.kernel == kernel)
        yield f"- {kernel}: {', '.join(reasons)}"


def _describe_problem(record: Record) -> str:
    """What is wrong; for a matrix that does not suit a kernel, without what to do and without the kernel's name."""
    text = str(record.problem)
    if record.is_wrong:
        return f"WRONG: {text}"
    return re.split("; |, |: ", text.removeprefix(f"{record.kernel} would hold "))[0]


def format_ms(seconds: float | None) -> str:
    """Milliseconds, or nothing."""
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def format_row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
