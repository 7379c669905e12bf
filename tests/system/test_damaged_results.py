"""Saved ranks, batches, checkpoints and records that were edited, or of which bits were flipped: an error in one line,
or what was saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.report import load_run, render_report
from mgspmv.validation import seal
from tests.support.damage import ODD, Edit, Outcome, check_ending, check_outcome, edit_all, edits, observe

EDGES = "a b 1\nb c 2\nc a 1.5\na c 3\nc d 1\nd a 1\n"
PARQUET_KEY = b"mgspmv"
DEFINITION = """
folder = "{folder}/out"
[matrix.web]
source = "{folder}/edges.txt"
weights = true
[run.ranks]
alpha = [0.5, 0.85]
[batch.topics]
alpha = [0.5, 0.85]
"""


@dataclass(frozen=True)
class Sample:
    """What is saved, and what a call makes of it."""

    path: Path
    """A file or folder."""
    call: Callable[[Path], str]
    """Gives what the sound one and a damaged one that is accepted must have in common."""
    sound: str

    def list_texts(self) -> list[Path]:
        """Files that are JSON, or have some in them."""
        own = [self.path] if self.path.is_file() else sorted(self.path.rglob("*.json"))
        return [path for path in own if path.suffix in (".json", ".parquet")]

    def list_chunks(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file() and path.suffix != ".json")


def show_ranks(path: Path) -> str:
    """Load ranks, do all that can be done with them, and give what they are."""
    ranks = mg.load_solution(path)
    told = [repr(ranks), ranks._repr_html_(), json.dumps(ranks.to_dict()), repr(ranks.summary().to_dict())]
    assert all(told)
    assert render_report(load_run(path))
    ranks.check_order(3)
    return f"{ranks.digest()} {ranks.top(3)} {[str(name) for ids, _ in ranks.stream() for name in ids]}"


def show_batch(path: Path) -> str:
    """As `show_ranks`, of many vectors."""
    batch = mg.load_batch(path)
    assert all([repr(batch), batch._repr_html_(), json.dumps(batch.to_dict()), batch.check_order()])
    return f"{batch.digest()} {batch.top()}"


def start_from(path: Path) -> str:
    """Rank again from what is saved."""
    with mg.open_matrix(path.parent / "s.zarr") as matrix:
        return f"{mg.pagerank(matrix, nstart=mg.load_solution(path), tol=1e-13).values.round(9).tolist()}"


def resume(path: Path) -> str:
    """Go on from a checkpoint."""
    with mg.open_matrix(path.parent / "s.zarr") as matrix:
        ranks = mg.pagerank(matrix, norm="fixed", max_iter=6, checkpoint=mg.Checkpoint(path, resume=True))
    return f"{ranks.digest()} {ranks.changes}"


def report(path: Path) -> str:
    """A page about the newest run in a folder, or in a record; what it says of it may differ."""
    run = load_run(path)
    assert all([render_report(run), repr(run), run._repr_html_()])
    return "a page"


def make_samples(folder: Path) -> dict[str, Sample]:
    """By name."""
    (folder / "edges.txt").write_text(EDGES)
    mg.ingest(folder / "edges.txt", folder / "s.zarr", weights=True)
    made: dict[str, tuple[str, Callable[[Path], str]]] = {}
    with mg.open_matrix(folder / "s.zarr") as matrix:
        ranks = mg.pagerank(matrix, stop="topk:2")
        batches = {"batch": mg.pagerank_batch(matrix, {"x": ["a"], "y": ["b", "c"]})}
        batches["top"] = mg.pagerank_batch(matrix, {"x": ["a"], "y": ["b", "c"]}, keep_top=2)
        for suffix in (".zarr", ".parquet"):
            ranks.save(folder / f"ranks{suffix}")
            made |= {f"ranks{suffix}": (f"ranks{suffix}", show_ranks), f"start{suffix}": (f"ranks{suffix}", start_from)}
            for name, batch in batches.items():
                batch.save(folder / f"{name}{suffix}")
                made[f"{name}{suffix}"] = (f"{name}{suffix}", show_batch)
        kept = folder / "kept.zarr"
        mg.pagerank(matrix, norm="fixed", max_iter=6, checkpoint=mg.Checkpoint(kept, every_s=0))
        made["checkpoint"] = ("kept.zarr", resume)
    (folder / "p.toml").write_text(DEFINITION.format(folder=folder))
    mg.run_pipeline(folder / "p.toml")
    record = next((folder / "out/.mgspmv/runs").glob("*.json"))
    shutil.copy(record, folder / "record.json")
    made["record"] = ("record.json", report)
    return {name: Sample(folder / path, call, call(folder / path)) for name, (path, call) in made.items()}


def read_text(path: Path) -> bytes:
    """The JSON in a file."""
    if path.suffix == ".json":
        return path.read_bytes()
    text: bytes = pq.read_schema(path).metadata[PARQUET_KEY]
    return text


def write_text(path: Path, text: bytes) -> None:
    if path.suffix == ".json":
        path.write_bytes(text)
    else:
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({PARQUET_KEY: text}), path, write_page_checksum=True)


@contextmanager
def copy(sample: Sample) -> Iterator[Sample]:
    """A copy to be damaged, in the same folder."""
    path = sample.path.with_name(f"damaged{sample.path.suffix}")
    shutil.copytree(sample.path, path) if sample.path.is_dir() else shutil.copy(sample.path, path)
    try:
        yield Sample(path, sample.call, sample.sound)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_case(sample: Sample, edit: Edit, *, seals: bool = False) -> tuple[str, Outcome]:
    """What was done to a sample, and what becomes of the call.

    Parameters
    ----------
    seals : whether its digest is made again, as by somebody who writes such files
    """
    with copy(sample) as damaged:
        texts = damaged.list_texts()
        path = texts[edit.file % len(texts)]
        text, said = edit.apply(read_text(path))
        write_text(path, seal_again(text) if seals else text)
        return f"{path.relative_to(damaged.path.parent)}: {said}", observe(damaged.call, damaged.path)


def seal_again(text: bytes) -> bytes:
    """JSON with the right digests of all objects in it that have one."""

    def visit(value: Any) -> Any:
        if isinstance(value, list):
            return [visit(own) for own in value]
        if not isinstance(value, dict):
            return value
        own = {name: visit(part) for name, part in value.items()}
        return seal({name: part for name, part in own.items() if name != "sha256"}) if "sha256" in own else own

    try:
        return json.dumps(visit(json.loads(text))).encode()
    except (ValueError, RecursionError):
        return text


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    return make_samples(tmp_path_factory.mktemp("saved"))


@pytest.mark.fuzz
@given(data=st.data())
def test_edited_results_are_what_was_saved_or_an_error(samples, data):
    name = data.draw(st.sampled_from(sorted(samples)))
    said, found = run_case(samples[name], data.draw(edits))
    check_outcome(found, samples[name].sound, f"{name}: {said}")


@pytest.mark.fuzz
@given(data=st.data())
def test_results_with_impossible_fields_are_no_raw_exception(samples, data):
    name = data.draw(st.sampled_from(sorted(samples)))
    said, found = run_case(samples[name], data.draw(edits), seals=True)
    check_ending(found, f"{name}: {said}")


@pytest.mark.weekly
@pytest.mark.parametrize("name", ["ranks.parquet", "batch.parquet", "top.parquet", "start.parquet"])
def test_every_field_with_every_odd_value_is_no_raw_exception(samples, name):
    with copy(samples[name]) as damaged:
        for text, said in edit_all(read_text(damaged.path), ODD):
            write_text(damaged.path, seal_again(text))
            check_ending(observe(damaged.call, damaged.path), f"{name}: {said}")


@pytest.mark.fuzz
@given(data=st.data())
def test_flipped_bits_of_results_are_noticed(samples, data):
    name = data.draw(st.sampled_from(sorted(samples)))
    with copy(samples[name]) as damaged:
        files = damaged.list_chunks() if damaged.path.is_dir() else [damaged.path]
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        check_outcome(observe(damaged.call, damaged.path), samples[name].sound, f"{name}: {path.name}, bit {bit}")
