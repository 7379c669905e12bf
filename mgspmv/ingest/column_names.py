"""Rules for the names of columns: which are sources, targets, weights, ids and numbers.

See `mgspmv.ingest.tokens` for the form of rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from mgspmv.ingest.tokens import SURE_DIGITS, Undecided

SOURCE_WORDS = frozenset(["source", "src", "from", "start", "origin", "sender", "follower", "citing"])
"""Words that name the column of sources."""
TARGET_WORDS = frozenset(
    [
        "target", "tgt", "dst", "dest", "destination", "to", "end", "receiver", "recipient", "followee",
        "followed", "cited",
    ]
)  # fmt: skip
"""Words that name the column of targets."""
WEIGHT_WORDS = frozenset(
    [
        "weight", "weights", "wgt", "wgts", "wt", "w", "value", "values", "val", "edgeattr", "attr", "score",
        "scores", "count", "counts", "freq", "frequency",
    ]
)  # fmt: skip
"""Words that name the column of weights."""
VERTEX_WORDS = frozenset(["vertex", "vertices", "node", "nodes", "id", "ids", "name", "label"])
"""Words that name the column of ids in a list of vertices or a vector."""
NUMBER_WORDS = WEIGHT_WORDS | frozenset(
    ["rank", "ranks", "pagerank", "hub", "authority", "katz", "centrality", "probability"]
)
"""Words that name the column of numbers in a vector."""

_FILLERS = frozenset(
    ["node", "vertex", "id", "ids", "nodeid", "no", "number", "float", "int", "long", "double", "string", "edge"]
)
_SHORT_SOURCES, _SHORT_TARGETS = frozenset(("u", "i", "row")), frozenset(("v", "j", "col", "column"))
_INDEX_NAMES = frozenset(("", "index", "idx", "id", "rowid", "rowname", "rownames", "rownumber", "edgeid", "eid"))
_TIME_WORDS = frozenset(
    [
        "time", "times", "timestamp", "timestamps", "timeset", "interval", "date", "dates", "datetime", "ts",
        "unixts", "unixtime", "epoch", "year", "month", "day", "hour", "created", "creation", "updated", "since",
        "until",
    ]
)  # fmt: skip
_OTHER_WORDS = _TIME_WORDS | frozenset(["type", "types", "kind", "label", "labels", "relation", "rel", "comment"])
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_JOINED = re.compile(
    r"(source|src|from|start|origin|target|tgt|dst|dest|destination|to|end)(?:node|vertex)?(?:id)?", re.IGNORECASE
)
_SAVED_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
_UNNAMED = re.compile(r"unnamed:? ?\d+", re.IGNORECASE)

Role = Literal["source", "target", "weight", "index", "other"]


def find_role(name: str) -> tuple[Role | None, bool]:
    """Return the role that a column's name states, and whether the name states only that.

    `source` and `FromNodeId` are sources and nothing else; `source_airport` has a word for sources among others.
    """
    name = name.strip()
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    if _SAVED_INDEX.fullmatch(name) or _UNNAMED.fullmatch(name) or joined in _INDEX_NAMES:
        return "index", True
    if (match := _JOINED.fullmatch(joined)) is not None:
        return ("source" if match.group(1).lower() in SOURCE_WORDS else "target"), True
    if joined in _SHORT_SOURCES:
        return "source", True
    if joined in _SHORT_TARGETS:
        return "target", True
    for role, known in (("source", SOURCE_WORDS), ("target", TARGET_WORDS), ("weight", WEIGHT_WORDS)):
        if known & set(words) and set(words) <= known | _FILLERS:
            return role, True  # type: ignore[return-value]  # a Role
    if joined in WEIGHT_WORDS:
        return "weight", True
    if _TIME_WORDS & set(words):
        return "other", False
    is_source, is_target = bool(SOURCE_WORDS & set(words)), bool(TARGET_WORDS & set(words))
    if is_source != is_target:
        return ("source" if is_source else "target"), False
    return ("other" if _OTHER_WORDS & set(words) else None), False


def is_saved_index(name: str) -> bool:
    """Return whether a column is the index that pandas or Dask saved with a table."""
    return _SAVED_INDEX.fullmatch(name) is not None


# --- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnChoice:
    """Places of the columns that are read, from 0."""

    source: int
    target: int
    weight: int | None = None

    @property
    def ids(self) -> tuple[int, int]:
        return self.source, self.target

    def describe(self, names: Sequence[str | None]) -> dict[str, Any]:
        """Return the columns by role, and those not read, each as its number from 1 and its name, if it has one."""
        listed = [[number, name] for number, name in enumerate(names, 1)]
        roles = {"source": self.source, "target": self.target, "weight": self.weight}
        columns = {role: None if place is None else listed[place] for role, place in roles.items()}
        return {"columns": columns, "not_read": [own for own in listed if own not in columns.values()]}


Weights = str | bool
"""True to require weights, False to read none, "auto" to read them if they are found, or the name of their column."""

_COLUMNS_HINT = 'columns=("SOURCE", "TARGET")'


def resolve_columns(
    given: Sequence[str | int], names: Sequence[str] | None, n_columns: int, weights: Weights = "auto"
) -> ColumnChoice:
    """Return the columns that a user named, or numbered from 1.

    Raises
    ------
    Undecided : a name that is missing or occurs twice, a number out of range, or a column named twice
    """
    places = [_resolve_column(each, names, n_columns) for each in given]
    if len(set(places)) != len(places):
        raise Undecided(f"columns={tuple(given)!r} names the same column twice; name different columns")
    return ColumnChoice(places[0], places[1], places[2] if len(places) > 2 and weights is not False else None)


def _resolve_column(given: str | int, names: Sequence[str] | None, n_columns: int) -> int:
    if isinstance(given, int):
        if not 1 <= given <= n_columns:
            raise Undecided(f"columns= has the number {given}, but the columns are numbered from 1 to {n_columns}")
        return given - 1
    assert names is not None
    n_times = list(names).count(given)
    if n_times != 1:
        near = get_close_matches(given, names, n=1) if not n_times else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Undecided(
            f"expected one column {given!r}, found the columns {list_names(names)}{hint}"
            + ("; pass their numbers, counted from 1" if n_times else "")
        )
    return list(names).index(given)


def choose_columns(names: Sequence[str] | None, n_columns: int, weights: Weights = "auto") -> ColumnChoice:
    """Return the columns of sources, targets and weights: by their names if these state it, else by place.

    Places decide only if there are no names, or two or three names without a known meaning.

    Parameters
    ----------
    names : names of all columns; None without a header
    weights : True to require weights, False to read none, "auto" to read them if they are found, or their column

    Raises
    ------
    Undecided : names that contradict each other or their places, or columns that may be weights or not
    """
    if n_columns < 2:
        raise Undecided(
            "expected columns of sources and targets, found one column"
            + (f" {names[0]!r}" if names else "")
            + "; pass delimiter= if another character separates them"
        )
    if isinstance(weights, str) and weights != "auto":
        if names is None:
            raise Undecided(
                f"weights={weights!r} is a name, but there is no header; pass columns= with numbers, from 1"
            )
        place = _resolve_column(weights, names, n_columns)
        kept = [k for k in range(n_columns) if k != place]
        ends = choose_columns([names[k] for k in kept], len(kept), False)
        return ColumnChoice(kept[ends.source], kept[ends.target], place)
    columns = None if names is None else _choose_by_names(names, weights)
    return columns if columns is not None else _choose_by_place(names, n_columns, weights)


def _choose_by_place(names: Sequence[str] | None, n_columns: int, weights: Weights) -> ColumnChoice:
    """Choose columns by place, as no name means a source or a target."""
    kept = [k for k in range(n_columns) if names is None or not is_saved_index(names[k])]
    if not 2 <= len(kept) <= 3:
        found = f"{n_columns} columns" if names is None else list_names(names)
        raise Undecided(
            f"expected columns of sources, targets and optionally weights, found {found}; choose them with "
            f"{_COLUMNS_HINT} or columns=(1, 2)"
        )
    if weights is True and len(kept) == 2:
        raise Undecided(
            "expected a third column of weights, found 2 columns; pass weights=False, or leave weights= out"
        )
    has_weight = len(kept) > 2 and weights is not False
    if names is not None:
        _check_places([names[k] for k in kept])
        has_weight = has_weight and (weights is True or find_role(names[kept[2]])[0] != "other")
    return ColumnChoice(kept[0], kept[1], kept[2] if has_weight else None)


def _check_places(names: Sequence[str]) -> None:
    """Raise Undecided if names suggest that columns chosen by their places are others."""
    roles = [find_role(name)[0] for name in names]
    has_index = "index" in roles if len(names) > 2 else names[0].strip() == ""
    if has_index or "weight" in roles[:2] or (len(names) > 2 and "other" in roles[:2]):
        raise Undecided(
            f"neither names nor positions identify sources and targets among the columns {list_names(names)}; choose "
            f"the columns with {_COLUMNS_HINT}"
        )
    if _are_reversed(*names[:2]):
        raise Undecided(
            f"the names of the columns {list_names(names)} suggest that the target is first; choose the columns with "
            f"{_COLUMNS_HINT}"
        )


def _choose_by_names(names: Sequence[str], weights: Weights) -> ColumnChoice | None:
    """Choose columns if a name is that of a source or a target, else return None."""
    roles = [find_role(name) for name in names]
    found: dict[str, int] = {}
    for role in ("source", "target"):
        for is_exact in (True, False):
            places = [k for k, own in enumerate(roles) if own == (role, is_exact)]
            if len(places) > 1:
                raise Undecided(
                    f"several columns may be the {role}: {list_names([names[k] for k in places])}; choose the columns "
                    f"with {_COLUMNS_HINT}"
                )
            if places:
                found[role] = places[0]
                break
    if not found:
        return None
    if len(found) == 1:
        role, place = next(iter(found.items()))
        other = "target" if role == "source" else "source"
        raise Undecided(
            f"column {names[place]!r} is the {role}, but no name identifies the {other} among the columns "
            f"{list_names(names)}; choose the columns with {_COLUMNS_HINT}"
        )
    weight = _find_weight(set(found.values()), names, roles, weights)
    return ColumnChoice(found["source"], found["target"], weight)


def _find_weight(
    ends: set[int], names: Sequence[str], roles: Sequence[tuple[Role | None, bool]], weights: Weights
) -> int | None:
    """Find the column of weights, given both ends, which were found by name."""
    if weights is False:
        return None
    named = [k for k, own in enumerate(roles) if own[0] == "weight" and k not in ends]
    if len(named) == 1:
        return named[0]
    unknown = named or [k for k, own in enumerate(roles) if own[0] is None and k not in ends]
    if weights is True:
        unknown = unknown or [k for k, own in enumerate(roles) if own[0] == "other" and k not in ends]
        if len(unknown) == 1:
            return unknown[0]
        raise Undecided(
            f"expected a column of weights, found the columns {list_names(names)}; name it as the third of "
            'columns=("SOURCE", "TARGET", "WEIGHT"), or leave weights=True out'
        )
    if not unknown:
        return None
    what = list_names([names[k] for k in unknown])
    example = ", ".join(f'"{name}"' for name in (*(names[k] for k in sorted(ends)), names[unknown[0]]))
    raise Undecided(
        f"{what} may be weights or not; pass weights=False to leave {'it' if len(unknown) == 1 else 'them'} out, or "
        f"name the weights as the third of columns=({example})"
    )


_PAIRS = (
    ("arrival", "departure"),
    ("callee", "caller"),
    ("destinazione", "origine"),
    ("destino", "origen"),
    ("destino", "fuente"),
    ("nach", "von"),
    ("object", "subject"),
    ("payee", "payer"),
    ("referred", "referrer"),
    ("successor", "predecessor"),
    ("ziel", "quelle"),
)
"""Pairs of words, target first and source second: columns of these names in this order are an error."""
_COUNTED = re.compile(r"(.*?)([0-9]+|[a-z])", re.IGNORECASE | re.DOTALL)


def _are_reversed(source: str, target: str) -> bool:
    """Return whether names of columns, in this order, mean or count the reverse: `callee, caller`, `n2, n1`."""
    own, other = _find_words(source), _find_words(target)
    if any(late in own and early in other for late, early in _PAIRS):
        return True
    counted = [_COUNTED.fullmatch(name.strip().lower()) for name in (source, target)]
    if counted[0] is None or counted[1] is None or counted[0].group(1) != counted[1].group(1):
        return False
    last, before = (match.group(2) for match in counted if match is not None)
    if last.isdigit() and before.isdigit():
        return len(last + before) <= SURE_DIGITS and int(last) > int(before)
    return not last.isdigit() and not before.isdigit() and ord(last) == ord(before) + 1


def list_names(names: Iterable[str]) -> str:
    """Return names, joined for a message; an empty name is shown as quotes."""
    return ", ".join(name if name.strip() else "''" for name in names)


# --- vectors ---------------------------------------------------------------------------------------------------------


def names_vertices(name: str) -> bool:
    """Return whether a column's name means ids of vertices."""
    words, known = _find_words(name), VERTEX_WORDS | {"nodeid", "vertexid"}
    return bool(words & known) and words <= known | _FILLERS


