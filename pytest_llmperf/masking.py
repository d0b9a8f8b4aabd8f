"""Removal of secrets from all written texts: by variable name, by known value, and by the shape of the text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 6  # shorter values ("1", "true") would blank out half of a log
_SECRET = re.compile(
    r"(?:KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIES?|WEBHOOKS?)\d*$"
    r"|^(?:PASS|PAT|PWD|BEARER|AUTHORIZATION)$",
    re.IGNORECASE,
)
_COUNTED = frozenset({"max", "min", "num", "per", "new", "batched", "speculative"})  # max_num_batched_token is a number
_USERINFO = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@'\"]*:([^/\s'\"]+)@", re.IGNORECASE)
_SWITCH = re.compile(r"[01]?|true|false|none", re.IGNORECASE)
_NUMBER = re.compile(r"[\d.]+")
_WORD = re.compile(r"[a-z]{1,11}|[A-Z]{1,11}|[A-Z][a-z]{1,10}")

_NAME = (
    r"(?:api[-_]?keys?|key|token|secrets?|password|passwd|passphrase|credentials?|auth|cookies?|webhooks?(?:[-_]url)?)"
)
_HINTS = ("key", "token", "secret", "pass", "credential", "auth", "cookie", "webhook")
_NOT_COUNTED = "".join(rf"(?<!{word}[-_])" for word in sorted(_COUNTED))
_NO_PROSE = (  # what follows the name of an option in a sentence
    r"(?!(?:an?|and|are|as|at|be|by|can|cannot|could|does|exists?|for|from|has|have|if|in|is|it|may|must|needs?|no|not|of|"
    r"on|or|says?|set|should|takes?|that|the|then|to|twice|values?|wants?|was|were|which|will|with|without|would)\b)"
)
_UNQUOTED = r"(?!(?:[A-Za-z]{1,15}|\d+(?:\.\d+)?)(?![\w.~+/*=-]))[^\s'\",;()\[\]{}<>&`]{6,}"


class Shape(NamedTuple):
    """A text that looks like a secret.

    Args:
        pattern: regular expression for text and bytes. The pattern begins with a literal or a bounded repeat, so the
            time for a long line is linear.
        replacement: text that replaces a match.
        needs: text that each match contains.
        hints: texts in lower case. A match contains at least one hint, in upper or lower case.
    """

    pattern: str
    replacement: str
    needs: str
    hints: tuple[str, ...]


SHAPES = (
    Shape(r"((?i:://))[^/\s'\"@]+(?:@[^/\s'\"@]+)*@", rf"\1{MASK}@", "@", ("://",)),
    Shape(r"(?<![\w/.:-])[\w.+-]{1,64}:[^\s:@/'\"`]{3,256}@(?=[\w-]+(?:\.[\w-]+)+|[\w-]+:\d|localhost)(?!sha\d)",
          f"{MASK}@", "@", (":",)),
    Shape(r"((?i:authorization)['\"]?\s*[:=,]\s*b?['\"]?(?:(?i:basic|bearer|digest|negotiate|token)\s+)?)[^\s'\",]+",
          rf"\1{MASK}", "", ("authorization",)),
    Shape(r"((?<!\w)(?i:bearer)\s+)(?!(?i:tokens?|auth\w*|schemes?|credentials?|headers?|formats?|prefix|requests?)\b)"
          rf"{_NO_PROSE}[\w.~+/*=-]{{6,}}", rf"\1{MASK}", "", ("bearer",)),
    Shape(r"((?i:(?:set-)?cookie)['\"]?\s*[:,]\s*b?['\"]?)(?=[\w.-]+=)[^'\"\r\n]+", rf"\1{MASK}", "=", ("cookie",)),
    Shape(r"((?i:x-api-key|api[-_]?key)['\"]?\s*[:=,]\s*\[?\s*b?['\"]?)(?=\d)[^\s'\",\]]{6,}", rf"\1{MASK}", "",
          ("api-key", "api_key", "apikey")),
    Shape(rf"((?<![\w-])--?(?i:(?:[\w-]{{0,64}}[-_])?{_NOT_COUNTED}(?:{_NAME}|keys|pass))(?:=|\s+(?!-){_NO_PROSE}))"
          r"('[^']*'|\"[^\"]*\"|[^\s`]+)", rf"\1{MASK}", "-", _HINTS),
    Shape(r"((?<![a-z])(?<!MAX_)(?<!MIN_)(?<!NUM_)(?<!NEW_)(?<!BATCHED_)"
          r"(?:KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|_PAT|AUTH|COOKIES?|WEBHOOKS?|CREDENTIALS?)"
          r"\d*(?:_[A-Z0-9]+)*=)(?!\s|(?i:[01]|true|false|none|null)(?!\w))('[^']*'|\"[^\"]*\"|\S+)", rf"\1{MASK}", "=",
          (*_HINTS, "_pwd", "_pat")),
    Shape(rf"((?<![A-Za-z])(?i:{_NOT_COUNTED}{_NAME})\d*['\"]?\s*[:=]\s*[\[(]?\s*b?(['\"]))(?!\s|[<\[]|\2)[^'\"\r\n]+",
          rf"\1{MASK}", "", _HINTS),
    Shape(rf"((?<![A-Za-z])(?i:{_NOT_COUNTED}{_NAME})\d*=){_UNQUOTED}", rf"\1{MASK}", "=", _HINTS),
    Shape(rf"((?:(?<=[A-Za-z\d][-_])(?i:{_NOT_COUNTED}{_NAME})|(?<![\w-])(?i:api[-_]?key|passw(?:or)?d))\d*:\s+){_UNQUOTED}",
          rf"\1{MASK}", ": ", _HINTS),
    Shape(r"((?i:hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/))[^\s'\"]+", rf"\1{MASK}", "/",
          ("hooks.slack", "webhooks/")),
    Shape(r"(?<!\w)hf_(?:(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}|[A-Za-z0-9]{16,})", MASK, "hf_", ("hf_",)),
    Shape(r"(?<![\w-])sk-(?:(?=[\w-]*\d)[\w-]{8,}|[\w-]{16,})", MASK, "sk-", ("sk-",)),
    Shape(r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|nvapi-|gsk_|AIza)[\w-]{16,}", MASK, "",
          ("gh", "glpat-", "xox", "nvapi-", "gsk_", "aiza", "github_pat_")),
    Shape(r"(?<![\w-])(?:npm_|r8_|dop_v1_|dckr_pat_|pypi-|sk_live_|rk_live_|sk_test_|shpat_|xapp-|glsa_|gl(?:dt|ft|rt|cbt)-|"
          r"hvs\.|ya29\.|GOCSPX-|pplx-|xai-|api_org_|SG\.)(?=[\w.-]*\d)[\w.-]{20,}", MASK, "",
          ("npm_", "r8_", "dop_v1_", "dckr_pat_", "pypi-", "k_live_", "sk_test_", "shpat_", "xapp-", "glsa_", "gldt-",
           "glft-", "glrt-", "glcbt-", "hvs.", "ya29.", "gocspx-", "pplx-", "xai-", "api_org_", "sg.")),
    Shape(r"(-----BEGIN [A-Z\d ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----)(?:[^-]|-(?!----END))*", rf"\1{MASK}", "PRIVATE KEY",
          ("private key",)),
    Shape(r"(?<!\w)(?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)", MASK, "IA", ("akia", "asia")),
    Shape(r"(?<!\w)eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}", MASK, "eyJ", ("eyj",)),
)
_SHAPES = tuple((re.compile(shape.pattern), shape) for shape in SHAPES)


def is_secret_name(name: str) -> bool:
    """Whether the value with this name is a secret: HF_TOKEN and api_key are secrets; tokenizer, max_tokens and PWD
    not.

    The last word of the name decides. A name that ends in "tokens" is a number, and so is a name with a counting word
    before its last word, such as max_num_batched_token. In a name in upper case, as for environment variables, each
    word decides: AWS_ACCESS_KEY_ID and HF_TOKENS are secrets, speculative_token_tree is not.
    """
    words = re.split(r"[-_.]", name)
    if name.isupper():
        return name not in {"PWD", "OLDPWD"} and any(map(_SECRET.search, words))
    if words[-1].lower() == "tokens" or not _COUNTED.isdisjoint(map(str.lower, words[-2:-1])):
        return False
    return _SECRET.search(words[-1]) is not None or words[-2:] == ["webhook", "url"]


def secret_values(flags: Mapping[str, object], env: Mapping[str, str] | None = None) -> list[str]:
    """The secrets in flags and an environment, as deep as they nest, without secrets too short to mask."""
    texts = {*_secrets(flags), *(text for name, value in (env or {}).items() for text in _secrets(value, name.upper()))}
    texts |= {password for value in (env or {}).values() for password in _USERINFO.findall(value)}
    return sorted(text for text in texts if len(text) >= MIN_LENGTH)


def masked_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, object]:
    """Variables as JSON takes them, with `***` for every secret in them, however their names are written."""
    secret_texts = needles(secrets)
    return {_mask(name, secret_texts): _masked(value, secret_texts, name.upper()) for name, value in env.items()}


def masked(value: object, secrets: Iterable[str] = (), *, name: str = "") -> object:
    """A JSON value in which `***` replaces each secret, at any depth and in JSON texts.

    Args:
        value: value of a flag, or all flags by name.
        secrets: further texts to mask anywhere in the value.
        name: name of the flag.
    """
    return _masked(value, needles(secrets), name)


def spellings(value: str) -> list[str]:
    """All spellings of a text: plain, escaped, URL-encoded, and in base64 at each of the three alignments."""
    raw = value.encode(errors="surrogateescape")
    forms = {value, quote(raw, safe=""), quote(raw)}
    forms |= {text[1:-1] for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))}
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters that also hold bits of a neighbour are left out: they differ with the surroundings.
        core = whole[-(-shift * 4 // 3):(shift + len(raw)) * 8 // 6]
        if len(core) >= MIN_LENGTH:
            forms |= {core, core.replace("+", "-").replace("/", "_")}
    return _longest_first(forms)


def needles(secrets: Iterable[str]) -> list[str]:
    """Every spelling of every secret, longest first so that no part of a longer one stays in a text.

    A secret that could be a word of a sentence ("EMPTY", "server") is left out: it would cut words out of messages and
    logs. A shape such as `--api-key NAME` still hides the secret.
    """
    unlike_words = [value for value in secrets if not _WORD.fullmatch(value)]
    return _longest_first({spelling for value in unlike_words for spelling in spellings(value)})


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `***` for every secret in it: these in any spelling, URL userinfo, bearer tokens, `--api-key X`."""
    return _mask(text, needles(secrets))


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))


