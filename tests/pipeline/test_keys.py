"""Keys of steps: what is made with a definition and a source is known again by later versions of the program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mgspmv.pipeline import keys, read_pipeline
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import list_steps
from tests.support.definitions import write_definition, write_sources

TEXT = """
folder = "out"
[matrix.web]
path = "edges.txt"
labels = "names.csv"
transpose = true
[matrix.web.update]
insert = "more.txt"
keep = 3
[matrix.rmat]
generate = "rmat"
parameters = {scale = 6, seed = 1}
kind = "graph"
[matrix.there]
open = "there.zarr"
[run]
top = 3
[run.damping]
alpha = [0.5]
checkpoint = true
[run.warm]
matrix = "web"
nstart = "previous"
personalization = "p.txt"
reverse = true
kernel = "csr-rows"
[batch.topics]
matrix = "web"
seeds = "seeds.csv"
alpha = [0.5, 0.6]
[product.y]
matrix = "rmat"
x = "x.npy"
beta = 0.5
y = "x.npy"
format = "csv"
[output]
formats = ["parquet", "csv"]
"""
FILES = {
    "seeds.csv": "vector,vertex\na,1\nb,2\n",
    "p.txt": "1 3\n2 1\n",
    "more.txt": "2 1\n",
    "names.csv": "id,label\n1,one\n",
    "x.npy": "x",
}
KEYS = {
    "web": "5657fab6e8911fda91f900439da52ff3014d00ecaabfca3b79a0e8172d3b4d97",
    "web/damping/alpha=0.5": "c46f98bee425805fb55552e5350f33d3dd0b920260a3fd430f904ee683b5bafe",
    "web/warm": "bee2ef86719b79983ecfcded72fab454886a2e67ec610d50433a78457b01cbd8",
    "web/topics": "3aa2976b42ce532ccc57ac9a51d0f81d0646cb959a248c9af990b62fba031d0b",
    "rmat": "965ad66a154401c0be13d2b5256f00acaf2ace3b73752ad5909d3f8a8b2d092e",
    "rmat/damping/alpha=0.5": "184b74cc3bba660305a3201bce0b8ebe8293a8d3fe7dbacd095d0500050053df",
    "rmat/y": "1235cdca596b7841b0ecde26ae4c33590578e3c51af2f6147d97c30229a8ac40",
    "there": "4732723d32415efa2ebbb4221bd51bdf2c9cd38ca12f80ec4b1762bac0773b77",
    "there/damping/alpha=0.5": "184b74cc3bba660305a3201bce0b8ebe8293a8d3fe7dbacd095d0500050053df",
}
"""As version 1 had them, with a matrix of digest 00...0."""
BASES = {
    "web": (
        "cf673360cf80716ecc773161620ac9e11339f4481e461c7d6e32f72d755d4862",
        "db4377e3561bf1af95554cb609eab9805cd602f58b0a3fe8dd9cb847602bdec8",
    ),
    "rmat": ("1858cd80d824bc77a255554e3635030f1bf90a4dd7f88795f83e34d27c030736", None),
    "there": ("fd03ebafd56a527fddf386c2e82f6b3b53ea3a7b7cc6ccb5ff1e24b99e8dcd00", None),
}
"""Of matrices before they are changed, and of what changes them."""


@pytest.fixture
def identities(tmp_path, monkeypatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keys, "__version__", "1")
    write_sources(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    pipeline, checksums = read_pipeline(write_definition(TEXT)).pipeline, Checksums(tmp_path / "none.json")
    info: Any = SimpleNamespace(digest="0" * 64)
    return {
        step.name: keys.identify_matrix(step.section, checksums, info if step.section.open else None)
        if step.kind == "matrix"
        else keys.identify_result(step, pipeline, info, checksums)
        for lane in list_steps(pipeline, "out").values()
        for step in lane
    }


def test_keys_do_not_change(identities):
    assert {name: own.key for name, own in identities.items()} == KEYS
    assert {name: (own.base, own.update) for name, own in identities.items() if name in BASES} == BASES
