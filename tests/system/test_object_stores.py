"""The same work on S3, Google Cloud Storage and Azure Blob Storage, and what is said where it cannot be done there."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fsspec
import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv import files
from mgspmv.doctor import check_store
from mgspmv.errors import ConvergenceError, MgspmvError, SourceError, SourceNotFoundError, StoreError
from mgspmv.pipeline import run_pipeline
from mgspmv.store.access import list_dir, locate_store
from tests.support.buckets import AZURE_KEY, SERVERS
from tests.support.clusters import start_cluster
from tests.support.definitions import EDGES, find_states, write_definition
from tests.support.waiting import HANG_S

EXTERNAL = {"az": pytest.mark.external("azurite-blob")}
"""Marks of tests on a server; the others are started from Python packages."""
PROTOCOLS = [pytest.param(protocol, marks=EXTERNAL.get(protocol, pytest.mark.external())) for protocol in SERVERS]
"""Schemes of stores."""
PIPELINE = """
folder = "out"
[matrix.web]
source = "{0}/few.txt"
store = "{0}/piped.zarr"
[run]
[output]
folder = "{0}/ranks"
formats = ["zarr", "csv"]
"""


def make_text() -> bytes:
    ends = np.random.default_rng(0).integers(0, 400, (2000, 2))
    return b"".join(b"%d %d\n" % (a, b) for a, b in ends)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    """The file systems of those that can be started here, or why they cannot, by protocol."""
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for protocol, serve in SERVERS.items():
            try:
                found[protocol] = stack.enter_context(serve())
                found[protocol].pipe("bucket/e.txt", make_text())
                found[protocol].pipe("bucket/few.txt", EDGES.encode())
            except pytest.skip.Exception as reason:
                found[protocol] = str(reason)
        yield found


@pytest.fixture(scope="module")
def client(servers: dict[str, Any]) -> Iterator[Client]:
    """Of two workers, processes that have the environment of this one."""
    with start_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(params=PROTOCOLS)
def place(request: pytest.FixtureRequest, servers: dict[str, Any]) -> str:
    """URL of a bucket."""
    found = servers[request.param]
    if isinstance(found, str):
        pytest.skip(found)
    return f"{request.param}://bucket"


@pytest.fixture
def url(place: str) -> str:
    """The same for what is no store."""
    return place


@pytest.mark.filterwarnings("error:the checkpoint of iteration")
def test_from_a_source_to_ranks(place, url, tmp_path, client):
    (tmp_path / "e.txt").write_bytes(make_text())
    local = mg.ingest(tmp_path / "e.txt", tmp_path / "web.zarr")
    wanted = mg.pagerank(local)

    store, kept = f"{place}/{os.urandom(4).hex()}.zarr", f"{place}/{os.urandom(4).hex()}.zarr"
    assert mg.ingest(f"{url}/e.txt", store).info.digest == local.info.digest
    assert mg.ingest(f"{url}/e.txt", store, client=client, overwrite=True).info.digest == local.info.digest
    A = mg.open_matrix(store)
    with pytest.raises(ConvergenceError):
        mg.pagerank(A.on(client), checkpoint=kept, max_iter=4)
    ranks = mg.pagerank(A.on(client), checkpoint=mg.Checkpoint(kept, resume=True))
    assert ranks.resumed_after == 4
    assert ranks.values.tobytes() == wanted.values.tobytes()

    mg.export(store, f"{url}/{store.rpartition('/')[2]}.mtx")
    mg.export(tmp_path / "web.zarr", tmp_path / "web.mtx")
    assert fsspec.open(f"{url}/{store.rpartition('/')[2]}.mtx").open().read() == (tmp_path / "web.mtx").read_bytes()
    with pytest.raises(StoreError, match="exists already"):
        mg.export(store, f"{url}/{store.rpartition('/')[2]}.mtx")
    ranks.save(f"{url}/{os.urandom(4).hex()}.zarr")
    assert check_store(store).status in ("ok", "warning")


def write_elsewhere(client: Client, url: str, content: bytes) -> None:
    """Let another process write a file."""

    def write() -> None:
        with fsspec.open(url, "wb") as file:
            file.write(content)

    client.submit(write, pure=False).result()


def test_what_another_process_writes_is_listed(place, client):
    """Libraries keep what they listed; by that, of a run's checkpoints only the first one counted."""
    folder = f"{place}/{os.urandom(4).hex()}"
    store = locate_store(folder)
    for k in range(3):
        write_elsewhere(client, f"{folder}/states/s{k}/zarr.json", b"{}")
        assert sorted(list_dir(store, "states")) == [f"s{i}" for i in range(k + 1)]
        assert list_dir(store, f"states/s{k}") == ["zarr.json"]
        write_elsewhere(client, f"{folder}/states/s{k}/x/c/0", b"x")
        assert sorted(list_dir(store, f"states/s{k}")) == ["x", "zarr.json"]
    assert list_dir(store, "states/s3") == []


