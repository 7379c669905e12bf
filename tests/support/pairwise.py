"""Covering arrays: few cases in which any two values of two axes meet, instead of the cross product of all axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from allpairspy import AllPairs

Axis = Iterable[Any] | Mapping[str, Any]
"""The values of an axis; a mapping gives each the name that it has in the test's id."""


def cover_pairs(**axes: Axis) -> pytest.MarkDecorator:
    """Parametrize a test so that each pair of values of two axes occurs in a case.

    Most faults that depend on parameters depend on one of them or on two (Kuhn, Wallace and Gallo, IEEE Transactions
    on Software Engineering 30(6), 2004), and the cases are few: as many as the two largest axes have pairs, not as all
    have combinations. They are the same in every process.

    Examples
    --------
    >>> mark = cover_pairs(dtype=["float32", "float64"], n=[0, 1, 7], has_values={"values": True, "pattern": False})
    >>> len(mark.args[1])
    6
    """
    named = {name: _name_values(axis) for name, axis in axes.items()}
    places = AllPairs([list(range(len(values))) for values in named.values()])
    columns = [list(values) for values in named.values()]
    cases = [[column[place] for column, place in zip(columns, case, strict=True)] for case in places]
    return pytest.mark.parametrize(
        tuple(axes), [pytest.param(*(v for _, v in case), id="-".join(k for k, _ in case)) for case in cases]
    )


def _name_values(axis: Axis) -> list[tuple[str, Any]]:
    if isinstance(axis, Mapping):
        return list(axis.items())
    values = list(axis)
    names = [_name(value, k) for k, value in enumerate(values)]
    return list(zip(names, values, strict=True))


def _name(value: Any, place: int) -> str:
    if isinstance(value, str | int | float | bool | type(None)):
        return str(value)
    return getattr(value, "__name__", f"{place}")
