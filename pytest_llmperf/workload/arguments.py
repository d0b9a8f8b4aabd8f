"""What a workload's arguments may be, and how they are written back as the call that made them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from pytest_llmperf.errors import SpecError, did_you_mean

Length = int | tuple[int, int]
_LARGEST = sys.float_info.max  # integers may be larger
Parameters = ParamSpec("Parameters")
Built = TypeVar("Built")


def keywords_only(builder: Callable[Parameters, Built]) -> Callable[Parameters, Built]:
    """A builder of workloads that refuses positional, unknown and missing arguments, and names the right ones."""
    name, parameters = builder.__name__, signature(builder).parameters
    keywords = ", ".join(f"{keyword}=…" for keyword in parameters)
    needed = [keyword for keyword, parameter in parameters.items() if parameter.default is parameter.empty]

    @wraps(builder)
    def by_keyword(*positional: Parameters.args, **named: Parameters.kwargs) -> Built:
        if positional:
            raise SpecError(f"{name}({', '.join(map(repr, positional))}, …): name every argument of a workload: "
                            f"{name}({keywords}).")
        for keyword in named.keys() - parameters.keys():
            hint = did_you_mean(keyword, parameters, "Did you mean {}?") or f"Write {name}({keywords})."
            raise SpecError(f"{name}: there is no argument {keyword}. {hint}")
        if missing := [keyword for keyword in needed if keyword not in named]:
            *others, last = missing
            listed = f"{', '.join(others)} and {last}" if others else last
            raise SpecError(f"{name}: {listed} must be given.")
        return builder(*positional, **named)

    return by_keyword


def number(
    call: str, name: str, value: object, *, above: float | None = None, least: float | None = None,
    most: float = _LARGEST,
) -> float:
    """`value` as a finite float that is > above, >= least and <= most."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
        raise SpecError(f"{call}: {name} must be a finite number, got {value!r}.")
    if (above is not None and value <= above) or (least is not None and value < least):
        bound = f"greater than {above:g}" if above is not None else f"at least {least:g}"
        raise SpecError(f"{call}: {name} must be {bound}, got {value!r}.")
    if value > most:
        raise SpecError(f"{call}: {name} must be at most {most:g}, got {value!r}.")
    return float(value)


def integer(call: str, name: str, value: object, *, least: int | None = 1) -> int:
    """`value` as an int that is >= least."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{call}: {name} must be an integer, got {value!r}.")
    if least is not None and value < least:
        raise SpecError(f"{call}: {name} must be at least {least}, got {value}.")
    return value


def boolean(call: str, name: str, value: object) -> bool:
    """`value`, True or False: a text, even "no", would be taken for True."""
    if not isinstance(value, bool):
        raise SpecError(f"{call}: {name} must be True or False, got {value!r}.")
    return value


def length(call: str, name: str, value: object, *, least: int = 1) -> Length:
    """`value` as a fixed length or as (low, high), both included."""
    if not isinstance(value, (tuple, list)):
        return integer(call, name, value, least=least)
    low, high = (integer(call, name, bound, least=least) for bound in pair(call, name, value))
    return (low, high)


def pair(call: str, name: str, value: tuple[Any, ...] | list[Any]) -> tuple[Any, Any]:
    """`value` as (low, high)."""
    if len(value) != 2:
        raise SpecError(f"{call}: {name} must be a number or (low, high), got {value!r}.")
    low, high = value
    try:
        swapped = low > high
    except TypeError:
        raise SpecError(f"{call}: {name} must be two numbers (low, high), got {value!r}.") from None
    if swapped:
        raise SpecError(f"{call}: {name} must have low <= high, got {value!r}; did you mean ({high}, {low})?")
    return low, high


def plain(value: float) -> str:
    """A number as a person writes it: 8 for 8.0, exact otherwise."""
    return repr(value).removesuffix(".0")


def call_text(name: str) -> Callable[[Any], str]:
    """A method `__str__` of a workload that `name` makes."""
    return lambda workload: as_call(name, workload)


def as_call(name: str, instance: Any) -> str:  # noqa: ANN401 - any dataclass
    """`instance` as the call that makes it; arguments at their default are left out.

    So a new argument with a default changes neither the text of older definitions nor their digest.
    """
    shown = []
    for field in fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            text = plain(value) if isinstance(value, float) else repr(value)
            shown.append(f"{field.metadata.get('argument', field.name)}={text}")
    return f"{name}({', '.join(shown)})"
