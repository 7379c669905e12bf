"""Values of variables in a definition: they are used, and told nowhere."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import mgspmv as mg
from mgspmv import errors
from mgspmv.errors import StepsFailedError, hide_secrets, hide_value
from tests.support.commands import invoke

SECRET = "hunter2-Hunter2"
FILES = {"edges.txt": "1 2\n2 3\n3 1\n1 3\n", "seeds.txt": "1\n"}


@pytest.fixture(autouse=True)
def hidden(monkeypatch):
    """What is hidden from one test on is not hidden in the next."""
    monkeypatch.setattr(errors, "_SHOWN", {})
    monkeypatch.setattr(errors, "_HIDDEN", [])


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *args):
        self.asked.append(self.path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server with files at a place that only who knows the secret knows; what it is asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", SECRET)
    for folder in (Path("served") / f"at-{SECRET}", Path(SECRET)):
        folder.mkdir(parents=True)
        for name, text in FILES.items():
            (folder / name).write_text(text)
    handler = type("Own", (Quiet,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory="served")) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        monkeypatch.setenv("PORT", str(serving.server_port))
        yield handler.asked
        serving.shutdown()


REMOTE = """folder = "out"
[matrix.web]
source = "http://127.0.0.1:${PORT}/at-${TOKEN}/edges.txt"
[run]
personalization = "${TOKEN}/seeds.txt"
checkpoint = true
[output]
formats = ["parquet", "csv", "zarr"]
"""
LOCAL = REMOTE.replace("http://127.0.0.1:${PORT}/at-${TOKEN}", "${TOKEN}")
OWN_FOLDER = LOCAL.replace('"out"', '"out/${TOKEN}"')


def find_told(*said: str) -> list[str]:
    """Where the secret stands: in what was said, and in files, but for those that it leads to."""
    told = [text for text in said if SECRET in text]
    own = ("served", SECRET)
    for path in Path().rglob("*"):
        if path.is_file() and path.parts[0] not in own and SECRET.encode() in path.read_bytes():
            told.append(str(path))
    return told


@pytest.mark.parametrize("text", [REMOTE, LOCAL, OWN_FOLDER], ids=["remote", "local", "own folder"])
def test_a_run_a_second_one_and_a_report_tell_no_value(server, text):
    Path("p.toml").write_text(text)
    said = [*invoke("run", "p.toml", "--dry-run"), *invoke("run", "p.toml", "--dry-run", "--json")]
    assert server == [], "nothing is sent before a run"
    said += invoke("run", "p.toml", "--log", "run.jsonl", "--debug")
    again = invoke("run", "p.toml", "--json")
    assert {step["state"] for step in json.loads(again[0])["steps"]} == {"kept"}
    said += [*again, *invoke("run", "p.toml", "--dry-run")]
    folder = "out" if text is not OWN_FOLDER else f"out/{SECRET}"
    said += invoke("report", folder, "-o", "report.html")
    said += invoke("info", f"{folder}/web.zarr")
    assert find_told(*said) == []
    [run] = Path(folder, ".mgspmv/runs").glob("*.json")
    definition = json.loads(run.read_text())["definition"]
    assert definition["run"]["personalization"] == "${TOKEN}/seeds.txt"
    assert definition["matrix"]["web"]["source"] in text
    assert any(SECRET in asked for asked in server) is (text is REMOTE), "it was sent where the definition says"


@pytest.mark.parametrize("text", [REMOTE, LOCAL], ids=["remote", "local"])
@pytest.mark.parametrize(
    ("was", "to"),
    [
        ("edges.txt", "missing.txt"),
        ("seeds.txt", "missing.txt"),
        ("checkpoint = true", "nstart = '${TOKEN}'"),
        ("checkpoint = true", "precision = '${TOKEN}'"),
    ],
)
def test_runs_that_fail_tell_no_value(server, text, was, to):
    Path("p.toml").write_text(text.replace(was, to))
    said = [*invoke("run", "p.toml", "--debug", "--log", "run.jsonl", code=None)]
    said += invoke("run", "p.toml", "--json", code=None)
    assert "error" in "".join(said)
    assert find_told(*said) == []


def test_python_raises_and_shows_none(server):
    Path("p.toml").write_text(LOCAL.replace("edges.txt", "missing.txt"))
    with pytest.raises(StepsFailedError) as caught:
        mg.run_pipeline("p.toml")
    plan = mg.plan_pipeline("p.toml")
    said = [str(caught.value), repr(caught.value), repr(caught.value.record), caught.value.record._repr_html_()]
    assert find_told(*said, repr(plan), plan._repr_html_()) == []
    assert "${TOKEN}/missing.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        (SECRET, f"at {SECRET}, {SECRET}.", "at ${X}, ${X}."),
        (SECRET, f"in{SECRET} {SECRET}s", f"in{SECRET} {SECRET}s"),  # another word
        (SECRET, json.dumps(f"line\n{SECRET}\n"), json.dumps("line\n${X}\n")),
        ('Quoted "ünicode"', json.dumps('of Quoted "ünicode"'), json.dumps("of ${X}")),
        ("A b/c?Dé", "http://h/A%20b/c%3FD%C3%A9/x", "http://h/${X}/x"),
        ("A b/c?Dé", "http://h/A%20b%2Fc%3FD%C3%A9/x", "http://h/${X}/x"),
        ("converged", "status converged", "status converged"),  # a word
        ("2026-11-26", "2026-11-26T10:00", "2026-11-26T10:00"),
        ("Short1", "Short1", "Short1"),
        ("", "nothing", "nothing"),
    ],
)
def test_what_is_hidden(value, text, shown):
    hide_value(value, "${X}")
    assert hide_secrets(text) == hide_secrets(shown) == shown


def test_what_is_shown_is_not_replaced_again():
    hide_value("graph.txt", "${GRAPH:-graph.txt.gz}")
    shown = hide_secrets("graph.txt and graph.txt")
    assert shown == hide_secrets(shown) == "${GRAPH:-graph.txt.gz} and ${GRAPH:-graph.txt.gz}"
