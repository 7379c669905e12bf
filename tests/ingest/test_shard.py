"""What one of several processes does of an ingest, without a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import ClosedError
from mgspmv.ingest import shard
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.shard import Shard, ShardSpec
from mgspmv.model import IngestOptions


def make_shares(source, n, room, options=None):
    """Shares that ask each other in this process."""
    own = [*source.split(n)]
    own += [None] * (n - len(own))
    shares: list[Shard] = []
    for rank, part in enumerate(own):
        spec = ShardSpec(rank, n, part, source.name, "graph", options or IngestOptions())

        def ask(rank, question, *arguments):
            return getattr(shares[rank], question)(*arguments)

        shares.append(Shard(spec, room, ask, lambda *_: None))
    return shares


@pytest.mark.parametrize("memory", [1 << 24, 20_000])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_ids_of_all_parts_are_numbered_alike(n, memory, tmp_path, monkeypatch):
    """Also where they do not fit into memory."""
    monkeypatch.setattr(shard, "GIVEN_IDS", 30)
    edges = np.random.default_rng(1).integers(-(2**60), 2**60, (200, 2))
    edges[::3] = edges[0]
    paths = [tmp_path / f"{k}.txt" for k in range(4)]
    for path, own in zip(paths, np.split(edges, 4), strict=True):
        path.write_text("\n".join(f"{i} {j}" for i, j in own))
    shares = make_shares(EdgeListSource(paths), n, MemoryBudget(memory, 2, tmp_path))
    read = [own.read() for own in shares]
    assert sum(part.n_entries for part in read) == 200
    ids = [own.list_ids(None, None) for own in shares]
    sample = sorted(id for own in ids for id in own.sample)
    cuts = [sample[len(sample) * rank // n] for rank in range(1, n)]
    merged = [own.merge_ids(cuts, "int64") for own in shares]
    firsts = [0, *np.cumsum(merged).tolist()]
    wanted = np.unique(edges)
    assert firsts[-1] == len(wanted)
    for own in shares:
        own.number_ids(firsts)
    counted = [own.group((len(wanted),) * 2) for own in shares]
    rows = np.searchsorted(wanted, edges[:, 1])
    found = sum(counts for _, counts in counted)
    starts = counted[0][0]
    assert found.tolist() == np.histogram(rows, [*starts[starts < len(wanted)], len(wanted)])[0].tolist() + [0] * int(
        (starts[:-1] >= len(wanted)).sum()
    )
    for number in (0, len(wanted) // 2, len(wanted) - 1):
        assert shard.SharedIds(firsts, shares[0]._ask)[number] == wanted[number]
    for own in shares:
        own.close()


def test_a_share_that_was_closed_works_no_more(tmp_path):
    (tmp_path / "a.txt").write_text("1 2\n3 4\n")
    [own] = make_shares(EdgeListSource(str(tmp_path / "a.txt")), 1, MemoryBudget(1 << 24, 1, tmp_path))
    own.close()
    with pytest.raises(ClosedError, match="the ingest was aborted"):
        own._notify("read", 1, None)


def test_numbers_beyond_32_bits(tmp_path):
    (tmp_path / "a.txt").write_text("1 2\n")
    own = make_shares(EdgeListSource(str(tmp_path / "a.txt")), 2, MemoryBudget(1 << 24, 1, tmp_path))[0]
    own._ask, own._own_ids = lambda *_: np.arange(4, dtype=np.int32), np.arange(4)
    own.number_ids([0, 2**31 - 2, 2**33])
    assert own._numbers.tolist() == [0, 1, 2, 3, *range(2**31 - 2, 2**31 + 2)]
    own.close()
