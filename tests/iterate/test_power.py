"""The engine of power iteration: its steps, how it stops, and what it takes of a user's step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mgspmv.errors import OptionError, ShapeError
from mgspmv.iterate.power import PowerOptions, Products, Step, iterate_power
from mgspmv.model import Status

A = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])


def make_products(matrix=A):
    return Products(lambda x: matrix @ x, np.array, np.asarray, "NumPy", matrix.nbytes)


def iterate(update, x=(1.0, 0.0, 0.0), matrix=A, **options):
    events = []
    outcome = iterate_power(make_products(matrix), update, np.array(x), PowerOptions(**options), events.append, run="r")
    return outcome, events


# --- iterating -------------------------------------------------------------------------------------------------------


def test_largest_eigenvalue():
    outcome, events = iterate(lambda y, x: y, norm="l2", tol=1e-14, max_iter=200)
    assert outcome.status is Status.CONVERGED
    assert outcome.error_bound_l1 == math.inf
    np.testing.assert_allclose(outcome.values, [0.5, math.sqrt(0.5), 0.5], rtol=1e-13)
    assert [e.iteration for e in events] == list(range(1, len(events) + 1))
    assert all(e.run == "r" and e.change >= 0 and e.product_s[0] > 0 for e in events)
    assert events[-1].change < 1e-14 <= events[-2].change
    assert outcome.seconds["product"] == sum(e.product_s[0] for e in events)


def test_linear_system():
    b = np.array([1.0, 2.0, 3.0])
    outcome, _ = iterate(lambda y, x: x + 0.3 * (b - y), tol=1e-14, max_iter=300)
    np.testing.assert_allclose(outcome.values, np.linalg.solve(A, b), atol=1e-12)


def test_change_is_measured_in_the_norm_that_is_asked_for():
    step = np.array([1.0, -3.0, 0.5])
    for tol_mode, wanted in (("l1", 4.5), ("l1_per_node", 4.5), ("linf", 3.0)):
        _, events = iterate(lambda y, x: x + step, tol_mode=tol_mode, max_iter=2)
        assert [e.change for e in events] == [wanted, wanted]
    _, events = iterate(lambda y, x: x + step, tol_mode="relative", max_iter=3)
    assert [e.change for e in events] == [1.0, 0.5, 1 / 3]
    _, events = iterate(lambda y, x: x + step, tol_mode="fixed", max_iter=3)
    assert [e.change for e in events] == [4.5] * 3


def test_how_it_ends():
    def halve(y, x):
        return x / 2

    assert iterate(halve, tol=0.3)[0].status is Status.CONVERGED
    assert len(iterate(halve, tol=0.3)[1]) == 2
    assert len(iterate(halve, tol=0.1, tol_mode="l1_per_node")[1]) == 2
    assert len(iterate(halve, tol=0.25)[1]) == 3
    assert iterate(halve, tol=0.3, max_iter=2)[0].status is Status.CONVERGED
    assert iterate(halve, tol=0.3, max_iter=1)[0].status is Status.MAX_ITER
    assert iterate(halve, tol_mode="fixed", max_iter=7)[0].status is Status.COMPLETED
    assert iterate(lambda y, x: y / 0.0, tol_mode="fixed", max_iter=7)[0].status is Status.NON_FINITE
    outcome, events = iterate(lambda y, x: 1e200 * y, max_iter=50)
    assert (outcome.status, len(events)) == (Status.NON_FINITE, 2)


def test_a_vector_that_vanishes_has_converged():
    outcome, events = iterate(lambda y, x: y, matrix=np.eye(3, k=1), norm="max", x=(0.0, 1.0, 0.0))
    assert (outcome.status, len(events), outcome.values.tolist()) == (Status.CONVERGED, 3, [0, 0, 0])


@pytest.mark.parametrize("added", [0.0, -2.5, np.array([1.0, -3.0, 0.5])], ids=["no number", "number", "vector"])
@pytest.mark.parametrize(("of_product", "of_vector"), [(1.0, 0.0), (0.3, 0.0), (1.0, 1.0), (0.75, 0.25)])
def test_steps_that_are_known_by_their_numbers(of_product, of_vector, added):
    step = Step(of_product, of_vector, added)
    options = {"norm": "l2", "x": (1.0, -2.0, 4.0), "tol_mode": "fixed", "max_iter": 4}
    found, _ = iterate(step, **options)
    wanted, _ = iterate(lambda y, x: of_product * y + of_vector * x + added, **options)
    assert found.values.tolist() == wanted.values.tolist()
    assert step.place(lambda vector: vector[1:])(np.ones(2), np.ones(2)).shape == (2,)


# --- steps of users --------------------------------------------------------------------------------------------------


def test_x_cannot_be_written():
    def write(y, x):
        x += y
        return x

    with pytest.raises(ValueError, match="read-only"):
        iterate(write)


def test_y_may_be_written_and_arrays_of_others_are_left_alone():
    start, y_seen = np.array([1.0, 2.0, 3.0]), []

    def write(y, x):
        y_seen.append(y)
        y *= 0.25
        return y

    outcome, _ = iterate(write, x=start, tol=1e-9, max_iter=500)
    assert start.tolist() == [1, 2, 3]
    assert outcome.status is Status.CONVERGED
    assert len({id(y) for y in y_seen[-2:]}) == 2


def test_an_array_given_twice_is_no_convergence():
    kept = np.empty(3)

    def reuse(y, x):
        np.multiply(y, 0.5, out=kept)
        return kept

    for update in (reuse, lambda y, x: x, lambda y, x: x[:]):
        with pytest.raises(OptionError, match="update gave x, or the array that it gave before"):
            iterate(update)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda y, x: y[:2], ShapeError, r"^update gave an array of shape \(2,\); give one of \(3,\), as y and x are$"),
        (lambda y, x: y[:, None], ShapeError, r"shape \(3, 1\)"),
        (lambda y, x: None, OptionError, "^update gave a NoneType, and its arguments are arrays of numpy; give such"),
        (lambda y, x: list(y), OptionError, "^update gave a list"),
        (lambda y, x: y + 1j, OptionError, "^update gave complex128; give real numbers"),
    ],
)
def test_wrong_steps(wrong, error, message):
    with pytest.raises(error, match=message):
        iterate(wrong)


def test_steps_may_give_other_real_dtypes():
    outcome, _ = iterate(lambda y, x: np.array([1, 2, 3]), tol_mode="fixed", max_iter=1)
    assert (outcome.values.dtype, outcome.values.tolist()) == (np.float64, [1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0}, "tol must be a positive number, not 0"),
        ({"tol": math.nan}, "tol must be a positive number, not nan"),
        ({"tol": math.inf}, "tol must be a positive number, not inf"),
        ({"tol": "small"}, "tol must be a positive number, not 'small'"),
        ({"tol": 0.1, "tol_mode": "fixed"}, "tol_mode='fixed' makes max_iter iterations and has no tolerance"),
        ({"tol": 1.0, "tol_mode": "relative"}, "tol=1 with tol_mode='relative' is met by any elements that grow"),
        ({"tol_mode": "l3"}, "tol_mode must be one of 'l1', 'l1_per_node', 'linf', 'relative', 'fixed', not 'l3'"),
        ({"norm": "l3"}, "norm must be one of 'none', 'l1', 'l2', 'max', not 'l3'"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, not 0"),
        ({"max_iter": 2.5}, "max_iter must be an integer of at least 1, not 2.5"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        PowerOptions(**options)
