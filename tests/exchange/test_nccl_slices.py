"""Slices of z by NCCL, which is played here: every device gets the columns that it reads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mgspmv.exchange.nccl_slices import NcclSlices, SharedColumns, share_columns
from mgspmv.partition import SLICE_SUMS, Slices
from tests.support.nccl import PlayedStream, on_device, run_ranks, start_groups


def test_slices_with_their_scalars(nccl):
    slices = Slices((5, 0, 2, 9))
    groups = start_groups(nccl, 4)
    assert slices.starts[-1] == 8 + 4 + 4 + 12 + 4 * SLICE_SUMS

    def work(rank):
        all_columns = SharedColumns(slices, None, None)
        exchange = NcclSlices(groups[rank], all_columns, 123)
        assert (exchange.rank, exchange.slices, exchange.n_terms) == (rank, slices, 123)
        z, (a, b) = on_device(np.full(slices.starts[-1] + 1, -1)), slices.starts[rank : rank + 2]
        for step in (1, 2):
            wanted = 100 * step + np.arange(len(z))
            z[a:b] = wanted[a:b]
            exchange.enqueue(z)
            exchange.wait(PlayedStream(nccl))
            assert z.tolist() == [*wanted[:-1].tolist(), -1]
        return exchange.received_elements

    n = slices.starts[-1]
    assert run_ranks(4, work) == [n - tail - SLICE_SUMS for tail in (8, 4, 4, 12)]


class Rows:
    """Rows of some devices, of which those that have entries in a column are sent, and what each device reads.

    Parameters
    ----------
    shares : of the columns that are sent, what each device reads
    """

    def __init__(self, bounds, shares):
        rng = np.random.default_rng(0)
        self.bounds, self.n, n_cols = bounds, len(bounds) - 1, bounds[-1]
        self.is_sent = rng.random(n_cols) < 0.8
        self.own, self.counts = [], []
        for a, b in pairwise(bounds):
            sent = self.is_sent[a:b]
            places = np.zeros(b - a, np.int32)
            places[sent] = rng.permutation(sent.sum())
            self.own.append(places)
            self.counts.append(int(sent.sum()))
        self.is_read = [self.is_sent & (rng.random(n_cols) < share) for share in shares]

    def share(self, nccl, groups, marked=None):
        """The columns of each device; `marked` are those that know what they read."""
        marked = range(self.n) if marked is None else marked

        def work(rank):
            mark = (lambda: on_device(self.is_read[rank])) if rank in marked else None
            own = on_device(self.own[rank])
            return share_columns(groups[rank], own, self.counts[rank], self.bounds, mark)

        return run_ranks(self.n, work)

    def check(self, nccl, groups, columns):
        """Every device gets what it reads of all, and their scalars; and holds of others what `select` says."""
        held, given = {}, {}

        def work(rank):
            shared, slices = columns[rank], columns[rank].slices
            exchange = NcclSlices(groups[rank], shared, 9)
            start, tail, (a, b) = slices.starts[rank], slices.tails[rank], self.bounds[rank : rank + 2]
            sent, places = self.is_sent[a:b], shared.places.get()
            for step, dtype in enumerate((np.int64, np.int64, np.float32, np.float64)):
                values = (1000 * (step + 1) + np.arange(self.bounds[-1])).astype(dtype)
                sums = [-(100 * step + 10 * owner + np.arange(SLICE_SUMS)).astype(dtype) for owner in range(self.n)]
                z = on_device(np.full(slices.starts[-1] + 1, -1, dtype))
                z[start + self.own[rank][sent]] = values[a:b][sent]
                z[start + tail : start + tail + SLICE_SUMS] = sums[rank]
                exchange.enqueue(z)
                exchange.wait(PlayedStream(nccl))
                needed = self.is_read[rank].copy()
                needed[a:b] = sent
                assert z[places[needed]].tolist() == values[needed].tolist()
                for owner, (first, before) in enumerate(zip(slices.starts, slices.tails, strict=False)):
                    assert z[first + before : first + before + SLICE_SUMS].tolist() == sums[owner].tolist()
                assert z[-1] == -1
            held[rank] = [z[a:b].tolist() for a, b in pairwise(slices.starts)]
            given[rank] = [part.tolist() for part in exchange.select(z)]
            return exchange.received_elements

        received = run_ranks(self.n, work)
        for one in range(self.n):
            assert all(held[one][other] == given[other][one] for other in range(self.n) if other != one)
        return received


SHARED = pytest.mark.parametrize(
    "bounds", [(0, 30, 70), (0, 11, 48, 50, 90), (0, 0, 30, 30, 61, 61)], ids=["two", "four", "without rows"]
)


def test_devices_may_send_all_columns_in_order(nccl):
    def work(rank):
        in_order = on_device(np.arange(40, dtype=np.int32))
        given = [share_columns(groups[rank], own, 40, bounds, None) for own in (None, in_order)]
        return [(shared.slices, shared.places.tolist()) for shared in given]

    groups, bounds = start_groups(nccl, 2), (0, 40, 80)
    for given, wanted in run_ranks(2, work):
        assert given == wanted


@SHARED
def test_all_columns_are_shared_by_devices_that_may_read_most(nccl, bounds):
    """And by those that do not know what they read."""
    rows = Rows(bounds, [0.9] * (len(bounds) - 1))
    groups = start_groups(nccl, rows.n)
    for marked in (None, ()):
        columns = rows.share(nccl, groups, marked)
        starts = Slices(tuple(rows.counts)).starts
        wanted = np.concatenate([start + own for start, own in zip(starts, rows.own, strict=False)])
        for shared in columns:
            assert (shared.slices.counts, shared.packing) == (tuple(rows.counts), None), marked
            assert (shared.places.dtype, shared.places.tolist()) == (np.int32, wanted.tolist()), marked
        received = rows.check(nccl, groups, columns)
        assert received == [starts[-1] - (b - a) for a, b in pairwise(starts)], marked


@SHARED
def test_few_columns_are_sent_to_those_that_read_them(nccl, bounds):
    rows = Rows(bounds, np.linspace(0.0, 0.3, len(bounds) - 1))
    groups = start_groups(nccl, rows.n)
    columns = rows.share(nccl, groups)
    for rank, (shared, is_read) in enumerate(zip(columns, rows.is_read, strict=True)):
        read = [int(is_read[a:b].sum()) for a, b in pairwise(bounds)]
        read[rank] = rows.counts[rank]
        assert shared.slices.counts == tuple(read)
        assert shared.packing is not None
        assert shared.places.dtype == np.int32
    rows.check(nccl, groups, columns)


@pytest.mark.parametrize(("lacks", "shares"), [(2, [0.1] * 3), (None, [0.1, 0.1, 0.9]), (None, [0.9, 0.0, 0.0])])
def test_all_are_sent_all_where_one_reads_most_or_does_not_know(nccl, lacks, shares):
    rows = Rows((0, 20, 40, 60), shares)
    groups = start_groups(nccl, 3)
    columns = rows.share(nccl, groups, [rank for rank in range(3) if rank != lacks])
    assert [shared.packing for shared in columns] == [None] * 3
    rows.check(nccl, groups, columns)