def _mask(text: str, secrets: Iterable[str]) -> str:
    for needle in secrets:
        text = text.replace(needle, MASK)
    lowered = text.lower()
    for pattern, shape in _SHAPES:
        if shape.needs in text and any(hint in lowered for hint in shape.hints):
            text = pattern.sub(shape.replacement, text)
    return text


def _masked(value: object, secrets: Iterable[str], name: str) -> object:
    if isinstance(value, Mapping):
        return {_mask(str(key), secrets): _masked(held, secrets, _inner(name, str(key))) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets, name) for item in value]
    if (nested := _nested(value)) is not None and (shown := _masked(nested, secrets, name)) != nested:
        return json.dumps(shown)
    if _is_secret(name, value):
        return MASK
    return _mask(value, secrets) if isinstance(value, str) else value


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
    """The dict or list that a JSON text encodes; None for any other value."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _is_secret(name: str, value: object) -> bool:
    """Whether the value is a secret by its name; switches, token counts and `new_token_ratio=0.7` are not secrets."""
    text = str(value)
    return is_secret_name(name) and not _is_count(name.lower(), text) and not _SWITCH.fullmatch(text)


def _is_count(name: str, text: str) -> bool:
    short = len(text) < MIN_LENGTH or "tokens" in name
    return "token" in name and short and _NUMBER.fullmatch(text) is not None
