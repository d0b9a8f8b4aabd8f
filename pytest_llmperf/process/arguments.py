"""Command lines and the secrets in them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from pytest_llmperf.masking import MASK, mask, masked, secret_values


def secret_arguments(argv: Iterable[str]) -> list[str]:
    """Secret values in a command line, after options such as `--api-key` or inside JSON, as servers log arguments."""
    return [secret for _, name, value in _values(argv) for secret in secret_values({name: value})]


def mask_argv(argv: Iterable[str], secrets: Iterable[str] = ()) -> str:
    """A command line as a shell would take it, with `***` for these secrets and its own."""
    hidden, words = list(secrets), []
    for option, name, value in _values(argv):
        shown = str(masked(value, hidden, name=name))
        word = mask(option, hidden) + shown
        words.append(word if MASK in (shown, word) else shlex.quote(word))
    return " ".join(words)


def _values(argv: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Each argument as the option in it ("--x", "--x=" or ""), and a value with the name whose value it is.

    All up to the next option are values of the one before: `--api-key K1 K2`.
    """
    name = ""
    for argument in argv:
        option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        name = option.lstrip("-") or name
        yield option + equals, name, value