def names_numbers(name: str) -> bool:
    """Return whether a column's name means the numbers of a vector."""
    return bool(_find_words(name) & NUMBER_WORDS) and not names_vertices(name)


def _find_words(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}


def choose_list_columns(names: Sequence[str], *, has_numbers: bool) -> tuple[int, int | None]:
    """Return the places of ids and of numbers in a list of vertices or a vector, given its columns' names.

    Raises
    ------
    Undecided : several columns may be the ids or the numbers
    """
    kept = [k for k, name in enumerate(names) if not is_saved_index(name)]
    ids = [k for k in kept if names_vertices(names[k])]
    numbers = [k for k in kept if names_numbers(names[k])]
    if len(ids) > 1 and (numbers or not has_numbers):  # next to an id, a label is a description
        ids = [k for k in ids if _find_words(names[k]) & {"id", "ids"}] or ids
    if not has_numbers:
        if len(ids) == 1 or (not ids and len(kept) == 1):
            return (ids or kept)[0], None
        raise Undecided(f"expected one column of ids among {list_names(names)}; name it `id`, and no other column")
    if len(ids) == 1 and len(numbers) == 1:
        return ids[0], numbers[0]
    if len(kept) == 2 and names[kept[0]].strip() and len(ids) < 2 and len(numbers) < 2:
        if ids:
            return ids[0], next(k for k in kept if k != ids[0])
        if numbers:
            return next(k for k in kept if k != numbers[0]), numbers[0]
        return kept[0], kept[1]
    raise Undecided(
        f"expected ids and numbers, found the columns {list_names(names)}; keep two, named `id` and `weight`"
    )
