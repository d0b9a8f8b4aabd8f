"""Emulated argument parsers of the engines. A flag is ignored only if it is known to have no effect; all other unknown
flags are refused."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.releases.stored import release, versions

#: Engine → suffix of a number → its factor. Only a number with a decimal factor may have decimals.
_DECIMAL = {"vllm": {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
            "sglang": {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}}
_BINARY = {"vllm": {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
           "sglang": {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]i?)")


class StartError(RuntimeError):
    """The real engine would refuse to start. The text is the engine's error message; the exit code is 1."""


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """What the emulator does with the flags of an engine.

    Args:
        engine, version: the engine, and the stored release whose options are read.
        effective: flags with an effect.
        resolved: option → the default that the engine resolves after it has parsed its command line.
        from_zero: effective flags whose value may be a whole number below 1. For any other count, a value below 1 is
            refused, as by the engine.
        only: option → the values that need no emulation.
        harmless: flags without effect on the emulated times.
    """

    engine: str
    version: str
    effective: Sequence[str]
    resolved: Mapping[str, object]
    from_zero: Sequence[str]
    only: Mapping[str, Sequence[object]]
    harmless: Sequence[str]


class EngineParser(argparse.ArgumentParser):
    """The options of a release as argparse reads them. It takes underscores for dashes and dotted JSON options, and
    refuses by exception.

    Args:
        flags: what is emulated.
        version: a stored release; None for the release of `flags`.
    """

    def __init__(self, flags: EngineFlags, version: str | None = None) -> None:
        super().__init__(prog=flags.engine, add_help=False, allow_abbrev=False)
        facts = release(flags.engine, version or flags.version)
        if facts is None:
            raise UsageError(f"{flags.engine} {version} cannot be emulated; {', '.join(versions(flags.engine))} can.")
        self._flags = flags
        self._engine = flags.engine
        self._known = facts.options()
        self._json = {name for name, entry in facts.flags.items() if _TYPES.get(entry.get("type", "")) is json_object}
        for flag in (*flags.effective, *flags.harmless):
            name = flag if flag in facts.flags else f"--{flag}"
            if name in facts.flags:  # a version may not have it yet, or no more
                self._add(name, facts.flags[name], flag in flags.effective, flag in flags.from_zero)
        self.set_defaults(**flags.resolved)

    def _add(self, name: str, entry: Mapping[str, Any], effective: bool, from_zero: bool) -> None:
        names = [name, *entry.get("names", ())]
        action = entry.get("action", "")
        how: dict[str, Any] = {"default": entry.get("default")}
        if name.startswith("-"):
            how["dest"] = entry.get("dest", name.lstrip("-").replace("-", "_"))
            if not effective:
                how["dest"] = f"harmless {how['dest']}"
        if action == "boolean":
            how["action"] = argparse.BooleanOptionalAction
        elif "StoreTrue" in action or action == "store_true":
            how["action"] = "store_true"
        else:
            kind = entry.get("type", "")
            how["type"] = _TYPES.get(kind, str)
            if kind in ("int", HUMAN):
                least = 1 if effective and not from_zero else None
                how["type"] = partial(whole, human=self._engine if kind == HUMAN else None, least=least)
            choices = [str(choice) for choice in entry.get("choices", ()) if choice is not None]
            how |= {"choices": choices} if choices and how["type"] is str else {}
            how |= {"nargs": entry["nargs"]} if "nargs" in entry else {}
        self.add_argument(*names, **how)
        if "off" in entry:
            self.add_argument(*entry["off"], action="store_false", dest=how["dest"], default=how["default"])

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse.

        Args:
            argv: with or without a leading "serve".

        Raises:
            UsageError: a flag that cannot be emulated, or a value that cannot be.
        """
        words = self._merged([_with_dashes(word) for word in (argv[1:] if argv and argv[0] == "serve" else argv)])
        words = [self._whole_name(word) if _is_flag(word) else word for word in words]
        options, rest = self.parse_known_args(words)
        if rest:
            raise UsageError(f"{self._engine}: what is {rest[0]!r}? These flags can be emulated: {self.flag_list()}.")
        only(options, self._engine, self._flags.only)
        return options

    def _whole_name(self, word: str) -> str:
        """The whole name of a flag. As in argparse, the beginning of a name is enough if only one option begins with
        it."""
        name, equals, value = word.partition("=")
        starting = sorted(each for each in self._known if each.startswith(name)) if name.startswith("--") else []
        if name not in self._known and len(starting) > 1 and name not in self._option_string_actions:
            raise UsageError(f"{self._engine}: ambiguous option: {name} could match {', '.join(starting)}. Write one.")
        if name not in self._known and len(starting) == 1:
            name = starting[0]
        if name not in self._option_string_actions:
            near = get_close_matches(name, self._option_string_actions, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"{self._engine}: {name} cannot be emulated.{meant} These flags can: {self.flag_list()}.")
        return name + equals + value

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
            if not dot or root not in self._json:
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
        argparse.ArgumentTypeError: the text is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def whole(text: str, *, human: str | None = "vllm", least: int | None = None) -> int:
    """A whole number.

    Args:
        human: the engine whose suffixes it may have, 8k (8,000) or 8K (8,192) in vLLM; None without suffixes.
        least: smallest value; None without a limit.

    Raises:
        argparse.ArgumentTypeError: the text is no such number.
    """
    match = _HUMAN.fullmatch(text.strip()) if human is not None else None
    try:
        if match is not None and human is not None:
            number, suffix = match.groups()
            decimal = suffix in _DECIMAL[human]
            value = int(float(number) * _DECIMAL[human][suffix]) if decimal else int(number) * _BINARY[human][suffix]
        else:
            value = int(text)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if least is not None and value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
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


HUMAN = "human_readable_int"
#: Name of a converter in a stored release → what reads the value here; text by default.
_TYPES: Mapping[str, Any] = {
    "int": int, "float": float, "json": json_object, HUMAN: whole, "parse_cuda_graph_config_arg": json_object,
}


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
