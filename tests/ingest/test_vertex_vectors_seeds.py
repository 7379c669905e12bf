"""Tables of seeds in files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.vertex_vectors import read_seeds

TABLE = {"vector": ["x", "x", "y"], "vertex": [1, 2, 1], "weight": [1.0, 0.5, 2.0]}


def test_csv_and_parquet(tmp_path):
    (tmp_path / "seeds.csv").write_text("vector,vertex,weight\nx,1,1\nx,2,0.5\ny,1,2\n")
    pq.write_table(pa.table(TABLE), tmp_path / "seeds.parquet")
    for name in ("seeds.csv", "seeds.parquet"):
        assert read_seeds(tmp_path / name).to_pydict() == TABLE
    assert read_seeds(tmp_path / "seeds.csv", string_ids=True)["vertex"].to_pylist() == ["1", "2", "1"]


@pytest.mark.parametrize(
    ("text", "string_ids", "wanted"),
    [
        ("vector,vertex\n01,007\n1,7\n", True, {"vector": ["01", "1"], "vertex": ["007", "7"]}),
        ("vector,vertex\n1,7\n2,8\n", True, {"vector": [1, 2], "vertex": ["7", "8"]}),
        ("vector;vertex;weight\n1; 7;0.5\n", False, {"vector": [1], "vertex": [7], "weight": [0.5]}),
        ('vertex,vector\n"Smith, J",x\nNA,x\n', True, {"vertex": ["Smith, J", "NA"], "vector": ["x", "x"]}),
    ],
)
def test_ids_in_csv_are_as_they_are_written(tmp_path, text, string_ids, wanted):
    (tmp_path / "seeds.csv").write_text(text)
    assert read_seeds(tmp_path / "seeds.csv", string_ids=string_ids).to_pydict() == wanted


def test_what_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"expected a .csv or .parquet file of seeds, found .txt"):
        read_seeds(tmp_path / "seeds.txt")
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(SourceError, match=f"{name}: there is no such file"):
            read_seeds(tmp_path / name)
    (tmp_path / "odd.csv").write_text("vector,vertex\nx\n")
    (tmp_path / "odd.parquet").write_text("no table")
    for name in ("odd.csv", "odd.parquet"):
        with pytest.raises(SourceError, match=f"{name}: cannot be read as"):
            read_seeds(tmp_path / name)
