"""Strict reader for untrusted JSON. Each error names the file, the position, the problem and the remedy."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import NoReturn

from pytest_llmperf.bounded_file import JSON_LIMIT_BYTES, MIB, held_bytes, read_file
from pytest_llmperf.errors import BaselineError, UsageError, echo

LARGEST_INTEGER = 2**63
#: No metric is further from 1 in its unit, and with such values neither squares nor ratios leave the range of a float.
LARGEST_NUMBER = 1e30
SMALLEST_NUMBER = 1e-30
SHOWN = 60  # characters of a value or key in a message
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

    def table(self) -> Table:
        """An object, whatever its keys."""
        return Table(self, {key: self._child(key, value) for key, value in self._object().items()})

    def _object(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            self.refuse(f"{_value_text(self.value)} stands where an object belongs")
        return self.value

    def _child(self, key: str | int, value: object) -> Node:
        if isinstance(key, int):
            where = f"{self.where}[{key}]"
        else:
            where = f"{self.where}.{_key_text(key)}" if self.where else _key_text(key)
        return Node(value, self.origin, where, self.repair)

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> Table:
        """The values of a JSON object that must have the required keys and may have the optional keys."""
        table = self.table()
        missing = sorted(set(required) - set(table))
        unknown = sorted(set(table) - set(required) - set(optional))
        if missing:
            self.refuse(f"{', '.join(missing)} is missing")
        if unknown:
            self.refuse(f"{', '.join(map(_key_text, unknown[:3]))} is not known here")
        return table

    def items(self) -> list[Node]:
        if not isinstance(self.value, list):
            self.refuse(f"{_value_text(self.value)} stands where a list belongs")
        return [self._child(index, value) for index, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.refuse(f"{_value_text(self.value)} stands where a text belongs")
        return self.value

    def text_or_none(self) -> str | None:
        return None if self.value is None else self.text()

    def texts(self) -> dict[str, str]:
        return {key: value if isinstance(value, str) else self._child(key, value).text()
                for key, value in self._object().items()}

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse(f"{_value_text(self.value)} stands where true or false belongs")
        return self.value

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) >= LARGEST_INTEGER:
            self.refuse(f"{_value_text(self.value)} stands where a whole number of at most 63 bits belongs")
        return self.value

    def numbers(self) -> list[float | None]:
        """A list of numbers; a run file has millions, so only a wrong one becomes a node."""
        if not isinstance(self.value, list):
            self.refuse(f"{_value_text(self.value)} stands where a list belongs")
        return [value if isinstance(value, float) and SMALLEST_NUMBER <= value <= LARGEST_NUMBER
                else self._child(index, value).number_or_none() for index, value in enumerate(self.value)]

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


class Table(dict[str, Node]):
    """The values of a JSON object. To ask for a missing key is a refusal."""

    def __init__(self, node: Node, values: dict[str, Node]) -> None:
        super().__init__(values)
        self._node = node

    def __missing__(self, key: str) -> Node:
        self._node.refuse(f"{key} is missing")


def read_json(path: Path, within: Path, repair: str = REPAIR) -> Node:
    """The top of a JSON file of a run folder or of the baselines.

    Args:
        within: folder that must contain the file.
        repair: remedy for an unreadable file, for messages.

    Raises:
        OSError: the file cannot be read (`bounded_file`).
        BaselineError: the text is not valid JSON.
    """
    return parse(read_file(path, within), str(path), repair)


def read_list(path: Path, schema: int, field: str, repair: str) -> list[Node]:
    """The items of a file `{"schema": …, FIELD: […]}`; empty if the file does not exist.

    Args:
        schema: the only schema that this version reads.

    Raises:
        UsageError: the file cannot be read.
        BaselineError: the file is invalid.
    """
    try:
        top = read_json(path, path.parent, repair).fields(("schema", field))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}. Name another folder.") from error
    if top["schema"].value != schema:
        top["schema"].refuse(f"its schema is {top['schema'].value!r}, and this version reads {schema}")
    return top[field].items()


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
    if held_bytes(data) > JSON_LIMIT_BYTES:
        top.refuse(f"its values would take more than {JSON_LIMIT_BYTES // MIB} MiB of memory")
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        top.refuse(f"no UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        top.refuse(f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}")
    except (ValueError, RecursionError) as error:
        top.refuse(str(error))
    return replace(top, value=value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that can be compared")


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs, for `json.loads`.

    Raises:
        ValueError: a key stands twice.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        unseen = set(table)
        for key, _ in pairs:
            if key not in unseen:
                raise ValueError(f"the key {echo(key)} stands twice in one object")
            unseen.remove(key)
    return table


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def _key_text(key: str) -> str:
    return key if key.isidentifier() and len(key) <= SHOWN else _value_text(key)


def _value_text(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # more digits than Python prints; lists in lists
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN - 3]}…"
