"""Web servers that take a connection and then send nothing, or nothing more: given up after a while of silence."""

from __future__ import annotations

import http.server
import re
import threading

import fsspec
import pytest
from aiohttp import ClientTimeout

import mgspmv as mg
from mgspmv import files
from mgspmv.errors import MgspmvError, SourceError, StepsFailedError, StoreError
from mgspmv.ingest.vertex_vectors import read_weights
from mgspmv.pipeline import run_pipeline
from tests.support.commands import invoke
from tests.support.definitions import write_definition

N_BYTES = 1 << 20


class _Silent(http.server.BaseHTTPRequestHandler):
    """Answers nothing, or of paths with `stops` the first half of a text; with `ranges` also that it gives pieces."""

    ended: threading.Event
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        if "stops" not in self.path:
            self.ended.wait()
            return
        self.answer(200, N_BYTES)

    def do_GET(self):
        if "stops" not in self.path:
            self.ended.wait()
            return
        place = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if place and "ranges" in self.path:
            begin, end = int(place[1]), min(int(place[2]), N_BYTES - 1)
            self.answer(206, end + 1 - begin, {"Content-Range": f"bytes {begin}-{end}/{N_BYTES}"})
            n_sent = end + 1 - begin if end < N_BYTES // 2 else 0
        else:
            self.answer(200, N_BYTES)
            n_sent = N_BYTES // 2
        self.wfile.write((b"1 2\n" * (n_sent // 4 + 1))[:n_sent])
        self.ended.wait()

    def answer(self, status, n_bytes, headers=()):
        self.send_response(status)
        for name, value in {"Content-Length": str(n_bytes), "ETag": '"1"', **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "REACH_S", 0.25)
    handler = type("Handler", (_Silent,), {"ended": threading.Event()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    handler.ended.set()
    server.shutdown()
    server.server_close()


SAID = "the server sent nothing for 0.25 seconds; read it again, or fetch the file first"


@pytest.mark.parametrize("name", ["silent.txt", "silent.mtx", "silent.parquet", "stops.txt", "stops-ranges.txt"])
def test_a_source(url, name):
    with pytest.raises(SourceError, match=f"^{url}/{name}: {SAID}"):
        mg.ingest(f"{url}/{name}", "a.zarr")


def test_everything_else_that_is_read(url, tmp_path):
    (tmp_path / "e.txt").write_text("1 2\n2 1\n")
    mg.ingest("e.txt", "g.zarr")
    uses = {
        "a list of vertices": lambda: mg.ingest("e.txt", "a.zarr", vertices=f"{url}/silent.v"),
        "a list of vertices that stops": lambda: mg.ingest("e.txt", "a.zarr", vertices=f"{url}/stops.v"),
        "an update": lambda: mg.update("g.zarr", insert=f"{url}/stops.txt"),
        "a vector": lambda: read_weights(f"{url}/silent.csv", string_ids=False),
    }
    for name, use in uses.items():
        with pytest.raises(MgspmvError) as caught:
            use()
        assert re.match(f"{url}/.*: {SAID}", str(caught.value)), name
    assert SAID in invoke("ingest", f"{url}/silent.txt", "a.zarr", code=3)[1]
    text = f'folder = "out"\n[matrix.web]\nsource = "{url}/silent.txt"\n'
    with pytest.raises((MgspmvError, StepsFailedError), match=r"the server sent nothing for 0\.25 seconds"):
        run_pipeline(write_definition(text))


def test_a_store(url):
    # One limit is that of the request, the other that of opening the place; on a busy machine either may be first.
    said = "(no answer within|the server sent nothing for) 0.25 seconds"
    with pytest.raises(StoreError, match=f"{url}/silent.zarr cannot be reached: {said}"):
        mg.open_matrix(f"{url}/silent.zarr")


def test_a_slow_server_is_not_given_up(monkeypatch):
    """Nothing limits a request as a whole, where the library has five minutes."""
    limit = files.find_web_options("https://example.org/e.txt")["https"]["client_kwargs"]["timeout"]
    assert (limit.total, limit.sock_connect, limit.sock_read) == (None, files.REACH_S, files.REACH_S)
    assert files.find_web_options("simplecache::http://example.org/e.txt").keys() == {"http"}
    assert files.find_web_options("s3://bucket/e.txt") == files.find_web_options("e.txt") == {}


def test_what_the_configuration_of_fsspec_says_comes_first(monkeypatch):
    own = {"timeout": ClientTimeout(total=7), "trust_env": True}
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": own})
    assert files.find_web_options("http://example.org/e.txt") == {"http": {"client_kwargs": own}}
