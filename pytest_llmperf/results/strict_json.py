"""Strict reader for untrusted JSON. Each error names the file, the position, the problem and the remedy."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isfinite
from typing import NoReturn

from pytest_llmperf.errors import BaselineError

LARGEST_INTEGER = 2**63
#: No metric is further from 1 in its unit, and with such values neither squares nor ratios leave the range of a float.
LARGEST_NUMBER = 1e30
SMALLEST_NUMBER = 1e-30
REPAIR = "Take it from git again (git checkout -- FILE), or delete it and record it anew with --update-baselines-new."
CONFLICT = "it holds git's conflict markers. Resolve them, or take one side: git checkout --ours (or --theirs) -- FILE."


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value with the place where it stands.

    Args:
        value: as `json` gives it.
        origin: the file, for messages.
        where: the way to it, e.g. "measurements.cached.sessions[2].date"; "" at the top.
        repair: what to do about it.
    """

    value: object
    origin: str
    where: str = ""
    repair: str = REPAIR

    def refuse(self, problem: str) -> NoReturn:
        """Raise what is wrong here."""
        place = f"at {self.where}: " if self.where else ""
        raise BaselineError(f"{self.origin}: {place}{problem}. {self.repair}")

    def table(self) -> dict[str, Node]:
        """An object, whatever its keys."""
        if not isinstance(self.value, dict):
            self.refuse(f"{_value_text(self.value)} stands where an object belongs")
        return {key: replace(self, value=value, where=self._below(key)) for key, value in self.value.items()}

    def _below(self, key: str) -> str:
        name = key if key.isidentifier() else json.dumps(key, ensure_ascii=False)
        return f"{self.where}.{name}" if self.where else name

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Node]:
        """The values of a JSON object that must have the required keys and may have the optional keys."""
        table = self.table()
        missing = sorted(set(required) - set(table))
        unknown = sorted(set(table) - set(required) - set(optional))
        if missing:
            self.refuse(f"{', '.join(missing)} is missing")
        if unknown:
            self.refuse(f"{', '.join(unknown)} is not known here")
        return table

    def items(self) -> list[Node]:
        if not isinstance(self.value, list):
            self.refuse(f"{_value_text(self.value)} stands where a list belongs")
        return [replace(self, value=value, where=f"{self.where}[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.refuse(f"{_value_text(self.value)} stands where a text belongs")
        return self.value

    def text_or_none(self) -> str | None:
        return None if self.value is None else self.text()

    def texts(self) -> dict[str, str]:
        return {key: node.text() for key, node in self.table().items()}

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse(f"{_value_text(self.value)} stands where true or false belongs")
        return self.value

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) >= LARGEST_INTEGER:
            self.refuse(f"{_value_text(self.value)} stands where a whole number of at most 63 bits belongs")
        return self.value

    def number_or_none(self) -> float | None:
        """0, or a number of a size that a measured value can have."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            self.refuse(f"{_value_text(value)} stands where a finite number or null belongs")
        if value and not SMALLEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
            self.refuse(f"{_value_text(value)} is no measured value: it is 0, or between {SMALLEST_NUMBER:g} and "
                        f"{LARGEST_NUMBER:g} in size")
        return float(value)


def parse(data: bytes, origin: str, repair: str = REPAIR) -> Node:
    """The top of a JSON file.

    Args:
        origin: name of the file, for messages.
        repair: remedy for an unreadable file, for messages.

    Raises:
        BaselineError: the text is not valid JSON. The message names the position.
    """
    top = Node(None, origin, repair=repair)
    if b"\n<<<<<<< " in b"\n" + data:
        raise BaselineError(f"{origin}: {CONFLICT}")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        top.refuse(f"no UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        top.refuse(f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}")
    except (ValueError, RecursionError) as error:
        top.refuse(str(error))
    return replace(top, value=value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that can be compared")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return table


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def _value_text(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # more digits than Python prints
        text = "a number"
    return text if len(text) <= 60 else f"{text[:57]}…"
