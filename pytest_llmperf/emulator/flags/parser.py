"""Emulated argument parsers of the engines. A flag is ignored only if it is known to have no effect; all other unknown
flags are refused."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from pytest_llmperf.emulator.quantities import UsageError

_HUMAN = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class StartError(RuntimeError):
    """The real engine would refuse to start. The text is the engine's error message; the exit code is 1."""


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The flags of an engine from a version on.

    Args:
        engine, version: the engine, and the newest version with these flags and defaults.
        valued: names of a flag with values → how argparse reads the values.
        switches: names of a flag without a value (also as --no-…) → default.
        json_options: flags whose value is JSON; `--name.key value` sets one key of it.
        only: name of an option → the values that need no emulation.
        ignored_switches, ignored, ignored_lists: flags without effect on the emulated times, with no value (also as
            --no-…), with one, and with one or more.
    """

    engine: str
    version: str
    valued: Mapping[str, Mapping[str, Any]]
    switches: Mapping[str, bool | None]
    only: Mapping[str, Sequence[object]]
    ignored_switches: Sequence[str]
    ignored: Sequence[str]
    ignored_lists: Sequence[str]
    json_options: Sequence[str] = ()


class EngineParser(argparse.ArgumentParser):
    """argparse that takes underscores for dashes and dotted JSON options, and refuses by exception."""

    def __init__(self, flags: EngineFlags) -> None:
        super().__init__(prog=flags.engine, add_help=False, allow_abbrev=False)
        self._flags = flags
        self._engine = flags.engine
        for name in flags.ignored_switches:
            self.add_argument(f"--{name}", f"--no-{name}", action="store_true", dest=f"harmless {name}")
        for names, nargs in ((flags.ignored, None), (flags.ignored_lists, "+")):
            for name in names:
                self.add_argument(f"--{name}", nargs=nargs, dest=f"harmless {name}")
        for name, how in flags.valued.items():
            self.add_argument(*name.split(), **how)
        for name, default in flags.switches.items():
            self.add_argument(*name.split(), action=argparse.BooleanOptionalAction, default=default)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse.

        Args:
            argv: with or without a leading "serve".

        Raises:
            UsageError: a flag that cannot be emulated, or a value that cannot be.
        """
        words = self._merged([_with_dashes(word) for word in (argv[1:] if argv and argv[0] == "serve" else argv)])
        for word in words:
            name = word.partition("=")[0]
            if _is_flag(word) and name not in self._option_string_actions:
                near = get_close_matches(name, self._option_string_actions, n=1)
                meant = f" Did you mean {near[0]}?" if near else ""
                raise UsageError(
                    f"{self._engine}: {name} cannot be emulated.{meant} These flags can: {self.flag_list()}."
                )
        options, rest = self.parse_known_args(words)
        if rest:
            raise UsageError(f"{self._engine}: what is {rest[0]!r}? These flags can be emulated: {self.flag_list()}.")
        only(options, self._engine, self._flags.only)
        return options

    def flag_list(self) -> str:
        """The flags with an effect, as a list for messages."""
        actions = [action for action in self._actions if not action.dest.startswith("harmless")]
        return ", ".join(action.option_strings[0] for action in actions if action.option_strings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._engine}: {message}.")

    def _merged(self, words: list[str]) -> list[str]:
        """Dotted options folded into the JSON value of their option."""
        plain: list[str] = []
        parts: dict[str, dict[str, Any]] = {}
        position = 0
        while position < len(words):
            option, equals, value = words[position].partition("=")
            root, dot, key = option.partition(".")
            position += 1
            if not dot or root not in self._flags.json_options:
                plain.append(words[position - 1])
                continue
            if not equals:
                if position == len(words):
                    raise UsageError(f"{self._engine}: {option} needs a value.")
                value = words[position]
                position += 1
            _put(parts.setdefault(root, {}), key.split("."), _json_or_text(value))
        for root, value_of in parts.items():
            plain += [root, json.dumps(value_of)]
        return plain


def json_object(text: str) -> dict[str, Any]:
    """An option's JSON object.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def human_int(text: str) -> int:
    """1024, 8k (8,000) or 8K (8,192), as vLLM reads them.

    Raises:
        argparse.ArgumentTypeError: it is no whole number.
    """
    scale = _HUMAN.get(text[-1:], 1)
    try:
        value = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(value)


def positive(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    value = human_int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def only(options: argparse.Namespace, engine: str, allowed: Mapping[str, Sequence[object]]) -> None:
    """Refuse options whose value the emulator cannot play.

    Args:
        allowed: option name → the values that need no emulation.

    Raises:
        UsageError: an option has a different value.
    """
    for name, values in allowed.items():
        if (value := getattr(options, name)) not in values:
            flag = "--" + name.replace("_", "-")
            can = " or ".join(str(item) for item in values if item is not None)
            raise UsageError(f"{engine}: {flag} {value} cannot be emulated; only {can} can.")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word not in ("-", "--")


def _with_dashes(word: str) -> str:
    if word.startswith("-O") and word[2:].isdigit():
        return f"--optimization-level={word[2:]}"
    if not word.startswith("--"):
        return word
    option, equals, value = word.partition("=")
    root, dot, key = option.partition(".")
    return root.replace("_", "-") + dot + key + equals + value


def _put(into: dict[str, Any], keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
    into[keys[-1]] = value


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
