"""Secrets out of everything that is written down: by the name of what holds them, by their values, by their shape."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 6  # shorter values ("1", "true") would blank out half of a log
_SECRET = re.compile(
    r"(?:KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)\d*$|^(?:PASS|PAT|PWD|BEARER|AUTHORIZATION)$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@'\"]*:([^/\s'\"]+)@", re.IGNORECASE)
_SWITCH = re.compile(r"[01]?|true|false|none", re.IGNORECASE)
_NUMBER = re.compile(r"[\d.]+")
_FLAG = r"--?(?:[\w-]*[-_])?(?:api-?keys?|keys?|token|secrets?|password|passwd|passphrase|pass|credentials?)"
_SHAPES = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s'\"]+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)[^\s'\",]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"((?:x-)?api[-_]?key['\"]?\s*[:=]\s*\[?['\"]?)[^\s'\",\]]{6,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"((?<!\S){_FLAG}(?:=|\s+(?!-)))('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|_PASS)\d*=)(?!\s)('[^']*'|\S+)"), rf"\1{MASK}"),
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abp]-|nvapi-)[\w-]{16,}"), MASK),
)


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret: HF_TOKEN and api_key are; tokenizer, max_tokens and PWD are not.

    The last word decides, and "tokens" are counted. In upper case, as variables are asked for, any word does:
    AWS_ACCESS_KEY_ID and HF_TOKENS, but not speculative_token_tree.
    """
    words = re.split(r"[-_.]", name)
    if name.isupper():
        return name not in {"PWD", "OLDPWD"} and any(map(_SECRET.search, words))
    return words[-1].lower() != "tokens" and _SECRET.search(words[-1]) is not None


def secret_values(flags: Mapping[str, object], env: Mapping[str, str] | None = None) -> list[str]:
    """The secrets in flags and an environment, as deep as they nest, without those too short to be told from text."""
    found = {*_secrets(flags), *(text for name, value in (env or {}).items() for text in _secrets(value, name.upper()))}
    found |= {password for value in (env or {}).values() for password in _USERINFO.findall(value)}
    return sorted(text for text in found if len(text) >= MIN_LENGTH)


def masked_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, object]:
    """Variables as JSON takes them, with `***` for every secret in them, however their names are written."""
    known = needles(secrets)
    return {_mask(name, known): _masked(value, known, name.upper()) for name, value in env.items()}


def masked(value: object, secrets: Iterable[str] = (), *, name: str = "") -> object:
    """A value as JSON takes it, with `***` for every secret in it, as deep as it nests; JSON in a text counts.

    Args:
        value: of a flag; or all of them, by name.
        secrets: further texts to mask wherever they stand.
        name: of the flag.
    """
    return _masked(value, needles(secrets), name)


def spellings(value: str) -> list[str]:
    """`value` as it may be written: plain, escaped, URL-encoded, and in base64 at each of the three alignments."""
    raw = value.encode(errors="surrogateescape")
    found = {value, quote(raw, safe=""), quote(raw)}
    found |= {text[1:-1] for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))}
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters that also hold bits of a neighbour are left out: they differ with the surroundings.
        core = whole[-(-shift * 4 // 3):(shift + len(raw)) * 8 // 6]
        if len(core) >= MIN_LENGTH:
            found |= {core, core.replace("+", "-").replace("/", "_")}
    return _longest_first(found)


def needles(secrets: Iterable[str]) -> list[str]:
    """Every spelling of every secret, longest first so that no part of a longer one stays in a text."""
    return _longest_first({spelling for value in secrets for spelling in spellings(value)})


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `***` for every secret in it: these in any spelling, URL userinfo, bearer tokens, `--api-key X`."""
    return _mask(text, needles(secrets))


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))


def _mask(text: str, known: Iterable[str]) -> str:
    for needle in known:
        text = text.replace(needle, MASK)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def _masked(value: object, known: Iterable[str], name: str) -> object:
    if isinstance(value, Mapping):
        return {_mask(str(key), known): _masked(held, known, _inner(name, str(key))) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, known, name) for item in value]
    if (nested := _nested(value)) is not None and (shown := _masked(nested, known, name)) != nested:
        return json.dumps(shown)
    if _is_secret(name, value):
        return MASK
    return _mask(value, known) if isinstance(value, str) else value


def _secrets(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield from _secrets(held, _inner(name, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, name)
    else:
        if (nested := _nested(value)) is not None:
            yield from _secrets(nested, name)
        if _is_secret(name, value):
            yield str(value)


def _inner(outer: str, name: str) -> str:
    """Which name decides: all that stands under a secret's name is secret."""
    return outer if is_secret_name(outer) else name


def _nested(value: object) -> object:
    """The dict or list that a text is in JSON; None where it is none."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _is_secret(name: str, value: object) -> bool:
    """Whether this value of that name is one: a switch is none, nor is a number of tokens, or `new_token_ratio=0.7`."""
    text = str(value)
    return is_secret_name(name) and not _is_count(name.lower(), text) and not _SWITCH.fullmatch(text)


def _is_count(name: str, text: str) -> bool:
    short = len(text) < MIN_LENGTH or "tokens" in name
    return "token" in name and short and _NUMBER.fullmatch(text) is not None
