"""The graphs of the PageRank benchmark: CSR of in-edges, rows are destinations, columns are sources.

Made by rule as the matrices of `benchmarks.matrices` are, to the same bits on the host and on a device. R-MAT of
those has b = c, so that it is as likely as its transpose and stands here as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from zarr.storage import MemoryStore

import mgspmv as mg
from benchmarks.matrices import (
    DATA_VARIABLE,
    PIECE,
    REAL,
    RECIPES,
    Arrays,
    Recipe,
    build_from_keys,
    choose_numbers,
    cut_range,
    find_keys,
    find_offsets,
    find_real,
    find_rmat_keys,
    make_counters,
    make_stencil,
)
from mgspmv.ingest.generate import derive_keys, random_words, scale_words, scramble_ids
from mgspmv.model import CsrBlock
from mgspmv.store.read import open_store

HOST_PAGES = 1024
"""Vertices of a host of `web`, which are consecutive."""
WEB_ARCS = 12
"""Arcs of `web` a vertex, before those that come again are dropped."""
NEAR_HOSTS = 4
"""How far off, on either side, the hosts are to which local arcs of `web` go; an eighth of them does."""

CITED = 6
"""Arcs of `citations` a vertex."""

_HOST, _NEAR, _CHOICE, _TARGET, *_ = derive_keys(5)


# --- degrees ---------------------------------------------------------------------------------------------------------


def count_out_arcs(xp: Arrays, block: CsrBlock) -> Any:
    """Out-degree of each vertex, arcs that come again included: (n,) float64, the weights of PageRank."""
    degree = xp.zeros(block.n_cols, np.int64)
    for begin in range(0, block.nnz, PIECE):
        degree += xp.bincount(block.indices[begin : begin + PIECE], minlength=block.n_cols)
    return degree.astype(np.float64)


def find_isolated(xp: Arrays, block: CsrBlock, weight: Any) -> Any:
    """Which vertices have no arcs at all: (n,) bool."""
    return (weight == 0) & (xp.diff(block.indptr) == 0)


# --- made ones -------------------------------------------------------------------------------------------------------


def _make_grid(xp: Arrays, size: int) -> CsrBlock:
    """A square of streets in both directions; one vertex in a hundred has besides an arc to a random one."""
    side = max(2, math.isqrt(size // 4))
    offsets = find_offsets(2, 5)
    grid = make_stencil(xp, (side, side), offsets[offsets.any(axis=1)])
    n = grid.n_rows
    has_shortcut = random_words(_CHOICE, make_counters(xp, 0, n)) < np.uint64(2**64 // 100)
    sources = xp.flatnonzero(has_shortcut)
    shortcuts = choose_numbers(xp, _TARGET, len(sources), n) * n + sources
    return build_from_keys(xp, xp.concatenate([find_keys(xp, grid), shortcuts]), n, n)


def _make_undirected_rmat(xp: Arrays, size: int) -> CsrBlock:
    """Scrambled R-MAT with 8 edges a vertex, each an arc in both directions."""
    scale = max(1, round(math.log2(size / 16)))
    low = 2**scale - 1
    pieces = [find_rmat_keys(xp, scale, *piece, True) for piece in cut_range(8 << scale)]
    both = [keys for piece in pieces for keys in (piece, (piece & low) << scale | piece >> scale)]
    return build_from_keys(xp, xp.concatenate(both), 1 << scale, 1 << scale)


def _make_web(xp: Arrays, size: int) -> CsrBlock:
    """Hosts of 1024 pages in crawl order.

    Four arcs in five are local: an R-MAT of 1024 vertices in each host, so that its first pages are linked most, where
    an eighth go to the page of that number in another host near by. The others are an R-MAT of all pages, not
    scrambled: the first that were crawled are hubs.
    """
    n_hosts = 1 << max(0, round(math.log2(size / (WEB_ARCS * HOST_PAGES))))
    n = n_hosts * HOST_PAGES
    n_arcs, n_local = WEB_ARCS * n, WEB_ARCS * n * 4 // 5
    pieces = [_find_local_keys(xp, n_hosts, *piece) for piece in cut_range(n_local)]
    scale = n.bit_length() - 1
    for begin, end in cut_range(n_arcs - n_local):
        pieces.append(find_rmat_keys(xp, scale, n_local + begin, n_local + end, False))
    return build_from_keys(xp, xp.concatenate(pieces), n, n)


def _find_local_keys(xp: Arrays, n_hosts: int, begin: int, end: int) -> Any:
    """destination n + source of the local arcs `begin` .. `end` - 1 of `web`; int64."""
    inside = find_rmat_keys(xp, HOST_PAGES.bit_length() - 1, begin, end, False)
    counters = make_counters(xp, begin, end)
    host = scale_words(random_words(_HOST, counters), n_hosts)
    drawn = scale_words(random_words(_NEAR, counters), 8 * 2 * NEAR_HOSTS)
    # The first eighth are the steps -4 .. -1 and 1 .. 4; the others stay in their host.
    step = xp.where(drawn < 2 * NEAR_HOSTS, drawn - NEAR_HOSTS + (drawn >= NEAR_HOSTS), 0)
    sources = host * HOST_PAGES + inside % HOST_PAGES
    destinations = (host + step) % n_hosts * HOST_PAGES + inside // HOST_PAGES
    return destinations * (n_hosts * HOST_PAGES) + sources


def _make_citations(xp: Arrays, size: int) -> CsrBlock:
    """Papers in order of time; each cites 6 earlier ones, preferably late ones: i cites floor(i sqrt(u))."""
    n = max(2, size // CITED)
    citing = xp.arange(1, n).repeat(CITED)
    cited = (citing * xp.sqrt(_draw_uniform(xp, _TARGET, len(citing)))).astype(np.int64)
    return build_from_keys(xp, xp.minimum(cited, citing - 1) * n + citing, n, n)


def _make_small_world(xp: Arrays, size: int) -> CsrBlock:
    """Ring in which each vertex has arcs to its 8 nearest; one in ten goes to a random vertex instead."""
    offsets = np.array([-4, -3, -2, -1, 1, 2, 3, 4])
    n = max(16, size // len(offsets))
    sources = xp.arange(n).repeat(len(offsets))
    near = (sources + xp.tile(xp.asarray(offsets), n)) % n
    is_rewired = random_words(_CHOICE, make_counters(xp, 0, len(near))) < np.uint64(2**64 // 10)
    targets = xp.where(is_rewired, choose_numbers(xp, _TARGET, len(near), n), near)
    return build_from_keys(xp, targets * n + sources, n, n)


def _make_heavy_tails(xp: Arrays, size: int) -> CsrBlock:
    """16 arcs a vertex: sources are n u^3, targets n u^2, so that both degrees have heavy tails; ids are scrambled."""
    scale = max(2, round(math.log2(size / 16)))
    n, n_arcs = 1 << scale, 16 << scale
    u, v = (_draw_uniform(xp, key, n_arcs) for key in (_CHOICE, _TARGET))
    sources, targets = (xp.minimum((n * w).astype(np.int64), n - 1) for w in (u * u * u, v * v))
    return build_from_keys(xp, _scramble(xp, targets, scale) * n + _scramble(xp, sources, scale, 1), n, n)


def _make_communities(xp: Arrays, size: int) -> CsrBlock:
    """Communities of 64 to 8192 vertices, scrambled, as many vertices in each size; 12 arcs a vertex, 3 in 4 inside."""
    scale = max(14, round(math.log2(size / 12)))
    n = 1 << scale
    sources = xp.arange(n).repeat(12)
    bits = 6 + (sources >> (scale - 3))  # eight ranges of vertices, one for each size of a community
    inside = sources >> bits << bits | (choose_numbers(xp, _NEAR, len(sources), 1 << 30) & ((1 << bits) - 1))
    is_inside = random_words(_CHOICE, make_counters(xp, 0, len(sources))) < np.uint64(3 << 62)
    targets = xp.where(is_inside, inside, choose_numbers(xp, _TARGET, len(sources), n))
    return build_from_keys(xp, _scramble(xp, targets, scale) * n + _scramble(xp, sources, scale), n, n)


def _make_ratings(xp: Arrays, size: int) -> CsrBlock:
    """Users who rate items, as arcs both ways: 15 in 16 vertices are users, and item k of m is drawn as m u^3."""
    scale = max(6, round(math.log2(size / 16)))
    n = 1 << scale
    n_items, n_arcs = n >> 4, 8 << scale
    users = n_items + choose_numbers(xp, _TARGET, n_arcs, n - n_items)
    u = _draw_uniform(xp, _CHOICE, n_arcs)
    items = xp.minimum((n_items * (u * u * u)).astype(np.int64), n_items - 1)
    return build_from_keys(xp, xp.concatenate([users * n + items, items * n + users]), n, n)


def _make_sparse(xp: Arrays, size: int) -> CsrBlock:
    """Two arcs a vertex between random vertices."""
    n = max(2, size // 2)
    sources, targets = (choose_numbers(xp, key, size, n) for key in (_CHOICE, _TARGET))
    return build_from_keys(xp, targets * n + sources, n, n)


def _draw_uniform(xp: Arrays, key: np.uint64, count: int) -> Any:
    """`count` float64 in [0, 1), uniform."""
    return (random_words(key, make_counters(xp, 0, count)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scramble(xp: Arrays, ids: Any, scale: int, seed: int = 0) -> Any:
    """Permute the ids 0 .. 2^scale - 1; int64."""
    mask, half = np.uint64(2**scale - 1), np.uint64((scale + 1) // 2)
    return scramble_ids(ids.astype(np.uint64), mask, half, derive_keys(7 + seed)[2:]).astype(np.int64)


_M = 1 << 20

GRAPHS = {
    recipe.name: recipe
    for recipe in (
        replace(RECIPES["rmat22-scrambled"], name="rmat22", family="power law, scrambled"),
        replace(RECIPES["rmat24-scrambled"], name="rmat24", family="power law, scrambled"),
        RECIPES["uniform24"],
        Recipe("grid", "road-like", _make_grid, 64 * _M),
        Recipe("web", "web-like, in crawl order", _make_web, 96 * _M),
        Recipe("rmat23-undirected", "power law, scrambled, both ways", _make_undirected_rmat, 128 * _M),
        Recipe("citations", "citations, by time", _make_citations, 96 * _M),
        Recipe("small-world", "ring with shortcuts", _make_small_world, 128 * _M),
        Recipe("heavy-tails", "power laws both ways, scrambled", _make_heavy_tails, 128 * _M),
        Recipe("communities", "communities, scrambled", _make_communities, 96 * _M),
        Recipe("ratings", "users and items", _make_ratings, 128 * _M),
        Recipe("sparse", "two arcs a vertex, random", _make_sparse, 64 * _M),
        RECIPES["rmat27"],
    )
}
"""Made graphs by name; each of at least 50 million arcs on a device."""

# --- real ones -------------------------------------------------------------------------------------------------------

REAL_GRAPHS = ("cnr-2000", "mdual")
"""Real graphs of a million arcs or more, of those that `benchmarks.matrices` knows."""


def read_graph(xp: Arrays, name: str) -> CsrBlock:
    """Read a real graph; its weights are left out, and an arc counts once.

    Raises
    ------
    FileNotFoundError : it is not here
    """
    path = find_real(name)
    if path is None:
        raise FileNotFoundError(f"there is no {REAL[name]} in the folder that {DATA_VARIABLE} names")
    info = mg.ingest(path, store := MemoryStore(), kind="graph", weights=False).info
    block = open_store(store).read_block(0, info.shape[0], None)
    return CsrBlock(0, block.n_cols, xp.asarray(block.indptr), xp.asarray(block.indices), None)
