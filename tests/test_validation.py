"""JSON of others: what is wrong is one ValueError in one line, which names the field."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from pydantic import TypeAdapter, ValidationError

from mgspmv.model import Status
from mgspmv.validation import DEPTH, check_fields


@dataclass(frozen=True)
class Part:
    n: int
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    status: Status
    change: float


RIGHT = {"parts": [{"n": 1}, {"n": 2, "said": {"x": [None]}}], "status": "converged", "change": "NaN"}


def nest(depth: int) -> list[Any]:
    return [nest(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "rconverged"}, r"status: input should be 'converged', .*, not 'rconverged'"),
        ({"change": None}, "change: input should be a valid number, not None"),
        ({"change": "x" * 200}, r"change: .*, not 'x{59}\.\.\."),
        ({"parts": {"n": 1}}, "parts: input should be a valid tuple, not .'n': 1."),
        ({"parts": [{"n": 1}, {"m": 2}]}, r"parts\.1\.n: field required"),
        ({"parts": [{"n": 1.5}]}, r"parts\.0\.n: .* fractional part, not 1\.5"),
        ({"parts": [{"n": 10**30}]}, "a number has 100 bits, but at most 64 are allowed"),
        ({"parts": [{"n": 1, "said": {"x": nest(DEPTH)}}]}, f"nested more than {DEPTH} levels deep"),
        ({"parts": [{"n": 1, "said": {"\ud800": 1}}]}, "surrogates not allowed"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(ValueError, match=said) as raised:
        check_fields(Whole, RIGHT | change)
    assert "\n" not in str(raised.value)


class Pair(NamedTuple):
    number: int | None
    name: str


@dataclass(frozen=True)
class Described:
    kind: Literal["a", "b", 1]
    pair: Pair | None
    shape: tuple[int, int]
    inner: Part
    weight: float | None = None
    notes: tuple[str, ...] = ()
    is_new: bool = False


EXACT = {"kind": "a", "pair": [1, "x"], "shape": [2, 3], "inner": {"n": 1, "more": 5}, "notes": ["x"], "more": 1}
OTHER = [
    {}, {"kind": 1}, {"kind": True}, {"kind": "c"}, {"pair": None}, {"pair": [None, "x"]}, {"pair": [1]},
    {"pair": [1, 2]}, {"pair": {"number": 1, "name": "x"}}, {"shape": (2, 3)}, {"shape": [2, 3, 4]},
    {"shape": [2.0, 3]}, {"shape": "23"}, {"inner": {}}, {"inner": {"n": "7"}}, {"inner": {"n": 1, "said": {"x": [1]}}},
    {"weight": 2}, {"weight": 0.5}, {"weight": float("inf")}, {"weight": "NaN"}, {"notes": []}, {"notes": [1]},
    {"notes": None}, {"is_new": True}, {"is_new": 1}, {"is_new": "yes"}, {"is_new": None},
]  # fmt: skip


@pytest.mark.parametrize("change", OTHER, ids=repr)
def test_values_become_what_pydantic_makes_of_them(change):
    value = EXACT | change
    wanted: Any
    try:
        wanted = TypeAdapter(Described).validate_python(value)
    except ValidationError:
        wanted = ValueError
    try:
        found: Any = check_fields(Described, value)
    except ValueError:
        found = ValueError
    assert repr(found) == repr(wanted)


def test_values_of_the_declared_kinds_need_no_pydantic(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert check_fields(Described, EXACT).pair == Pair(1, "x")
    with pytest.raises(ImportError):
        check_fields(Described, EXACT | {"weight": 2})
