"""Dask DataFrames whose partitions depend on each other, or are on a cluster already."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from tests.support.clusters import check_left, find_left, start_cluster

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")

TABLE = pd.DataFrame({"src": np.arange(500) % 71, "dst": np.arange(500) % 37 * 5, "weight": np.arange(500) % 7})
NAMES = pd.DataFrame({"src": np.arange(71), "name": [f"v{k}" for k in range(71)]})
WITH_NAMES = TABLE.merge(NAMES, on="src").assign(src=lambda table: table.name, dst="hub")[["src", "dst", "weight"]]
EDGES = ["src", "dst", "weight"]


def split(table=TABLE, n=6):
    return dd.from_pandas(table, npartitions=n)


def put_none_between():
    none = split()[split().weight > 10]
    return dd.concat([none, split().sort_values("weight"), none])


FRAMES = {
    "sort_values": (lambda: split().sort_values("dst"), TABLE),
    "set_index": (lambda: split().set_index("dst").reset_index()[EDGES], TABLE),
    "merge": (lambda: split().merge(split(NAMES, 3), on="src")[EDGES], TABLE),
    "names": (lambda: split(WITH_NAMES).sort_values("src"), WITH_NAMES),
    "shuffle to one partition": (lambda: split().shuffle("src", npartitions=1), TABLE),
    "a reduction": (lambda: split().assign(weight=lambda frame: frame.weight + frame.src.max() - 70), TABLE),
    "empty partitions": (put_none_between, TABLE),
    "no rows": (lambda: split().sort_values("dst").query("weight > 10"), TABLE[:0]),
}


@pytest.mark.parametrize(("make", "table"), FRAMES.values(), ids=FRAMES)
def test_partitions_that_depend_on_each_other(make, table, in_process, tmp_path):
    wanted, client = mg.ingest(table, tmp_path / "wanted").info, in_process(3)
    before = find_left(client)
    made = mg.ingest(make(), tmp_path / "made", client=client).info
    assert (made.digest, made.provenance["source"]["header"]) == (wanted.digest, wanted.provenance["source"]["header"])
    assert mg.verify(tmp_path / "made") == []
    check_left(client, before)


def test_partitions_on_the_cluster(in_process, tmp_path):
    client = in_process(3)
    wanted = mg.ingest(TABLE, tmp_path / "wanted").info.digest
    before = find_left(client)
    for k, frame in enumerate((split(), split().sort_values("dst"), split(n=1))):
        held = client.persist(frame)
        for name, given in (("held", held), ("made of it", held.assign(weight=held.weight + 0))):
            for where, cluster in (("its client", client), ("another client", client.scheduler.address)):
                place = tmp_path / f"{k} {name} {where}"
                assert mg.ingest(given, place, client=cluster).info.digest == wanted, place
        del held, given
    check_left(client, before)


@pytest.mark.slow
def test_partitions_on_another_cluster(in_process, tmp_path):
    with start_cluster(1, processes=False) as other, Client(other, set_as_default=False) as holder:
        held = holder.persist(split())
        with pytest.raises(
            OptionError, match=r"are held by another cluster, not by .*; pass the client= that holds them"
        ):
            mg.ingest(held, tmp_path / "made", client=in_process(1))
    assert not (tmp_path / "made").exists()


def test_partitions_that_cannot_be_computed(in_process, tmp_path):
    client = in_process(2)
    before = find_left(client)

    def fail(frame):
        if len(frame):
            raise ZeroDivisionError("no such thing")
        return frame

    with pytest.raises(SourceError) as caught:
        mg.ingest(client.persist(split()).map_partitions(fail, meta=TABLE[:0]), tmp_path / "made", client=client)
    assert "the partitions cannot be computed on the cluster (ZeroDivisionError: no such thing)" in str(caught.value)
    assert "write them with .to_parquet(FOLDER, write_index=False) and ingest the folder" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(SourceError, match="ids"):
        mg.ingest(split().sort_values("dst").assign(src=0.5), tmp_path / "made", client=client)
    del caught
    assert not (tmp_path / "made").exists()
    check_left(client, before)