@pytest.mark.parametrize("named", ["", "/*.txt"], ids=["folder", "pattern"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_another_process_writes_is_ingested(protocol, named, servers, client, tmp_path):
    if isinstance(servers[protocol], str):
        pytest.skip(servers[protocol])
    folder = f"{protocol}://bucket/{os.urandom(4).hex()}"
    for k in range(3):
        write_elsewhere(client, f"{folder}/e{k}.txt", f"{k} {k + 1}\n".encode())
        assert mg.ingest(folder + named, tmp_path / f"{k}.zarr").info.nnz == k + 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pipeline(protocol, servers, tmp_path, monkeypatch):
    if isinstance(servers[protocol], str):
        pytest.skip(servers[protocol])
    monkeypatch.chdir(tmp_path)
    folder = f"{protocol}://bucket/{os.urandom(4).hex()}"
    servers[protocol].pipe(f"{folder}/few.txt", EDGES.encode())
    definition = write_definition(PIPELINE.format(folder))
    assert set(find_states(run_pipeline(definition)).values()) == {"made"}
    assert set(find_states(run_pipeline(definition)).values()) == {"kept"}
    assert fsspec.open(f"{folder}/ranks/web/pagerank/ranks.csv").open().read().count(b"\n") == 4
    assert not servers[protocol].find(f"{folder}/ranks/.mgspmv")  # the lock is gone


def test_a_bucket_that_is_not_there(place, url, tmp_path):
    (tmp_path / "e.txt").write_text(EDGES)
    mg.ingest(tmp_path / "e.txt", tmp_path / "web.zarr")
    nowhere, none = place.replace("//bucket", "//none"), url.replace("//bucket", "//none")
    with pytest.raises(SourceNotFoundError, match="there is no such file; check the path"):
        mg.ingest(f"{none}/e.txt", tmp_path / "none.zarr")
    with pytest.raises(StoreError, match=r"there is no matrix store at|cannot be reached"):
        mg.open_matrix(f"{nowhere}/web.zarr")
    with pytest.raises(StoreError, match=r"none/a.zarr.*: .*check .*and the credentials") as caught:
        mg.ingest(tmp_path / "e.txt", f"{nowhere}/a.zarr")
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match=r"checkpoints cannot be written to|cannot be reached"):
        mg.pagerank(mg.open_matrix(tmp_path / "web.zarr"), checkpoint=f"{nowhere}/c.zarr")
    for name, format in (("a.mtx", None), ("a.zarr", "binsparse")):
        with pytest.raises(StoreError, match=rf"cannot write {none}/{name}: .*; check that the bucket exists"):
            mg.export(tmp_path / "web.zarr", f"{none}/{name}", format=format)
    assert check_store(f"{nowhere}/web.zarr").status == "wrong"


REFUSALS = {
    "s3": ("application/xml", "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"),
    "gs": ("application/json", '{"error": {"code": 403, "message": "no storage.objects.get access"}}'),
    "az": ("application/xml", "<Error><Code>AuthorizationFailure</Code><Message>not authorized</Message></Error>"),
}
"""Bodies of answers of servers that refuse."""


@contextmanager
def refuse(protocol: str) -> Iterator[str]:
    """Address of a server that lets nobody in."""
    kind, text = REFUSALS[protocol]

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(403)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            if protocol == "az":
                self.send_header("x-ms-error-code", "AuthorizationFailure")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        do_GET = do_HEAD = do_PUT = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.slow), "gs", "az"])
def refused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Protocol of a server that refuses, to which the environment leads, with credentials."""
    protocol = request.param
    if protocol == "gs":
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    pytest.importorskip({"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}[protocol])
    with refuse(protocol) as address:
        account = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY};BlobEndpoint={address}/devstoreaccount1"
        given = {
            "s3": {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hidden"},
            "gs": {"STORAGE_EMULATOR_HOST": address},
            "az": {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{account};"},
        }[protocol]
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
        yield protocol
        fsspec.get_filesystem_class(protocol).clear_instance_cache()


def test_who_may_not(refused, tmp_path):
    (tmp_path / "e.txt").write_text(EDGES)
    local = mg.ingest(tmp_path / "e.txt", tmp_path / "web.zarr")
    calls = {
        SourceError: lambda: mg.ingest(f"{refused}://bucket/e.txt", tmp_path / "none.zarr"),
        StoreError: lambda: mg.open_matrix(f"{refused}://bucket/web.zarr"),
        MgspmvError: lambda: mg.pagerank(local, checkpoint=f"{refused}://bucket/c.zarr"),
        OSError: lambda: mg.export(local.info.url, f"{refused}://bucket/a.mtx"),
    }
    for kind, call in calls.items():
        with pytest.raises(kind, match="credentials") as caught:
            call()
        assert isinstance(caught.value, MgspmvError)
        assert "hidden" not in str(caught.value)
        assert AZURE_KEY not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none.zarr").exists()
    found = check_store(f"{refused}://bucket/web.zarr")
    assert found.status == "wrong"
    assert AZURE_KEY not in found.found


def test_a_place_that_does_not_answer(monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(files, "REACH_S", 0.2)
    monkeypatch.setattr("mgspmv.store.access.zarr.open_group", lambda *_, **__: let_go.wait(HANG_S))
    with pytest.raises(StoreError, match=r"memory://a cannot be reached: no answer within 0.2 seconds"):
        mg.open_matrix("memory://a")
    let_go.set()


def test_what_a_place_raises_itself():
    def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        files.reach(fail)


WITHOUT = """
    import sys
    for name in ("gcsfs", "adlfs", "s3fs", "aiohttp"):
        sys.modules[name] = None
    import mgspmv as mg
    from mgspmv.errors import MissingDependencyError
    from mgspmv.files import exists, find_system
    from mgspmv.ingest.files import find_files
    for url in ("gs://b/e", "az://b/e", "abfs://b/e", "s3://b/e"):
        for work in (mg.open_matrix, find_files, exists):
            try:
                work(url)
            except MissingDependencyError as error:
                print(error)
"""


@pytest.mark.slow
def test_the_package_to_install_is_named():
    child = [sys.executable, "-c", textwrap.dedent(WITHOUT)]
    said = subprocess.run(child, check=True, capture_output=True, text=True).stdout.splitlines()
    wanted = [f"mgspmv[{extra}]'" for extra in ("gcs", "azure", "azure", "remote") for _ in range(3)]
    assert [line.rpartition("; pip install '")[2] for line in said] == wanted
