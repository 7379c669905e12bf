"""The engine of power iteration: its steps, how it stops, and what it takes of a user's step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mgspmv.errors import OptionError, ShapeError
from mgspmv.model import Status
from mgspmv.solvers.options import PowerOptions
from mgspmv.solvers.power import PowerLoop, PowerTask, Products, Step
from mgspmv.solvers.run import run

A = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])


def make_products(matrix=A):
    return Products(lambda x: matrix @ x, np.array, np.asarray, "NumPy", matrix.nbytes)


def iterate(update, x=(1.0, 0.0, 0.0), matrix=A, **options):
    events = []
    asked = PowerOptions(**options)
    task = PowerTask("r", asked, asked.threshold(len(x)), "float64")
    outcome = run(PowerLoop(make_products(matrix), update, np.array(x), task), events.append)
    return outcome, events


def test_how_it_ends():
    def halve(y, x):
        return x / 2

    assert iterate(halve, tol=0.3)[0].status is Status.CONVERGED
    assert len(iterate(halve, tol=0.3)[1]) == 2
    assert len(iterate(halve, tol=0.1, norm="l1_per_node")[1]) == 2
    assert len(iterate(halve, tol=0.25)[1]) == 3
    assert iterate(halve, tol=0.3, max_iter=2)[0].status is Status.CONVERGED
    assert iterate(halve, tol=0.3, max_iter=1)[0].status is Status.MAX_ITER
    assert iterate(halve, norm="fixed", max_iter=7)[0].status is Status.COMPLETED
    assert iterate(lambda y, x: y / 0.0, norm="fixed", max_iter=7)[0].status is Status.NON_FINITE
    outcome, events = iterate(lambda y, x: 1e200 * y, max_iter=50)
    assert (outcome.status, len(events)) == (Status.NON_FINITE, 2)


@pytest.mark.parametrize("added", [0.0, -2.5, np.array([1.0, -3.0, 0.5])], ids=["no number", "number", "vector"])
@pytest.mark.parametrize(("of_product", "of_vector"), [(1.0, 0.0), (0.3, 0.0), (1.0, 1.0), (0.75, 0.25)])
def test_steps_that_are_known_by_their_numbers(of_product, of_vector, added):
    step = Step(of_product, of_vector, added)
    options = {"normalize": "l2", "x": (1.0, -2.0, 4.0), "norm": "fixed", "max_iter": 4}
    found, _ = iterate(step, **options)
    wanted, _ = iterate(lambda y, x: of_product * y + of_vector * x + added, **options)
    assert found.values.tolist() == wanted.values.tolist()
    assert step.place(lambda vector: vector[1:])(np.ones(2), np.ones(2)).shape == (2,)


def test_x_cannot_be_written():
    def write(y, x):
        x += y
        return x

    with pytest.raises(ValueError, match="read-only"):
        iterate(write)


def test_an_array_given_twice_is_no_convergence():
    kept = np.empty(3)

    def reuse(y, x):
        np.multiply(y, 0.5, out=kept)
        return kept

    for update in (reuse, lambda y, x: x, lambda y, x: x[:]):
        with pytest.raises(OptionError, match="update returned x or its previous result"):
            iterate(update)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            lambda y, x: y[:2],
            ShapeError,
            r"^update returned an array of shape \(2,\); return one of shape \(3,\), like y",
        ),
        (lambda y, x: y[:, None], ShapeError, r"shape \(3, 1\)"),
        (
            lambda y, x: None,
            OptionError,
            "^update returned a NoneType, expected an array of numpy; return an",
        ),
        (lambda y, x: list(y), OptionError, "^update returned a list"),
        (lambda y, x: y + 1j, OptionError, "^update returned complex128; return real numbers"),
    ],
)
def test_wrong_steps(wrong, error, message):
    with pytest.raises(error, match=message):
        iterate(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0}, "tol must be a positive number, not 0"),
        ({"tol": math.nan}, "tol must be a positive number, not nan"),
        ({"tol": math.inf}, "tol must be a positive number, not inf"),
        ({"tol": "small"}, "tol must be a positive number, not 'small'"),
        ({"tol": 0.1, "norm": "fixed"}, "norm='fixed' makes max_iter iterations and has no tolerance"),
        ({"tol": 1.0, "norm": "relative"}, "tol=1 with norm='relative' is met by any growing elements"),
        ({"norm": "l3"}, "norm must be one of 'l1', 'l1_per_node', 'linf', 'relative', 'fixed', not 'l3'"),
        ({"normalize": "l3"}, "normalize must be one of 'none', 'l1', 'l2', 'max', not 'l3'"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, not 0"),
        ({"max_iter": 2.5}, "max_iter must be an integer of at least 1, not 2.5"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        PowerOptions(**options)
