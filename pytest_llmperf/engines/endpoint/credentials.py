"""Keys and headers of an endpoint: a spec names their variable or file, and the values stay in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.errors import SpecError
from pytest_llmperf.masking import MIN_LENGTH
from pytest_llmperf.model.engine import Endpoint

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # a key given in place of a name is almost never upper case
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CLIENTS_OWN = frozenset({
    "accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_AUTHORIZATION = "Authorization"


def secret_headers(
    call: str, api_key_env: str | None, api_key_file: str | None, headers_env: Mapping[str, str] | None
) -> tuple[tuple[str, str], ...]:
    """The headers of an endpoint as its spec stores them: sorted pairs of header and source, without values.

    Args:
        call: how the endpoint was written, for messages.
        api_key_env: variable with the API key.
        api_key_file: file with the API key.
        headers_env: variable by header name.

    Raises:
        SpecError: a source or a header is not valid. The message does not show the source, which may be a key.
    """
    if api_key_env is not None and api_key_file is not None:
        raise SpecError(f"{call}, api_key_env=…, api_key_file=…): give the key by a variable or by a file, "
                        "not by both.")
    sources = {}
    if api_key_env is not None:
        sources[_AUTHORIZATION] = "key-" + _from_variable(f"{call}, api_key_env=…)", api_key_env)
    if api_key_file is not None:
        if not isinstance(api_key_file, str) or not api_key_file or "\0" in api_key_file or "\n" in api_key_file:
            raise SpecError(f"{call}, api_key_file=…): the file is a path, as text.")
        sources[_AUTHORIZATION] = f"key-file:{api_key_file}"
    if not isinstance(headers_env or {}, Mapping):
        raise SpecError(f'{call}, headers_env=…): write {{"HEADER": "VARIABLE"}}.')
    for header, variable in (headers_env or {}).items():
        if not isinstance(header, str) or not HEADER_NAME.fullmatch(header):
            raise SpecError(f"{call}, headers_env=…): a key of this dict is no name of an HTTP header. Correct it.")
        if header.lower() in _CLIENTS_OWN:
            raise SpecError(f"{call}, headers_env={{{header!r}: …}}): the load generator sets this header. "
                            "Leave it out.")
        if header.lower() in {name.lower() for name in sources}:
            raise SpecError(f"{call}, headers_env={{{header!r}: …}}): this header is given twice. Leave one out.")
        sources[header] = _from_variable(f"{call}, headers_env={{{header!r}: …}})", variable)
    return tuple(sorted(sources.items()))


def header_values(
    spec: Endpoint, root: Path, environ: Mapping[str, str], sources: tuple[tuple[str, str], ...] | None = None
) -> tuple[tuple[str, str], ...]:
    """The headers of an endpoint with their values.

    Args:
        sources: pairs of header and source; None for those of the endpoint itself.
        root: project root, for relative paths.
        environ: the environment variables.

    Raises:
        SpecError: a variable is not set, a file cannot be read, or a value cannot be sent. No value is shown.
    """
    pairs = spec.secret_headers if sources is None else sources
    return tuple((header, _value(spec, header, source, root, environ)) for header, source in pairs)


def sent_secrets(headers: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The texts to mask: each value, and a bearer token without its scheme. Very short values are left out."""
    texts = dict.fromkeys(text for _, value in headers for text in (value, value.rpartition(" ")[2]))
    return tuple(text for text in texts if len(text) >= MIN_LENGTH)


def _from_variable(call: str, variable: object) -> str:
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        raise SpecError(
            f"{call}: this is no name of an environment variable in upper case. A test must not contain a key: put the "
            'key into a variable and write the name of the variable, e.g. "OPENAI_API_KEY".'
        )
    return f"env:{variable}"


def _value(spec: Endpoint, header: str, source: str, root: Path, environ: Mapping[str, str]) -> str:
    kind, _, name = source.partition(":")
    if kind.endswith("env"):
        if name not in environ:
            raise SpecError(f"The environment variable {name} is not set. {spec} sends it as the header {header}. "
                            f"Nothing was sent. Run `export {name}=…` first.")
        text, place = environ[name].strip(), f"environment variable {name}"
    else:
        try:
            text, place = (root / Path(name).expanduser()).read_text("utf-8").strip(), f"file {name}"
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "the file is not UTF-8 text"
            raise SpecError(f"The API key file {name} cannot be read: {reason}. Nothing was sent. Write the key into "
                            "this file, or correct api_key_file.") from None
    if not _VALUE.fullmatch(text):
        raise SpecError(f"The {place} is empty or holds characters that no HTTP header can hold (its value is not "
                        f"shown). {spec} sends it as the header {header}. Nothing was sent. Correct the value.")
    return f"Bearer {text}" if kind.startswith("key-") else text
