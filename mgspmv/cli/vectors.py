"""Options that are vectors over vertices: a file, or ids, each with an optional number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mgspmv.errors import OptionError, SourceNotFoundError
from mgspmv.files import is_url
from mgspmv.ingest.tokens import is_plain_integer
from mgspmv.ingest.vector_files import DANGLING_RULES

FILE, IDS = "file:", "id:"
"""Prefixes of a value that mark it as a file or as ids."""

_ENTRY = re.compile(r'(?:^|,)\s*(?:"((?:[^"]|"")*)"\s*(?:=\s*([^,]*?)\s*)?(?=,|$)|([^,]*))')


def read_vectors(matrix: Any, *, aligns: bool = False, **given: str | None) -> dict[str, Any]:
    """Read the given vectors, by the names of the arguments that take them.

    Parameters
    ----------
    matrix : whose vertices the vectors are over
    aligns : `nstart` may be earlier ranks of the graph, as in `mgspmv.api.arguments.read_vector`
    given : value of each on the command line; None where not given

    Raises
    ------
    OptionError : malformed ids or, after `id:`, ids that the store does not have
    SourceNotFoundError : neither a file nor ids of the store
    SourceError, StoreError : a file that cannot be read
    """
    return {name: _read(name, text, matrix, aligns) for name, text in given.items() if text is not None}


def _read(name: str, text: str, matrix: Any, aligns: bool) -> Any:
    from mgspmv.api.arguments import read_vector

    if name == "dangling" and text in DANGLING_RULES:
        return text
    if name == "beta" and (number := to_number(text)) is not None:
        return number
    if text.startswith(IDS):
        return _read_ids(name, text.removeprefix(IDS), matrix)
    is_marked = text.startswith(FILE) and not text.startswith(f"{FILE}//")
    path = text.removeprefix(FILE) if is_marked else text
    if not (is_marked or (not is_url(text) and Path(text).exists())):
        try:
            return _read_ids(name, text, matrix)
        except OptionError as error:
            if not is_url(text):  # vertices may have URLs as ids
                rules = f"; expected {', '.join(DANGLING_RULES)}, a file or ids" if name == "dangling" else ""
                raise SourceNotFoundError(f"{error}; and no file {text!r} exists{rules}") from error
    return read_vector(path, matrix.vertex_ids, aligns=aligns and name == "nstart")


def _read_ids(name: str, text: str, matrix: Any) -> dict[Any, float] | list[Any]:
    """Read ids by `parse_ids`, and check that the store has them."""
    from mgspmv.lookup import ArrayLookup

    ids = matrix.vertex_ids
    found = parse_ids(name, text, string_ids=ids is not None and ids.dtype == object)
    ArrayLookup(matrix.shape[0], ids).find_all(name, list(found))
    return found


def to_number(text: str) -> float | None:
    """Return text as a number, None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_ids(name: str, text: str, *, string_ids: bool) -> dict[Any, float] | list[Any]:
    """Read ids between commas, such as `alice`, `alice=2,bob=1` or `"Smith, J"=2`.

    Parameters
    ----------
    name : of the argument, for messages
    string_ids : ids are strings, as they are in a store with such `vertex_ids`; else they are integers

    Returns
    -------
    A mapping of ids to numbers, or a list of ids where none has a number.

    Raises
    ------
    OptionError : an empty, repeated or, in a store of integer ids, non-integer id; numbers for some ids only
    """
    found = (_parse_entry(name, *entry.groups()) for entry in _ENTRY.finditer(text))
    entries = [(_to_id(name, label, string_ids), number) for label, number in found]
    ids = [label for label, _ in entries]
    repeated = next((label for k, label in enumerate(ids) if label in ids[:k]), None)
    if repeated is not None:
        raise OptionError(f"{name} has the id {repeated!r} more than once; give each id one number")
    numbers = {label: number for label, number in entries if number is not None}
    if numbers and len(numbers) < len(ids):
        bare = next(label for label in ids if label not in numbers)
        raise OptionError(f"{name} has numbers for some ids and none for {bare!r}; give each a number, or none")
    return numbers or ids


def _parse_entry(name: str, quoted: str | None, number: str | None, plain: str) -> tuple[str, float | None]:
    """Return an id and its number, of a quoted id with its number, or of a plain one that may end in a number."""
    if quoted is None:
        label, sign, end = plain.strip().rpartition("=")
        value = to_number(end) if sign else None
        return (plain if value is None else label).strip(), value
    label = quoted.replace('""', '"')
    value = None if number is None else to_number(number)
    if number is not None and value is None:
        raise OptionError(f"{name} has {number!r} for the id {label!r}; give it a number")
    return label, value


def _to_id(name: str, label: str, string_ids: bool) -> int | str:
    if not label:
        raise OptionError(f"{name} has an empty id; write ids between commas, such as a,b or a=2,b=1")
    if string_ids:
        return label
    if not is_plain_integer(label):
        raise OptionError(f"{name} has the id {label!r}, which no vertex has; ids of this store are integers")
    return int(label)
