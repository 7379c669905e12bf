"""Several hosts, each with an address of its own: a pipeline from an S3 store and to it, on workers that `dask worker`
starts on them, and the dashboard as one more host sees it.

    python -m pytest -s tests/deploy/test_several_hosts.py        # as root; -s shows what was run, and what it said

Hosts are network namespaces: `head` has the scheduler and the command, `one` and `two` have workers, who looks is at
`desk`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgspmv as mg
from tests.support.buckets import serve_s3
from tests.support.commands import ENVIRONMENT, PROGRAM
from tests.support.hosts import Host, Network, why_not_split
from tests.support.scraping import Scraped
from tests.support.waiting import HANG_S, wait_for

pytestmark = [
    pytest.mark.external("ip", "tc"),
    pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "hosts can be had"),
]
N, N_EDGES, ITERATIONS = 500, 4000, 3000
PIPELINE = f"""
ingest = true

[matrix.web]
source = "s3://bucket/edges/*.txt"
store = "s3://bucket/web.zarr"
kind = "graph"

[run.ranks]
norm = "fixed"
max_iter = {ITERATIONS}

[output]
folder = "s3://bucket/results"
formats = ["zarr"]
"""


@dataclass
class Command:
    """What runs on a host."""

    process: subprocess.Popen[bytes]
    said: Path

    def read(self) -> str:
        return self.said.read_text()


@dataclass(frozen=True)
class Site:
    """Hosts, and an S3 store that they reach."""

    folder: Path
    hosts: dict[str, Host]
    bucket: Any
    """File system that has it."""
    edges: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

    def write_pipeline(self, *cluster: str) -> None:
        """`pipeline.toml`, with these lines of its table `[cluster]`."""
        (self.folder / "pipeline.toml").write_text("\n".join(["[cluster]", *cluster]) + PIPELINE)

    @contextmanager
    def start(self, name: str, *words: str) -> Iterator[Command]:
        """Start something on a host that ends with the context."""
        host = self.hosts[name]
        said = self.folder / f"{name}-{len(list(self.folder.glob('*.said')))}.said"
        how: dict[str, Any] = {"cwd": self.folder, "preexec_fn": host.enter, "env": ENVIRONMENT | find_credentials()}
        with open(said, "w") as file:
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, **how)
        try:
            yield Command(process, said)
        finally:
            process.terminate()
            process.wait()
            command = " ".join(words).replace(" ".join(PROGRAM), "mgspmv").replace(sys.executable, "python")
            print(f"\n[{host.name} {host.address}] $ {command}\n{said.read_text()}", end="")

    def read(self, url: str) -> str:
        """What `desk` gets from a server."""

        def get() -> str:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=HANG_S) as answer:
                return str(answer.read().decode())

        return self.hosts["desk"].do(get)

    def check_ranks(self) -> None:
        """Fail unless the bucket has the ranks that this process computes, bit for bit."""
        mg.ingest(self.edges, self.folder / "own.zarr", kind="graph")
        wanted = mg.pagerank(mg.open_matrix(self.folder / "own.zarr"), norm="fixed", max_iter=ITERATIONS)
        self.bucket.get("bucket/results/web/ranks/ranks.zarr", str(self.folder / "ranks.zarr"), recursive=True)
        assert mg.load_solution(self.folder / "ranks.zarr").digest() == wanted.digest()


def find_credentials() -> dict[str, str]:
    """Of the S3 store, in the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Hosts that reach each other, and a bucket with a graph's edges in two files."""
    rng = np.random.default_rng(7)
    edges = tuple(rng.integers(0, N, (2, N_EDGES)))
    with Network(is_split=True) as network, serve_s3(network.address) as bucket:
        for k, part in enumerate(np.array_split(np.column_stack(edges), 2)):
            bucket.pipe(f"bucket/edges/{k}.txt", "".join(f"{a} {b}\n" for a, b in part).encode())
        hosts = {name: network.add_host(name) for name in ("head", "one", "two", "desk")}
        yield Site(tmp_path, hosts, bucket, edges)
        bucket.rm("bucket", recursive=True)  # which the next S3 of this process would have too


def wait_until_whole(command: Command) -> None:
    """Fail unless it ends without an error."""
    try:
        command.process.wait(HANG_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on: {command.read()}")
    assert command.process.returncode == 0, command.read()


def test_workers_that_dask_starts(site: Site) -> None:
    site.write_pipeline('kind = "address"', 'address = "head.json"')
    dask, head = [sys.executable, "-m", "dask"], site.hosts["head"].address
    own = ["--scheduler-file", "head.json", "--memory-limit", "0", "--nworkers", "1", "--nthreads", "1"]
    with ExitStack() as stack:
        where = ["--host", head, "--port", "8786", "--dashboard-address", f"{head}:8787"]
        stack.enter_context(site.start("head", *dask, "scheduler", *where, "--scheduler-file", "head.json"))
        workers = [
            stack.enter_context(site.start(name, *dask, "worker", *own, "--host", site.hosts[name].address))
            for name in ("one", "two")
        ]
        assert wait_for(lambda: all("Registered to:" in worker.read() for worker in workers), HANG_S)
        run = stack.enter_context(site.start("head", *PROGRAM, "run", "pipeline.toml"))
        wait_until_whole(run)
        site.check_ranks()
        check_pages(site, f"http://{head}:8787", [site.hosts[name].address for name in ("one", "two")])


def check_pages(site: Site, url: str, workers: list[str]) -> None:
    """What a run left on the dashboard of a cluster, as `desk` sees it."""
    assert Scraped(site.read(f"{url}/metrics")).find("mgspmv_run_iterations")[0].value == ITERATIONS
    targets = [target for group in json.loads(site.read(f"{url}/mgspmv/targets")) for target in group["targets"]]
    assert sorted(target.partition(":")[0] for target in targets) == sorted(workers)
    for target in targets:
        assert Scraped(site.read(f"http://{target}/metrics")).families
    assert "<title>" in site.read(f"{url}/pagerank")
