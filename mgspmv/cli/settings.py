"""Settings: options that few people need, which a command takes as `--set KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, get_args

from mgspmv.cli.options import list_choices, make_completion, option
from mgspmv.errors import OptionError

_NAMES = (
    "n_cols allow_hypersparse extra_columns skip_rows dtype order self_loops scratch missing "
    "a b c scramble pattern points n bandwidth norm weight out_weight reverse scaler checkpoint_every "
    "kernel width host_memory executor transport timeout recover"
)
SETTINGS = frozenset(_NAMES.split())
"""Parameters of commands that are settings: no argument of a command has such a name."""

_FLAGS = {"true": True, "false": False}


def make_option(settings: Mapping[str, Parameter]) -> Parameter:
    """Make the parameter `set` of a command, for `--set`."""
    described = option("Set an option that few people need; repeatable. KEY=VALUE is one of:", "KEY=VALUE", "--set")
    choices = {name: list_choices(value) or [""] for name, value, _, _ in list_settings(settings)}
    described.autocompletion = make_completion([f"{name}={word}" for name, words in choices.items() for word in words])
    return Parameter("set", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, described])


def list_settings(settings: Mapping[str, Parameter]) -> Iterator[tuple[str, str, str, Any]]:
    """Yield name, value, meaning and default of each setting, None without a default or for false."""
    for name, parameter in settings.items():
        described, default = get_args(parameter.annotation)[1], parameter.default
        shown = "true" if default is True else default or None
        yield name, described.metavar or "true|false", described.help, shown


def read_settings(texts: Sequence[str], settings: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values of settings by name, of the texts given with `--set`.

    Raises
    ------
    OptionError : a text that is not KEY=VALUE; an unknown or repeated key; a value of the wrong type
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, value = (part.strip() for part in text.partition("="))
        if key not in settings:
            near = get_close_matches(key.replace("-", "_"), settings, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(settings)}"
            raise OptionError(f"--set {text}: unknown key {key!r}; {hint}")
        if not (sign and value):
            raise OptionError(f"--set {text}: expected KEY=VALUE, such as --set {key}={_show_example(settings[key])}")
        if key in values:
            raise OptionError(f"--set {key} is given twice; leave one of them out")
        values[key] = _convert(key, value, settings[key])
    return values


def _show_example(parameter: Parameter) -> str:
    value = get_args(parameter.annotation)[1].metavar or "true"
    return str(value.partition("|")[0])


def _convert(key: str, text: str, parameter: Parameter) -> Any:
    """Convert text to the type of a parameter, within its range."""
    annotation, described = get_args(parameter.annotation)
    [kind] = [own for own in get_args(annotation) or (annotation,) if own is not NoneType]
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    try:
        value = _FLAGS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise OptionError(f"--set {key} must be {words[kind]}, not {text!r}") from None
    if described.min is not None and value < described.min:
        raise OptionError(f"--set {key} must be {described.min} or more, not {text}")
    return value
