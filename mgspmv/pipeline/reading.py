"""From a TOML file to a checked definition: variables, overrides, and all that is wrong in one message."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mgspmv.errors import PipelineError, StoreError, hide_value
from mgspmv.files import check_file
from mgspmv.os_errors import is_operators, translate_os_error
from mgspmv.pipeline.checks import find_problems
from mgspmv.pipeline.definition import Pipeline
from mgspmv.pipeline.lines import find_line
from mgspmv.pipeline.near import Key, Problem, find_near, suggest

_VARIABLE = re.compile(r"\$(\$|\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>([^}$]|\$(?!\{))*))?\})")

_PARTS = re.compile(r"(?:(?<=[/?&=#@,;])|(?=[/?&=#@,;]))(?![^${]*\})")
"""Between the parts of a path or a URL, but not within a variable."""


@dataclass(frozen=True)
class Definition:
    """A definition that was read and is as it should be."""

    file: str
    """Path."""
    pipeline: Pipeline
    """Its tables, checked."""
    tables: dict[str, Any]
    """Content of the file, with overrides in place and variables as they are written."""

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self.pipeline.name or Path(self.file).stem

    @property
    def folder(self) -> Path:
        """Where its records are, and all else that is placed nowhere else."""
        return Path(self.pipeline.folder or self.name)


def read_pipeline(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Definition:
    """Read and check a definition; nothing is run, and no source is looked at.

    Parameters
    ----------
    overrides : values in place of the file's, by the names of tables and key, as `run.alpha`

    Raises
    ------
    PipelineError : no such file, not TOML, or wrong keys, values or variables, all of them in one message
    """
    name, overrides = os.fspath(path), overrides or {}
    text = _read_text(path)
    given = _parse(name, text)
    definition, problems = _check(name, given, overrides)
    if definition is None:
        alone = _check(name, given, {})[1]
        raise PipelineError("\n".join(_say_all(name, text, overrides, problems, alone)))
    return definition


def _check(name: str, given: dict[str, Any], overrides: Mapping[str, Any]) -> tuple[Definition | None, list[Problem]]:
    """The definition with values put in place, and what is wrong with it; None where something is."""
    written = deepcopy(given)
    problems = [*_override(written, overrides)]
    tables, unset = _replace_variables(written)
    problems += unset.items()
    try:
        pipeline = Pipeline.model_validate(tables)
        wrong = dict.fromkeys(unset)
    except ValidationError as error:
        found = [*_explain(error, tables)]
        problems += [(key, said) for key, said in found if key not in unset]
        wrong = dict.fromkeys([*unset, *(key for key, _ in found)])
        pipeline = None
    rest = pipeline if not wrong else _leave_out(tables, list(wrong))
    if rest is not None:
        folder = Definition(name, rest, written).folder
        problems += [own for own in find_problems(rest, str(folder)) if not _is_consequence(own, list(wrong))]
    return (None if problems or pipeline is None else Definition(name, pipeline, written)), problems


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        check_file(path)
        return Path(path).read_text(encoding="utf-8")
    except StoreError as error:
        raise PipelineError(str(error)) from error
    except OSError as error:
        if is_operators(error):
            raise translate_os_error(error, path, "read") from error
        raise PipelineError(f"{path}: cannot read this pipeline: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: not valid TOML: {error}") from error


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{name}: not valid TOML: {error}") from error


def _say_all(
    name: str, text: str, overrides: Mapping[str, Any], problems: Sequence[Problem], alone: Sequence[Problem]
) -> list[str]:
    """The problems with where they are, in the order of the file; before them those that are in no line of it.

    Parameters
    ----------
    alone : what is wrong without the overrides; whatever else is comes of them, wherever it is
    """
    said: list[tuple[int, str]] = []
    set_from_outside = [tuple(path.split(".")) for path in overrides]
    for key, what in problems:
        is_overridden = any(key[: len(own)] == own for own in set_from_outside)
        line = None if is_overridden else find_line(text, key)
        where = "" if line is None else f", line {line}"
        where += ", as overridden" if is_overridden or (key, what) not in alone else ""
        said.append((line or 0, f"{name}{where}: {'.'.join(key)}: {what}"))
    return list(dict.fromkeys(one for _, one in sorted(said, key=lambda own: own[0])))


# --- variables and overrides -----------------------------------------------------------------------------------------


def _override(tables: dict[str, Any], overrides: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Put values in place, making tables that are missing; give what cannot be."""
    for path, value in overrides.items():
        *names, key = names_of_all = tuple(path.split("."))
        if not all(names_of_all):
            yield (path,), "cannot be set; name tables and key, such as run.alpha"
            continue
        table: Any = tables
        for depth, name in enumerate(names, 1):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                yield names_of_all, f"cannot be set, for {'.'.join(names[:depth])} is no table but {table!r}"
                break
        else:
            table[key] = deepcopy(value)


