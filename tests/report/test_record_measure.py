"""What records have of results."""

from __future__ import annotations

import json

import numpy as np
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.report.record import describe_solution


def test_a_solution_is_described_in_json(tmp_path):
    matrix = mg.ingest(sp.coo_array(np.eye(4, k=1)), tmp_path / "g", kind="graph")
    solution = mg.pagerank(matrix)
    told = json.loads(json.dumps(describe_solution(solution, 2), allow_nan=False))
    assert told["top"] == [[name, rank] for name, rank in solution.top(2)]
    assert told["result"]["iterations"] == len(told["result"]["changes"])
    assert told["summary"]["n"] == 4
    assert (told["options"], told["matrix"], told["memory"]) == (
        solution.options,
        solution.matrix | {"shape": [4, 4]},
        solution.memory,
    )
    assert "options" not in told["result"]
