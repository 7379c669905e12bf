"""What the benchmark found, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

from benchmarks.contenders import PEER_TITLES
from benchmarks.machines import State
from benchmarks.tables import Setting, format_ms, format_row, format_setting
from mgspmv.kernels.catalogue import Backend

if TYPE_CHECKING:
    from benchmarks.spmv import Record

LEGEND = (
    "Times are medians; the fastest kernel of each matrix is in bold type, the one that `auto` is in italics.",
    "{peer} / best, {peer} / auto: how many times as fast these kernels are{peer_note}.",
    "auto GB/s: minimal bytes of the product from CSR, over its time; of copy: over the bandwidth of a copy, "
    "{copy:,.4g} GB/s in this run.",
    "of roofline: the least time over its time. The least is that of the minimal bytes at the rate of the copy, or as "
    "many random reads of x as there are nonzeros, at their rate, whichever is longer; more than 100 % says that "
    "columns are not random.",
)
PEER_NOTES = {"cpu": ", with one thread", "cuda": ", beside the faster of its two CSR algorithms, preprocessed"}
COUNTED = 1_000_000
"""Nonzeros from which a matrix counts for the means."""


def format_report(
    setting: Setting,
    records: Sequence[Record],
    left_out: Mapping[str, str],
    backend: Backend,
    copy_bytes_per_s: float,
) -> str:
    """All tables, below what they were measured on."""
    kernels = list(dict.fromkeys(r.kernel for r in records if not r.is_peer))
    parts = format_setting(setting)
    for dtype in dict.fromkeys(r.dtype for r in records):
        own = [r for r in records if r.dtype == dtype]
        for state in dict.fromkeys(s for r in own for s in r.times):
            parts += [
                "",
                f"### {dtype}, {state} caches: ms",
                "",
                *_tabulate(own, state, kernels, PEER_TITLES[backend]),
                *_sum_up(own, state, PEER_TITLES[backend]),
            ]
        parts += list(_list_problems(own))
    if records:
        parts += ["", *_explain(backend, copy_bytes_per_s)]
    if left_out:
        parts += ["", "Matrices left out:", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join([*parts, ""])


def _explain(backend: Backend, copy_bytes_per_s: float) -> Iterator[str]:
    words = {"peer": PEER_TITLES[backend], "peer_note": PEER_NOTES[backend]}
    for line in LEGEND:
        yield f"- {line.format(**words, copy=copy_bytes_per_s / 1e9)}"


def _tabulate(records: Sequence[Record], state: State, kernels: Sequence[str], peer: str) -> Iterator[str]:
    ratios = (f"{peer} / best", f"{peer} / auto")
    titles = ["matrix", "rows", "nonzeros", *kernels, peer, *ratios, "auto GB/s", "of copy", "of roofline"]
    yield format_row(titles)
    yield format_row(["---", *["---:"] * (len(titles) - 1)])
    for matrix in dict.fromkeys(r.matrix for r in records):
        yield format_row(_make_cells([r for r in records if r.matrix == matrix], kernels, state))


def _make_cells(records: Sequence[Record], kernels: Sequence[str], state: State) -> list[str]:
    """A line of the table, the best kernel in bold type."""
    by_kernel = {r.kernel: r for r in records}
    medians = {r.kernel: r.times[state].median_s for r in records if state in r.times}
    best, auto, peer = _find_best(records, state)
    cells = [records[0].matrix, f"{records[0].n_rows:,}", f"{records[0].nnz:,}"]
    for kernel in kernels:
        if kernel in medians:
            text = format_ms(medians[kernel])
            text = f"*{text}*" if kernel == auto else text
            cells.append(f"**{text}**" if kernel == best else text)
        else:
            cells.append("WRONG" if by_kernel[kernel].is_wrong else "–")
    ratios = [medians[peer] / medians[own] if peer and own else None for own in (best, auto)]
    cells += [format_ms(medians.get(peer or "")), *("" if r is None else f"{r:.2f}" for r in ratios)]
    if auto is None:
        return [*cells, "", "", ""]
    rated = by_kernel[auto]
    shares = f"{rated.copy_share[state]:.0%}", f"{rated.roofline_share[state]:.0%}"
    return [*cells, f"{rated.bytes_per_s[state] / 1e9:,.4g}", *shares]


def _find_best(records: Sequence[Record], state: State) -> tuple[str | None, str | None, str | None]:
    """The fastest kernel on a matrix, the one that `auto` is, and the fastest peer; None where there is none."""
    timed = [r for r in records if state in r.times]

    def find_fastest(of: list[Record]) -> str | None:
        return min(of, key=lambda r: r.times[state].median_s).kernel if of else None

    ranked = sorted((r.auto_rank, r.kernel) for r in timed if r.auto_rank is not None)
    own, peers = [r for r in timed if not r.is_peer], [r for r in timed if r.is_peer]
    return find_fastest(own), ranked[0][1] if ranked else None, find_fastest(peers)


def _sum_up(records: Sequence[Record], state: State, peer: str) -> Iterator[str]:
    """Geometric means and least ratios over the matrices that count."""
    found: dict[str, dict[str, float]] = {"best": {}, "auto": {}}
    for matrix in dict.fromkeys(r.matrix for r in records if r.nnz >= COUNTED):
        own = [r for r in records if r.matrix == matrix]
        medians = {r.kernel: r.times[state].median_s for r in own if state in r.times}
        best, auto, fastest = _find_best(own, state)
        for name, kernel in (("best", best), ("auto", auto)):
            if kernel is not None and fastest is not None:
                found[name][matrix] = medians[fastest] / medians[kernel]
    for name, ratios in found.items():
        if ratios:
            least = min(ratios, key=lambda matrix: ratios[matrix])
            mean = geometric_mean(list(ratios.values()))
            text = f"{peer} / {name}, {len(ratios)} matrices of {COUNTED:,} nonzeros or more: geometric mean {mean:.3f}"
            yield from ("", f"{text}, least {ratios[least]:.2f} ({least})")


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