def _replace_variables(tables: Any) -> tuple[Any, dict[Key, str]]:
    """The same with ${NAME} from the environment, and what is not set there, or not written so, by key."""
    unset: dict[Key, str] = {}

    def replace(value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: replace(own, (*key, name)) for name, own in value.items()}
        if isinstance(value, list):
            return [replace(own, key) for own in value]
        if not isinstance(value, str):
            return value
        if "${" in _VARIABLE.sub("", value):
            unset[key] = f"a variable is ${{NAME}} or ${{NAME:-DEFAULT}}, with none in it, and $$ a $; not {value!r}"

        def expand(text: str) -> str:
            return _VARIABLE.sub(lambda match: find(match, key), text)

        _hide_values(value, expand)
        return expand(value)

    def find(match: re.Match[str], key: Key) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return "$"
        found = os.environ.get(name)
        if not found and default is not None:
            return str(default)
        if found is None:
            unset[key] = f"the variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}"
        return found or ""

    return replace(tables, ()), unset


def _hide_values(written: str, expand: Callable[[str], str]) -> None:
    """Have records, messages and logs show what a definition says in place of what variables have: of the string, of
    its parts and of the variables."""
    for part in [written, *_PARTS.split(written)]:
        found = {match[0]: os.environ.get(match["name"] or "") for match in _VARIABLE.finditer(part)}
        if any(found.values()):
            hide_value(expand(part), part)
        for variable, value in found.items():
            hide_value(value or "", variable)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def _leave_out(tables: dict[str, Any], wrong: Sequence[Key]) -> Pipeline | None:
    """The definition without the keys that are wrong, so that the others are checked as well; None where it is none."""
    if any(len(key) < 3 and key[0] == "matrix" for key in wrong):  # which others may name
        return None
    rest = deepcopy(tables)
    for key in wrong:
        _remove(rest, key)
    try:
        return Pipeline.model_validate(rest)
    except ValidationError:  # such as of a table without what it needs
        return None


def _remove(tables: Any, key: Key) -> None:
    """Remove a key, or the list that it is in; of what is missing the table that it is missing from."""
    *names, last = key
    for depth, name in enumerate(names):
        if not isinstance(tables.get(name), dict):
            tables.pop(name, None)
            return
        if depth == len(names) - 1 and last not in tables[name]:
            tables.pop(name)
            return
        tables = tables[name]
    tables.pop(last, None)


def _is_consequence(problem: Problem, wrong: Sequence[Key]) -> bool:
    """Whether a problem may be there only as others are: with a table that one is in, or about a key of a matrix or of
    the output that is wrong there."""
    key, said = problem
    if any(own[: len(key)] == key or key[: len(own)] == own for own in wrong):
        return True
    elsewhere = [own for own in wrong if own[0] in ("matrix", "output") and own[-1] != key[-1]]
    meant = [name for own in elsewhere for name in (own[-1], find_near(own[-1], list_keys(own[:-1]))) if name]
    return any(re.search(rf"\b{re.escape(name)}\b", said) for name in meant)


def _explain(error: ValidationError, tables: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    """What pydantic found: where, what was wanted, what came, the near miss."""
    for problem in error.errors():
        key = _shorten(problem["loc"], tables)
        yield key, _explain_one(problem, key, tables)


def _shorten(loc: Sequence[str | int], tables: Any) -> Key:
    """The key without what pydantic adds: 0 for a value that is no list, `[key]` for a name."""
    key: list[str] = []
    value: Any = tables
    for part in loc:
        if part == "[key]" or (isinstance(part, int) and not isinstance(value, list)):
            continue
        key.append(str(part))
        value = value.get(part) if isinstance(value, dict) else value[part] if isinstance(part, int) else None
    return tuple(key)


def _explain_one(problem: Any, key: Key, tables: Any) -> str:
    match problem["type"]:
        case "extra_forbidden":
            return _name_known(key)
        case "model_type" if len(key) == 2 and key[0] == "run":
            return _name_known(key, "; a run of its own is a table, [run.NAME]")
        case "model_type" | "dict_type":
            return f"this is a table, [{'.'.join(key)}], not {problem['input']!r}"
        case "missing":
            return "this is required"
        case "value_error":
            return str(problem["ctx"]["error"])
        case "literal_error":
            choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
            return f"{_say(problem)}{suggest(str(problem['input']), choices)}"
        case "too_short":
            return "at least one is wanted, and there is none"
    return _say(problem)


def _say(problem: Any) -> str:
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"


def _name_known(key: Key, more: str = "") -> str:
    """
    Parameters
    ----------
    more : what else there can be
    """
    known = list_keys(key[:-1])
    return f"unknown key{suggest(key[-1], known) or '; it can be ' + ', '.join(known) + more}"


def list_keys(key: Key) -> list[str]:
    """The keys of a table."""
    model: type[BaseModel] = Pipeline
    names = list(key)
    while names:
        name = names.pop(0)
        if name not in model.model_fields:  # a run of its own
            continue
        annotation = model.model_fields[name].annotation
        found, is_named = _find_model(annotation)
        model = found or model
        if is_named and names:
            names.pop(0)
    return list(model.model_fields)


def _find_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model of a field, and whether it is of many by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    options = [option for option in get_args(annotation) if option is not NoneType]
    is_named = getattr(annotation, "__origin__", None) is dict
    found = next((model for model, _ in map(_find_model, options) if model is not None), None)
    return found, is_named
