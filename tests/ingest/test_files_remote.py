"""Files of web servers and of an S3 that run here: the same stores as of local files, and what fails on the way."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import os
import re
import socket
import threading
from urllib.parse import unquote

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv as mg
from mgspmv.errors import SourceError, SourceNotFoundError
from mgspmv.ingest import files
from mgspmv.ingest.budget import ANY_ROOM
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.files import find_files
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.tables import ParquetSource
from tests.support.buckets import serve_s3
from tests.support.commands import invoke
from tests.support.shrinking import shrink
from tests.support.waiting import HANG_S

TEXT = "".join(f"{k} {k * k % 977}\n" for k in range(60_000)).encode()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pieces of which a small file has many, and no waiting."""
    for name, value in {"PIECE_BYTES": 50_000, "WAITS_S": (0.0, 0.0)}.items():
        monkeypatch.setattr(files, name, value)


def read_text(url):
    with TextStream(url) as text:
        return b"".join(chunk.data for chunk in text.chunks()), text.provenance()


class Web:
    """A web server of files that are in memory, and how it behaves."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""
        self.has_ranges, self.has_sizes = True, True
        self.status: dict[str, int] = {}
        """Of files that are refused."""
        self.breaks: list[int] = []
        """Bytes after which the connection of one of the next answers with pieces breaks."""
        self.changes: dict[str, bytes] = {}
        """What becomes of files once a piece in their middle was asked for."""
        handler = type("Handler", (_Handler,), {"web": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join(HANG_S)
        self._server.server_close()

    @property
    def ranges(self):
        return [place for method, _, place in self.asked if method == "GET" and place]


class _Handler(http.server.BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, is_head):
        web, path = self.web, unquote(self.path)
        web.asked.append((self.command, path, self.headers.get("Range")))
        if path.endswith("/"):
            links = "".join(f'<a href="{name}">{name}</a>' for name in web.files if name.startswith(path))
            return self.send(200, links.encode(), is_head, {"Content-Type": "text/html"})
        status = web.status.get(path, 200 if path in web.files else 404)
        if status != 200:
            return self.send(status, b"no", is_head)
        data = web.files[path]
        tag = {"ETag": f'"{hash(data)}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not asked or not web.has_ranges:
            return self.send(200, data, is_head, tag)
        start, stop = int(asked[1]), int(asked[2]) + 1
        place = {"Content-Range": f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}", **tag}
        self.send(206, data[start:stop], is_head, place)
        if path in web.changes and start > len(data) // 2:
            web.files[path] = web.changes[path]
        return None

    def send(self, status, data, is_head, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if self.web.has_sizes:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if is_head:
            return
        is_middle = (status == 206 and len(data) > 1) or (status == 200 and len(data) > 100_000)
        if is_middle and self.web.breaks:
            self.wfile.write(data[: self.web.breaks.pop()])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize("has_ranges", [True, False])
def test_texts_of_a_web_server(web, has_ranges, has_sizes):
    web.has_ranges, web.has_sizes = has_ranges, has_sizes
    for name in ("/e.txt", "/e.txt.gz", "/small", "/empty", "/e?version=2"):
        text = {"/small": b"1 2\n", "/empty": b""}.get(name, TEXT)
        web.files[name] = gzip.compress(text) if name.endswith(".gz") else text
        found, provenance = read_text(web.url + name)
        assert found == text, name
        assert provenance == {
            "name": web.url + name,
            "bytes": len(web.files[name]),
            "sha256": hashlib.sha256(web.files[name]).hexdigest(),
            "compression": "gzip" if name.endswith(".gz") else None,
        }


def test_the_store_is_that_of_the_file(web, tmp_path):
    web.files["/e.txt"] = TEXT
    (tmp_path / "e.txt").write_bytes(TEXT)
    assert mg.ingest(f"{web.url}/e.txt").info.digest == mg.ingest(tmp_path / "e.txt").info.digest


def test_signatures_of_urls_are_kept_nowhere(web, tmp_path):
    web.files["/e.txt?sig=hidden"] = TEXT
    url = f"{web.url}/e.txt?sig=hidden"
    info = mg.ingest(url, tmp_path / "e.zarr", format="edge-list").info
    assert info.provenance["source"]["name"] == f"{web.url}/e.txt?sig=***"
    assert all(b"hidden" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    web.status["/e.txt?sig=hidden"] = 403
    for mode in ("--json", "--debug"):
        said = invoke("ingest", url, str(tmp_path / "f.zarr"), "--format", "edge-list", mode, code=3)
        assert "sig=***" in said[1]
        assert "hidden" not in "".join(said)


def test_patterns_of_a_web_server(web):
    for k in range(3):
        web.files[f"/edges/{k}.csv.gz"] = gzip.compress(b"%d,%d\n" % (k, k + 1))
    web.files["/edges/_notes.csv.gz"] = web.files["/edges/other"] = b"none of these"
    assert find_files(f"{web.url}/edges/*.csv.gz") == [f"{web.url}/edges/{k}.csv.gz" for k in range(3)]
    info = mg.ingest(f"{web.url}/edges/*.csv.gz").info
    assert (info.shape, info.nnz) == ((4, 4), 3)
    assert [file["name"] for file in info.provenance["source"]["files"]] == find_files(f"{web.url}/edges/*.csv.gz")
    with pytest.raises(SourceNotFoundError, match="no file matches this pattern"):
        find_files(f"{web.url}/edges/*.zst")


def test_a_parquet_table_of_a_web_server(web, tmp_path):
    ends = np.random.default_rng(0).integers(0, 1000, (2, 50_000))
    pq.write_table(pa.table({"a": ends[0], "b": ends[1]}), tmp_path / "e.parquet", row_group_size=5000)
    web.files["/e.parquet"] = (tmp_path / "e.parquet").read_bytes()
    info = mg.ingest(f"{web.url}/e.parquet").info
    assert info.digest == mg.ingest(tmp_path / "e.parquet").info.digest


def test_texts_of_a_web_server_are_shared_out_whole(web):
    text = b"".join(b"%d %d\n" % (k % 701, k % 97) for k in range(30_000))
    web.files |= {"/a.txt": text, "/b.txt": text[: len(text) // 2]}
    make = lambda: EdgeListSource([f"{web.url}/a.txt", f"{web.url}/b.txt"])  # noqa: E731
    source, rows = make(), []
    split = source.split(4)
    for part in split:
        part.prepare(2, ANY_ROOM)
        rows += [batch.rows for batch in part.batches()]
    assert len(split) == 2
    assert np.array_equal(np.concatenate(rows), np.concatenate([batch.rows for batch in make().batches()]))
    names = [file["name"] for file in source.join([part.summarize() for part in split]).provenance["files"]]
    assert names == [f"{web.url}/a.txt", f"{web.url}/b.txt"]


@pytest.fixture
def table(tmp_path):
    """Path of a Parquet table of 100,000 edges, some 1.6 MB."""
    ends = np.random.default_rng(0).integers(0, 2**60, (2, 100_000))
    pq.write_table(pa.table({"a": ends[0], "b": ends[1]}), tmp_path / "e.parquet", row_group_size=30_000)
    return tmp_path / "e.parquet"


def test_pieces_of_a_parquet_table_are_fetched_once(web, table, monkeypatch):
    """But for the last, which says where everything is and is needed first."""
    monkeypatch.setattr(files, "PIECE_BYTES", 200_000)
    web.files["/e"] = table.read_bytes()
    shrink(monkeypatch, ingest__tables={"BATCH_ROWS": 10_000})
    source = ParquetSource(f"{web.url}/e")
    assert sum(len(batch.rows) for batch in source.batches()) == 100_000
    n_pieces = -(-len(web.files["/e"]) // 200_000)
    assert n_pieces == len(set(web.ranges)) <= len(web.ranges) <= n_pieces + 1


@pytest.mark.parametrize("has_sizes", [True, False])
def test_parquet_tables_need_pieces(web, table, has_sizes):
    web.has_ranges, web.has_sizes = False, has_sizes
    web.files["/e"] = table.read_bytes()
    message = "cannot be read: .*range requests" if has_sizes else "the server does not report the size"
    with pytest.raises(SourceError, match=f"/e: {message}"):
        mg.ingest(f"{web.url}/e", format="parquet")


def test_a_connection_that_breaks_in_a_parquet_table(web, table, monkeypatch):
    web.files["/e"] = table.read_bytes()
    shrink(monkeypatch, ingest__tables={"BATCH_ROWS": 1000})
    batches = ParquetSource(f"{web.url}/e").batches()
    next(batches)
    web.breaks = [20_000] * 100
    with pytest.raises(SourceError, match=r"/e: cannot be read: .*; check the address, the connection"):
        list(batches)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (404, SourceNotFoundError, "there is no such file; check the path"),
        (410, SourceNotFoundError, "there is no such file; check the path"),
        (401, SourceError, "permission denied: 401.*; check the credentials and their permissions"),
        (403, SourceError, "permission denied: 403.*; check the credentials and their permissions"),
        (500, SourceError, "cannot be read: 500.*; check the address, the connection and the credentials, and ingest"),
    ],
)
def test_files_that_a_web_server_refuses(web, status, error, message):
    web.status["/e"] = status
    for format in ("edge-list", "parquet"):
        with pytest.raises(error, match=f"{web.url}/e: {message}") as caught:
            mg.ingest(f"{web.url}/e", format=format)
        assert type(caught.value) is error


def test_no_server(web):
    web.close()
    with pytest.raises(SourceError, match=r"/e: cannot be read: .*; check the address, the connection and") as caught:
        read_text(f"{web.url}/e")
    assert type(caught.value) is SourceError
    with pytest.raises(SourceError, match=r"/\*: cannot be read: .*; check the address"):
        find_files(f"{web.url}/*")
    web.__init__()  # so that there is one to be closed


@pytest.mark.parametrize("n_times", [1, 2])
def test_a_connection_that_breaks_is_tried_again(web, n_times):
    web.files["/e"] = TEXT
    web.breaks = [100] * n_times
    assert read_text(f"{web.url}/e")[0] == TEXT
    assert web.breaks == []


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("name", ["/e", "/e.gz"])
def test_a_connection_that_breaks_for_good(web, has_ranges, name, tmp_path):
    web.has_ranges = has_ranges
    web.files[name] = gzip.compress(TEXT, 1) if name == "/e.gz" else TEXT
    web.breaks = [20_000] * 100
    with pytest.raises(SourceError, match=r"cannot be read: .*; check the address, the connection and the credentials"):
        mg.ingest(web.url + name, tmp_path / "store", format="edge-list")
    assert not (tmp_path / "store").exists()


def test_a_server_that_sends_less_than_it_says(web, monkeypatch):
    web.files["/e"] = TEXT
    real = _Handler.send
    cut = lambda self, status, data, *more: real(self, status, data[: 49_000 if status == 206 else None], *more)  # noqa: E731
    monkeypatch.setattr(_Handler, "send", cut)
    with pytest.raises(SourceError, match=r"/e: cannot be read: received 49000 of 312144 bytes from byte 0 on"):
        read_text(f"{web.url}/e")


def test_a_file_that_changes_while_it_is_read(web):
    web.files["/e"], web.changes["/e"] = TEXT, TEXT[::-1]
    with pytest.raises(SourceError, match=r"/e: was changed while it was read; copy it first"):
        read_text(f"{web.url}/e")


@pytest.fixture(scope="module")
def s3():
    """The file system of an S3 that runs here, where there is a bucket."""
    with serve_s3() as system:
        yield system


@pytest.fixture
def bucket(s3):
    """Folder of the bucket for one test."""
    folder = f"bucket/{os.urandom(4).hex()}"
    fsspec.filesystem("s3").invalidate_cache()
    return folder


@pytest.mark.external
@pytest.mark.parametrize("name", ["e.txt", "e.txt.gz", "small"])
def test_texts_of_s3(s3, bucket, name):
    text = b"1 2\n" if name == "small" else TEXT
    s3.pipe(f"{bucket}/{name}", gzip.compress(text) if name.endswith("gz") else text)
    found, provenance = read_text(f"s3://{bucket}/{name}")
    assert found == text
    assert provenance["sha256"] == hashlib.sha256(s3.cat(f"{bucket}/{name}")).hexdigest()


@pytest.mark.external
def test_parquet_tables_of_s3(s3, bucket, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "e").mkdir()
    for k in range(3):
        ends = rng.integers(0, 1000, (2, 5000))
        pq.write_table(pa.table({"a": ends[0], "b": ends[1]}), tmp_path / f"e/{k}.parquet", row_group_size=1000)
        s3.pipe(f"{bucket}/e/{k}.parquet", (tmp_path / f"e/{k}.parquet").read_bytes())
    info = mg.ingest(f"s3://{bucket}/e/*.parquet").info
    assert info.digest == mg.ingest(tmp_path / "e").info.digest


@pytest.mark.external
def test_an_object_that_is_replaced_while_it_is_read(s3, bucket, monkeypatch):
    s3.pipe(f"{bucket}/e", TEXT)
    real, starts = files._fetch, []

    def replace(file, url, fetch, start, stop):
        starts.append(start)
        if start:
            s3.pipe(f"{bucket}/e", TEXT[::-1])
        return real(file, url, fetch, start, stop)

    monkeypatch.setattr(files, "_fetch", replace)
    with pytest.raises(SourceError, match=r"/e: cannot be read: .*Etag .* no longer exists.*; check the address"):
        read_text(f"s3://{bucket}/e")
    assert len(starts) > 1


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_web_server_tells_whether_a_file_changed(web):
    web.files["/e.txt"] = TEXT
    before = files.describe_url(f"{web.url}/e.txt")
    assert files.describe_url(f"{web.url}/e.txt") == before
    web.files["/e.txt"] = TEXT[::-1]
    assert files.describe_url(f"{web.url}/e.txt") != before


@pytest.mark.external
def test_s3_tells_whether_a_file_changed(s3, bucket):
    s3.pipe(f"{bucket}/e.txt", TEXT)
    before = files.describe_url(f"s3://{bucket}/e.txt")
    s3.pipe(f"{bucket}/e.txt", TEXT[::-1])
    assert files.describe_url(f"s3://{bucket}/e.txt") != before


def test_a_server_without_the_file(web):
    with pytest.raises(SourceNotFoundError, match="there is no such file"):
        files.describe_url(f"{web.url}/none")
