"""Workloads of other packages, and the text of a workload, such as "multi_turn(turns=5, …)", read back."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_llmperf import workload as builders
from pytest_llmperf.doors import Door
from pytest_llmperf.errors import SpecError, did_you_mean
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedWorkload:
    """A builder of workloads. Suites import the builder itself; `--workload NAME(…)` finds it by this name.

    Args:
        api: version of the doors for which the builder was written: 1.
        name: of the call on the command line.
        build: called with the arguments of the call.
    """

    api: int
    name: str
    build: Callable[..., Workload]


WORKLOADS = Door[AddedWorkload]("workload", "an AddedWorkload", lambda value: isinstance(value, AddedWorkload), {})


BUILDERS = tuple(name for name in builders.__all__ if name[0].islower() and name != "anonymise")
EXAMPLE = 'random_tokens(input=512, output=128, arrivals=poisson(8), requests=300)'


def read_workload(text: str) -> Workload:
    """The workload of a text such as "multi_turn(conversations=60, turns=5, …)", in the words of a suite.

    The text may call the builders of workloads and arrival processes, with numbers, texts and lists. Nothing else runs.

    Raises:
        SpecError: the text is no such call, or an argument is invalid.
    """
    try:
        made = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError) as error:
        raise SpecError(f"--workload {text}: it cannot be read: {error}. Write a call, e.g. {EXAMPLE}.") from error
    if not isinstance(made, Workload):
        raise SpecError(f"--workload {text}: this is no workload. Write a call, e.g. {EXAMPLE}.")
    return made


def builders_of(text: str) -> list[str]:
    """Names of the builders that the text of a workload calls, sorted."""
    called = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sorted({function.id for function in called if isinstance(function, ast.Name)})


def _value(node: ast.expr) -> Any:  # noqa: ANN401 - a workload, an arrival process or a plain value
    if not isinstance(node, ast.Call):
        return _plain(node)
    arguments = [_value(argument) for argument in node.args]
    named = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if isinstance(node.func, ast.Attribute) and node.func.attr == "at_most":
        limited = _value(node.func.value)
        if isinstance(limited, Arrivals):
            return limited.at_most(*arguments, **named)
    name = ast.unparse(node.func)
    if name in BUILDERS:
        return getattr(builders, name)(*arguments, **named)
    if (added := WORKLOADS.get(name)) is not None:
        return added.build(*arguments, **named)
    raise ValueError(f"{name} is no builder{did_you_mean(name, (*BUILDERS, *WORKLOADS), ', did you mean {}')}")


def _plain(node: ast.expr) -> Any:  # noqa: ANN401 - as `_value`
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(map(_value, node.elts))
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)
