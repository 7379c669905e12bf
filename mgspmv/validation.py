"""Validation of JSON that other programs may have written, at the point where it is read.

Each fault becomes one ValueError in one line, to which the reader adds the path and what to do.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

DEPTH = 24
"""Greatest depth of lists and objects in a file of this program."""
_PLAIN = (str, int, float, bool, NoneType)
_SHOWN = 60
"""Most characters of a wrong value in a message."""
FORMER_OPTIONS = {"tol_mode": "norm", "weights": "weight"}
"""Options of runs, by the names under which older results, records and checkpoints hold them."""


def parse_json(text: bytes | str) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError : it is invalid, or nested too deep
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def check_fields(model: type[T], value: Any) -> T:
    """Convert JSON values to a dataclass, TypedDict or model of pydantic, checking every field.

    Raises
    ------
    ValueError : a field is missing or has another type than declared; numbers beyond 64 bits; text that is not Unicode
    """
    check_plain(value)
    with suppress(_OtherKindError):
        return _convert(model, value)  # type: ignore[no-any-return]
    from pydantic import ValidationError  # takes a tenth of a second, with its adapters

    try:
        return _make_adapter(model).validate_python(value)  # type: ignore[arg-type, no-any-return]
    except ValidationError as error:
        raise ValueError(_describe(error)) from error


def check_plain(value: Any, depth: int = DEPTH) -> None:
    """Check that JSON values contain only what this program writes.

    Raises
    ------
    ValueError : a value is of another kind
    """
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"a number has {value.bit_length()} bits, but at most 64 are allowed")
    elif isinstance(value, dict | list):
        if not depth:
            raise ValueError(f"it is nested more than {DEPTH} levels deep")
        for own in value if isinstance(value, list) else (*value, *value.values()):
            check_plain(own, depth - 1)


def to_json(value: Any) -> Any:
    """Convert `value` to strict JSON; non-finite floats become their names, which float() reads."""
    if is_dataclass(value):
        return to_json({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())  # NumPy array or scalar
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def rename_former(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run under their present names."""
    return {FORMER_OPTIONS.get(name, name): value for name, value in options.items()}


def digest_json(value: Any) -> str:
    """Return the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def seal(described: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its digest added, by which edits are detected."""
    return described | {"sha256": digest_json(described)}


def check_seal(described: dict[str, Any]) -> None:
    """Raise ValueError if a JSON object was changed since `seal`."""
    own = {name: value for name, value in described.items() if name != "sha256"}
    if described.get("sha256") != digest_json(own):
        raise ValueError("it does not match its digest, so it was changed after it was written")


class _OtherKindError(Exception):
    """A value is not exactly of the declared kind: pydantic converts it, or says what is wrong."""


def _convert(kind: Any, value: Any) -> Any:
    """Convert JSON values to a kind as pydantic would, if they are exactly of it.

    Raises
    ------
    _OtherKindError : they are not, or the kind is none of those that are known here
    """
    kinds, origin = get_args(kind), get_origin(kind)
    if kind is Any or (kind in _PLAIN and type(value) is kind):
        return value
    if origin is Literal and any(type(each) is type(value) and each == value for each in kinds):
        return value
    if origin in (Union, UnionType):
        for each in kinds:
            with suppress(_OtherKindError):
                return _convert(each, value)
    if origin is dict and type(value) is dict:
        return {_convert(kinds[0], key): _convert(kinds[1], own) for key, own in value.items()}
    if origin is tuple and type(value) in (list, tuple):
        own_kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        if len(own_kinds) == len(value):
            return tuple(map(_convert, own_kinds, value))
    if isinstance(kind, type) and type(value) is list and hasattr(kind, "_fields"):  # a NamedTuple
        hints = list(_find_hints(kind).values())
        if len(hints) == len(value):
            return kind(*map(_convert, hints, value))
    if is_dataclass(kind) and type(value) is dict and not hasattr(kind, "__post_init__"):
        named, make = _find_hints(kind), cast("Any", kind)  # type: ignore[arg-type]
        needed = [own.name for own in fields(kind) if own.default is MISSING and own.default_factory is MISSING]
        if value.keys() >= {*needed}:
            return make(**{name: _convert(named[name], value[name]) for name in named.keys() & value.keys()})
    raise _OtherKindError


@cache
def _find_hints(kind: Any) -> dict[str, Any]:
    """Return the kinds of the fields of a dataclass or NamedTuple, with what is annotated to them."""
    return get_type_hints(kind, include_extras=True)


@cache
def _make_adapter(model: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def _describe(error: Any) -> str:
    """Describe the first wrong field: what was expected and what was found."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"])) or "top level"
    said = first["msg"][:1].lower() + first["msg"][1:]
    found = repr(first["input"])
    found = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
    return f"{field}: {said}" + ("" if first["type"] == "missing" else f", not {found}")
