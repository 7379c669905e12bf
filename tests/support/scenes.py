"""What the blocks of each page find: files, the names that Python's blocks take as given, and what is run smaller here.

A page that is not here makes all that it needs.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mgspmv as mg
from tests.support.certificates import make_certificates
from tests.support.ports import find_free_port
from tests.support.running import Scene

N = 120
PORT = find_free_port()
"""One that is free, for clusters that a page starts."""
GIVEN = {"mg": mg, "np": np}
"""What all Python on pages with a scene takes as imported."""


# --- files -----------------------------------------------------------------------------------------------------------


def make_arcs(n: int = N, seed: int = 0) -> np.ndarray:
    """Arcs of a strongly connected graph of vertices 0..n-1 with some hubs, (k, 2)."""
    rng = np.random.default_rng(seed)
    ring = np.column_stack([np.arange(n), np.roll(np.arange(n), -1)])
    return np.concatenate([ring, np.column_stack([rng.integers(0, n, 3 * n), rng.integers(0, n, 3 * n) ** 2 // n])])


def write_arcs(path: str, names: list[str] | None = None, *, seed: int = 0, comma: bool = False) -> None:
    """An edge list as SNAP publishes them, compressed where the name says so."""
    lines = ["# Directed graph", "# FromNodeId\tToNodeId"]
    separator = "," if comma else "\t"
    for i, j in make_arcs(seed=seed).tolist():
        lines.append(f"{i if names is None else names[i]}{separator}{j if names is None else names[j]}")
    data = "\n".join([*lines, ""]).encode()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(gzip.compress(data) if path.endswith(".gz") else data)


def write_pairs(path: str, pairs: np.ndarray) -> None:
    """An edge list without comments."""
    data = "".join(f"{i}\t{j}\n" for i, j in pairs.tolist()).encode()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(gzip.compress(data) if path.endswith(".gz") else data)


def make_web(path: str = "web.zarr", **options: Any) -> mg.MatrixInfo:
    """A store of these arcs."""
    return mg.ingest(tuple(make_arcs().T), path, duplicates="first", n_vertices=N, **options).info


# --- pages -----------------------------------------------------------------------------------------------------------


def fill_readme(client: Any) -> dict[str, Any]:
    write_arcs("web-Google.txt.gz")
    return GIVEN


def fill_cluster(client: Any) -> dict[str, Any]:
    make_web()
    np.save("x.npy", np.ones(N))
    return GIVEN | {"client": client}


def fill_launching(client: Any) -> dict[str, Any]:
    make_certificates(Path("certificates").absolute())
    return {}


def fill_nothing(client: Any) -> dict[str, Any]:
    return GIVEN


def fill_ingest(client: Any) -> dict[str, Any]:
    names = ["example.org", "example.com", *(f"site{k}.net" for k in range(2, N))]
    for seed in (1, 2):
        write_arcs(f"edges/{seed}.csv.gz", names, seed=seed, comma=True)
        write_arcs(f"plain/{seed}.csv", names, seed=seed, comma=True)
    table = pa.table({"source": [1, 2, 3], "target": [2, 3, 1]})
    for year in (2024, 2025):
        pq.write_table(table, f"{year}.parquet")
    return GIVEN | {"client": client}


def fill_nightly(client: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arcs = rng.integers(0, 3000, (20000, 2))
    arcs[:, 1] = arcs[:, 1] ** 2 // 3000
    write_pairs("base.txt.gz", arcs)
    for day, removed in (("2026-11-25", arcs[:20]), ("2026-11-26", arcs[:0])):
        write_pairs(f"updates/{day}/added.txt", rng.integers(0, 3010, (50, 2)))
        write_pairs(f"updates/{day}/removed.txt", removed)
    return {}


def fill_pipelines(client: Any) -> dict[str, Any]:
    write_arcs("crawls/web.txt.gz")
    arcs = "\n".join(f"{i + 1} {j + 1}" for i, j in sorted(set(map(tuple, make_arcs(seed=3).tolist()))))
    text = f"%%MatrixMarket matrix coordinate pattern general\n{N} {N} {arcs.count(chr(10)) + 1}\n{arcs}\n"
    Path("crawls/wiki.mtx.gz").write_bytes(gzip.compress(text.encode()))
    Path("topics").mkdir()
    Path("topics/sports.csv").write_text("17 1.0\n23 2.0\n")
    return {}


def fill_report(client: Any) -> dict[str, Any]:
    make_web()
    with mg.open_matrix("web.zarr") as A:
        mg.pagerank(A).save("ranks.parquet")
    return {}


SCENES = {
    "README.md": Scene(
        fill_readme,
        smaller={"--workers 4": "--workers 2"},
        afresh={"-o ranks.parquet": "ranks.parquet", "-o ranks.csv": "ranks.csv"},
    ),
    "docs/cluster.md": Scene(
        fill_cluster,
        smaller={
            "--workers 4": "--workers 2",
            "n_workers=4, threads_per_worker=2": "n_workers=2, threads_per_worker=1",
        },
        afresh={"-o ranks.parquet": "ranks.parquet"},
    ),
    "docs/doctor.md": Scene(fill_cluster),
    "docs/launching.md": Scene(
        fill_launching,
        smaller={
            "--port 8786": f"--port {PORT} --backend cpu --workers 1",
            "tcp://127.0.0.1:8786": f"tcp://127.0.0.1:{PORT}",
            "tls://127.0.0.1:8786": f"tls://127.0.0.1:{PORT}",
        },
    ),
    "docs/metrics.md": Scene(fill_cluster),
    "docs/monitoring.md": Scene(fill_nothing, afresh={"web.zarr -o ranks.parquet": "ranks.parquet"}),
    "docs/ingest.md": Scene(
        fill_ingest,
        smaller={
            "'edges/*.csv' web.zarr": "'plain/*.csv' web.zarr",
            '"s3://bucket/edges/", "s3://bucket/web.zarr"': '"plain/", "web.zarr"',
            '"s3://bucket/edges/", client': '"plain/", client',
        },
        afresh={
            "mgspmv ingest edges/ web.zarr": "web.zarr",
            "--scheduler": "web.zarr",
            "s3://bucket/web.zarr": "web.zarr",
        },
    ),
    "docs/nightly.md": Scene(
        fill_nightly, smaller={"cluster.kind=local": "cluster.kind=local --set cluster.workers=2"}
    ),
    "docs/pipelines.md": Scene(fill_pipelines),
    "docs/recovery.md": Scene(fill_cluster, afresh={"-o ranks.parquet": "ranks.parquet"}),
    "docs/report.md": Scene(fill_report),
    "docs/security.md": Scene(fill_nothing),
}
