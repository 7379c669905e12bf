"""Tables of seeds in files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.seeds import read_seeds

TABLE = {"vector": ["x", "x", "y"], "vertex": [1, 2, 1], "weight": [1.0, 0.5, 2.0]}


def test_csv_and_parquet(tmp_path):
    (tmp_path / "seeds.csv").write_text("vector,vertex,weight\nx,1,1\nx,2,0.5\ny,1,2\n")
    pq.write_table(pa.table(TABLE), tmp_path / "seeds.parquet")
    for name in ("seeds.csv", "seeds.parquet"):
        assert read_seeds(tmp_path / name).to_pydict() == TABLE
    assert read_seeds(tmp_path / "seeds.csv", string_ids=True)["vertex"].to_pylist() == ["1", "2", "1"]


def test_what_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"read from .csv or .parquet, not from .txt"):
        read_seeds(tmp_path / "seeds.txt")
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(SourceError, match=f"{name}: there is no such file"):
            read_seeds(tmp_path / name)
    (tmp_path / "odd.csv").write_text("vector,vertex\nx\n")
    (tmp_path / "odd.parquet").write_text("no table")
    for name in ("odd.csv", "odd.parquet"):
        with pytest.raises(SourceError, match=f"{name}: cannot be read as"):
            read_seeds(tmp_path / name)
