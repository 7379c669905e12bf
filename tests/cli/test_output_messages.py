"""Messages in Python's words, and the same in those of commands."""

from __future__ import annotations

import pytest

from mgspmv.cli.output import Option, translate

OPTIONS = {
    "ids": Option("--ids"),
    "weights": Option("--weights", "--no-weights", is_flag=True),
    "resume": Option("--resume", is_flag=True),
    "n_vertices": Option("--n-vertices"),
    "vertices": Option("--vertices"),
    "memory": Option("--memory"),
    "columns": Option("--columns"),
    "delimiter": Option("--delimiter"),
    "comment": Option("--comment"),
    "header": Option("--header", "--no-header", is_flag=True),
    "tol": Option("--tol"),
    "alpha": Option("--alpha"),
    "max_iter": Option("--max-iter"),
    "kernel": Option("--kernel"),
    "client": Option("--cluster or --scheduler"),
    "store": Option("STORE", is_positional=True),
}
ADVISED = {"ingest": {"transpose": Option("--transpose", is_flag=True), "kind": Option("--kind")}}

TABLE = {
    'pass ids="string"': "pass --ids string",
    "pass ids='string' if ids are names": "pass --ids string if ids are names",
    "pass weights=False": "pass --no-weights",
    "pass weights=True": "pass --weights",
    "pass header=True, or header=False": "pass --header, or --no-header",
    "pass n_vertices=7 if that is meant": "pass --n-vertices 7 if that is meant",
    "pass n_vertices= or vertices=": "pass --n-vertices or --vertices",
    "allow more by memory=.": "allow more by --memory.",
    "name them by columns=(...), or leave it out": "name them by --columns, or leave it out",
    'pass columns=("src", "dst")': "pass --columns src,dst",
    "pass columns=['a b', 'c']": "pass --columns 'a b,c'",
    'pass comment="none".': "pass --comment none.",
    "pass delimiter=';'": "pass --delimiter ';'",
    "pass delimiter='|'": "pass --delimiter '|'",
    r"pass delimiter='\t'": r"pass --delimiter $'\t'",
    "a smaller one fits, and alpha=None chooses one": "a smaller one fits, and --alpha auto chooses one",
    "pass alpha=0.9.": "pass --alpha 0.9.",
    "expected more (alpha=1e-3)": "expected more (--alpha 1e-3)",
    "pass kernel='csr-split' or 'auto'": "pass --kernel csr-split or auto",
    "kernel='a', 'b' or 'c' is not there": "--kernel a, b or c is not there",
    "ids 'a'; pass kernel='a b', 'c' or 'd'": "ids 'a'; pass --kernel 'a b', c or d",
    "pass kernel='a', or free 'x'": "pass --kernel a, or free 'x'",
    "pass kernel='a', or ids='b'": "pass --kernel a, or --ids b",
    "pass resume=True": "pass --resume",
    "leave out client=": "leave out --cluster or --scheduler",
    "give store=": "give STORE",
    "raise max_iter, or tol=": "raise --max-iter, or --tol",
    "max_iter must be 1 or more, not 0": "--max-iter must be 1 or more, not 0",
    "tol must be positive, not 0": "--tol must be positive, not 0",
    "wrong; raise alpha= a little": "wrong; raise --alpha a little",
    # what is no argument
    "'ids=1' is no id": "'ids=1' is no id",
    'found "memory= 7"': 'found "memory= 7"',
    "run `mgspmv ingest memory=4`": "run `mgspmv ingest memory=4`",
    "s3://bucket/a?memory=4 is no file": "s3://bucket/a?memory=4 is no file",
    "max_iter.csv is no file": "max_iter.csv is no file",
    "/data/max_iter/weights=False is no file": "/data/max_iter/weights=False is no file",
    "give it --cluster-option memory=4GB": "give it --cluster-option memory=4GB",
    "memory of the vertices' store": "memory of the vertices' store",
    "store is not there": "store is not there",
    "vector 0: alpha must be less than 1": "vector 0: --alpha must be less than 1",
    "memory is a folder": "memory is a folder",
    "a line is [memory=N] [ids=N]": "a line is [memory=N] [ids=N]",
    "a == b, and memory == 4": "a == b, and memory == 4",
    # advice that the command cannot follow
    "wrong; pass ids='int', or pass A=open_matrix(store)": "wrong; pass --ids int",
    "wrong; pass open_matrix(store), or pass ids='int'": "wrong; pass --ids int",
    "wrong; pass on_event=": "wrong",
    "wrong; pass on_event= or memory=": "wrong; pass --memory",
    "wrong; pass memory=, on_event= or ids=": "wrong; pass --memory or pass --ids",
    "wrong; pass memory= or on_event=": "wrong; pass --memory",
    "wrong; leave out client=, and pass x.T": "wrong; leave out --cluster or --scheduler, and pass x.T",
    "not read: denied; x=3; try later": "not read: denied; x=3; try later",
    "2 problem(s); take 2 problem(s)": "2 problem(s); take 2 problem(s)",
    # advice to run another command
    "no transpose; ingest it with transpose=True": "no transpose; ingest it with --transpose",
    "no graph; ingest its source again with kind='graph'": "no graph; ingest its source again with --kind graph",
    "no transpose; pass transpose=True": "no transpose",
}


@pytest.mark.parametrize("message", TABLE)
def test_messages_name_options(message):
    assert translate(message, OPTIONS, ADVISED) == TABLE[message]
