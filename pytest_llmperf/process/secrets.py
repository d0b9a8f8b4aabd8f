"""Secrets out of everything that is written down: values of secret-looking variables, and secrets by their shape."""

from __future__ import annotations

import base64
import bisect
import re
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 6  # shorter values ("1", "true") would blank out half of a log
_NAME_PART = re.compile(
    r"(?:KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$|^(?:PAT|PWD|BEARER|AUTHORIZATION)$"
)
_FLAG = re.compile(r"--?(?:[\w-]*[-_])?(?:api-?key|key|token|secret|password|passwd|credentials?)", re.IGNORECASE)
_SHAPES = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)[^\s'\",]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"((?:x-)?api[-_]?key['\"]?\s*[:=]\s*\[?['\"]?)[^\s'\",\]]{6,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"((?<!\S){_FLAG.pattern}(?:=|\s+))(?!-)('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)=)(?!\s)('[^']*'|\S+)"), rf"\1{MASK}"),
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abp]-|nvapi-)[\w-]{16,}"), MASK),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret: HF_TOKEN does, TOKENIZERS_PARALLELISM and PWD do not."""
    upper = name.upper()
    return upper not in {"PWD", "OLDPWD"} and any(_NAME_PART.search(part) for part in upper.split("_"))


def secret_values(env: Mapping[str, str]) -> list[str]:
    """The values of `env` to mask, longest first so that no part of a longer one stays."""
    found = {value for name, value in env.items() if is_secret_name(name) and len(value) >= MIN_LENGTH}
    return sorted(found, key=lambda value: (-len(value), value))


def secret_arguments(argv: Iterable[str]) -> list[str]:
    """What stands behind `--api-key` and its like: servers log the arguments that they were given."""
    found, previous = [], ""
    for argument in argv:
        name, equals, value = argument.partition("=")
        if equals and _FLAG.fullmatch(name):
            found.append(value)
        elif _FLAG.fullmatch(previous) and not argument.startswith("-"):
            found.append(argument)
        previous = argument
    return [value for value in found if len(value) >= MIN_LENGTH]


def spellings(value: str) -> list[str]:
    """`value` as it may be written: plain, URL-encoded, and in base64 at each of the three alignments."""
    raw = value.encode(errors="surrogateescape")
    found = {value, quote(raw, safe=""), quote(raw)}
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters that also hold bits of a neighbour are left out: they differ with the surroundings.
        core = whole[-(-shift * 4 // 3):(shift + len(raw)) * 8 // 6]
        if len(core) >= MIN_LENGTH:
            found |= {core, core.replace("+", "-").replace("/", "_")}
    return sorted(found, key=lambda text: (-len(text), text))


def mask(text: str, env: Mapping[str, str] | None = None) -> str:
    """`text` with every secret replaced by `***`: values of `env`, URL userinfo, bearer tokens, `--api-key X`."""
    for value in secret_values(env or {}):
        for spelling in spellings(value):
            text = text.replace(spelling, MASK)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def mask_argv(argv: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """A command line as a shell would take it, secrets masked."""
    shown: list[str] = []
    previous = ""
    for argument in argv:
        hidden = _FLAG.fullmatch(previous) is not None and not argument.startswith("-")
        shown.append(MASK if hidden else argument)
        previous = argument
    return mask(" ".join(word if word == MASK else shlex.quote(word) for word in shown), env)


class StreamMask:
    """Masks known values in a byte stream, also where one is cut by a chunk boundary.

    Only bytes that may be the start of a secret are held back, so a log is not delayed.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._needles = sorted({text.encode(errors="surrogateescape") for v in values for text in spellings(v)})
        longest_first = sorted(self._needles, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        self._longest = max(map(len, self._needles), default=0)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self._pattern is None:
            return data
        data = self._pattern.sub(self._replace, self._held + data)
        keep = next((n for n in range(min(len(data), self._longest), 0, -1) if self._begins_needle(data[-n:])), 0)
        self._held = data[len(data) - keep:]
        return data[:len(data) - keep]

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(MASK.encode(), rest)

    def _replace(self, match: re.Match[bytes]) -> bytes:
        """A match at the very end waits where a longer secret begins with it."""
        at_end = match.end() == len(match.string)
        return match[0] if at_end and self._begins_needle(match[0]) else MASK.encode()

    def _begins_needle(self, end: bytes) -> bool:
        """Whether some needle is longer than `end` and starts with it."""
        following = self._needles[bisect.bisect_right(self._needles, end):][:1]
        return bool(following) and following[0].startswith(end)
