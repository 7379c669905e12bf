"""How many iterations are left."""

from __future__ import annotations

import pytest

from mgspmv.monitor.progress import predict_iterations_left


@pytest.mark.parametrize(
    ("changes", "tol", "left"),
    [
        ([1.0], 1e-3, None),
        ([1.0], 2.0, 0),
        ([1.0, 0.5], 0.5, 1),
        ([1.0, 0.5], 0.3, 1),
        ([1.0, 0.5], 0.25, 2),
        ([1.0, 1.0], 0.1, None),
        ([1.0, 2.0], 0.1, None),
        ([float("inf"), 1.0], 0.1, None),
        ([1.0, 0.5], 0.0, None),
    ],
)
def test_prediction(changes, tol, left):
    assert predict_iterations_left(changes, tol) == left


def test_prediction_over_several_steps_agrees_with_going_on():
    changes, tol = [0.7, 0.5, 0.125], 0.01
    rate = (0.125 / 0.7) ** (1 / 2)
    assert predict_iterations_left(changes, tol) == next(k for k in range(100) if 0.125 * rate**k < tol)
