"""Keys of steps: what is made with a definition and a source is known again by later versions of the program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mgspmv.pipeline import read_pipeline, steps
from mgspmv.pipeline.steps import Checksums
from tests.support.definitions import write_definition, write_sources

TEXT = """
folder = "out"
[matrix.web]
source = "edges.txt"
transpose = true
[matrix.web.update]
insert = "more.txt"
keep = 3
[run]
top = 3
[run.damping]
alpha = [0.5]
checkpoint = true
[run.warm]
nstart = "previous"
personalization = "p.txt"
reverse = true
kernel = "csr-rows"
[batch.topics]
personalization = "seeds.csv"
alpha = [0.5, 0.6]
[product.y]
x = "p.txt"
beta = 0.5
y = "p.txt"
format = "zarr"
[output]
formats = ["parquet", "csv"]
"""
FILES = {
    "seeds.csv": "vector,vertex\na,1\nb,2\n",
    "p.txt": "1 3\n2 1\n",
    "more.txt": "2 1\n",
}
MATRIX = (
    "5657fab6e8911fda91f900439da52ff3014d00ecaabfca3b79a0e8172d3b4d97",
    "cf673360cf80716ecc773161620ac9e11339f4481e461c7d6e32f72d755d4862",
    "db4377e3561bf1af95554cb609eab9805cd602f58b0a3fe8dd9cb847602bdec8",
)
"""Key of the matrix, of what it was before its update, and of the update, as version 1 had them."""
RESULTS = {
    "web/damping/alpha=0.5": "7e595c9371200e375c89b6aeb0eb944281399b62f173f8a77127a5ac9cd9e1d0",
    "web/warm": "8aa4a5e539ea40470efe452bd17367d0c397fc440d19b4e149ac728bf44533a7",
    "web/topics": "8553aa8d10d5b29b4f021a19792a262ac9f9a99cee0d8476738ccf0ac5360e9e",
    "web/y": "d1347bfd0092f8c20db2d63568eda789fac65e8c0c692a9608cc97cea1d7e4eb",
}
"""Of a matrix of digest 00...0."""


def test_keys_do_not_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(steps, "__version__", "1")
    write_sources(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    definition, checksums = read_pipeline(write_definition(TEXT)), Checksums(tmp_path / "none.json")
    [[matrix, *results]] = definition.list_steps().values()
    found = steps.identify_matrix(matrix, checksums)
    assert (found.key, found.base, found.update) == MATRIX
    info: Any = SimpleNamespace(digest="0" * 64)
    assert {
        own.name: steps.identify_result(own, definition.pipeline, info, checksums).key for own in results
    } == RESULTS
