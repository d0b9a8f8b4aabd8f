"""Recorded traffic as a stream of lines: one type for a line, one reader per published format.

A reader holds one line at a time, so the length of a trace does not change the memory that reading takes. Requests
files of run folders are the exception: they are one JSON document and at most 256 MiB.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

from pytest_llmperf.errors import SpecError

BLOCK_TOKENS = 512  # of a block of a Mooncake trace
_LARGEST_TOKENS = 10_000_000
_UNPACKED_LIMIT_BYTES = 256 * 2**20
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?")
_EXPECTED = ("Mooncake JSONL, BurstGPT CSV, Azure LLM inference CSV, OpenTelemetry spans (OTLP JSON lines) or a "
             "requests file of a run folder (….json.gz)")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A recorded request.

    Args:
        at_ns: send time, in nanoseconds of the trace's own clock.
        input_tokens: number of prompt tokens.
        output_tokens: number of generated tokens; 0 for a failed request.
        blocks: id of each block of 512 prompt tokens, where the trace has them. Equal ids at the start of two prompts
            mean equal tokens.
        chat: id of the request, where the trace links the turns of conversations.
        parent: id of the turn before; None for a first turn. Turns with one parent are branches.
    """

    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    chat: str | None = None
    parent: str | None = None


def read_lines(path: str) -> Iterator[TraceLine]:
    """The lines of a trace, in the order of the file; the first bytes of the file decide the format.

    Raises:
        SpecError: the file cannot be read, has no known format, or has a broken line. The message has its number.
    """
    source = Path(path).expanduser()
    try:
        with source.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            yield from _requests_file(source, path)
            return
        with source.open(encoding="utf-8", newline="") as text:
            first = text.readline(1 << 20)
        yield from _text_lines(source, path, _reader_of(first, path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"trace: cannot read {path}: {error}. It must be {_EXPECTED}.") from error


def _text_lines(source: Path, path: str, reader: Callable[[str], Iterator[TraceLine]]) -> Iterator[TraceLine]:
    with source.open(encoding="utf-8", newline="") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                yield from reader(text)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, csv.Error) as error:
                cause = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise SpecError(f"trace: {path}, line {number}: {cause}. Correct or delete the line. "
                                "Nothing was sent.") from error


def _reader_of(first: str, path: str) -> Callable[[str], Iterator[TraceLine]]:
    """The reader of the format that the first line shows."""
    columns = [column.strip().strip('"').lower() for column in first.lstrip("\ufeff").split(",")]
    if {"timestamp", "request tokens", "response tokens"} <= set(columns):
        return _csv_reader(columns, ("timestamp", "request tokens", "response tokens"), _decimal_ns)
    if {"timestamp", "contexttokens", "generatedtokens"} <= set(columns):
        return _csv_reader(columns, ("timestamp", "contexttokens", "generatedtokens"), _azure_ns)
    if first.lstrip().startswith("{"):
        return _spans if '"resourceSpans"' in first else _mooncake
    raise SpecError(f"trace: {path}, line 1: {first[:60].strip()!r} begins no known format. "
                    f"The file must be {_EXPECTED}.")


def _csv_reader(
    columns: list[str], names: tuple[str, str, str], to_ns: Callable[[str], int]
) -> Callable[[str], Iterator[TraceLine]]:
    """A reader of CSV with a time, a number of input tokens and a number of output tokens.

    Args:
        names: of these three columns, in lower case.
        to_ns: the time in nanoseconds.
    """
    at, input_tokens, output_tokens = map(columns.index, names)
    header = True

    def read(text: str) -> Iterator[TraceLine]:
        nonlocal header
        if header:
            header = False
            return
        row = next(csv.reader([text]))
        if len(row) < len(columns):
            raise ValueError(f"{len(row)} of {len(columns)} columns")
        sent, generated = (_tokens(_number(row[column]), columns[column]) for column in (input_tokens, output_tokens))
        yield TraceLine(to_ns(row[at]), sent, generated)

    return read


def _decimal_ns(text: str) -> int:
    """Seconds in nanoseconds."""
    try:
        time_s = float(text)
    except ValueError as error:
        raise ValueError(f"timestamp must be a number of seconds, got {text!r}") from error
    return _whole_ns(time_s * 1e9)


def _whole_ns(value: float) -> int:
    if not 0 <= value < 2**63:
        raise ValueError(f"the time {value:g} ns is not from 0 to 2^63 ns")
    return round(value)


def _azure_ns(text: str) -> int:
    """A date and time with up to nine digits of a second, in nanoseconds since 1970; UTC where no zone is given."""
    matched = _AZURE_TIME.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"{text!r} is no date and time such as 2023-11-16 18:15:46.6805900")
    whole, fraction, zone = matched.groups()
    moment = datetime.fromisoformat(whole + (zone or ""))
    since_1970 = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return _whole_ns(int(since_1970) * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0")))


def _mooncake(text: str) -> Iterator[TraceLine]:
    """{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id of each block of 512 tokens]}.

    A line may link the turns of a conversation: {"chat_id": id, "parent_chat_id": id, or -1 or null for a first turn}.
    """
    line = json.loads(text)
    blocks = tuple(line.get("hash_ids") or ())
    if not all(map(_is_integer, blocks)):
        raise TypeError("hash_ids must be integers")
    input_tokens = _tokens(line["input_length"], "input_length")
    if blocks and len(blocks) != -(-input_tokens // BLOCK_TOKENS):
        raise ValueError(f"{len(blocks)} hash_ids for {input_tokens} tokens, and a block has {BLOCK_TOKENS} tokens")
    at = line["timestamp"]
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise TypeError(f"timestamp must be a number of milliseconds, got {at!r}")
    chat, parent = _chat_id(line, "chat_id"), _chat_id(line, "parent_chat_id")
    if parent is not None and (chat is None or parent == chat):
        raise ValueError(f"parent_chat_id is {parent} and chat_id is {chat}: a turn has an id of its own")
    output_tokens = _tokens(line["output_length"], "output_length")
    yield TraceLine(_whole_ns(at * 1_000_000), input_tokens, output_tokens, blocks, chat, parent)


def _chat_id(line: dict[str, Any], name: str) -> str | None:
    value = line.get(name)
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{name} must be a number or a text, got {value!r}")
    return str(value)


def _spans(text: str) -> Iterator[TraceLine]:
    """The spans of one export (OTLP JSON) that count tokens by the semantic conventions of generative AI."""
    for resource in json.loads(text)["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield from _span(span)


def _span(span: dict[str, Any]) -> Iterator[TraceLine]:
    attributes = {entry["key"]: entry.get("value", {}) for entry in span.get("attributes", ())}
    names = [f"gen_ai.usage.{side}_tokens" for side in ("input", "output")]
    if names[0] not in attributes:
        return  # a span of something else: a tool call, a database
    input_tokens, output_tokens = (_tokens(_number((attributes.get(name) or {"intValue": 0})["intValue"]), name)
                                   for name in names)
    yield TraceLine(_whole_ns(int(span["startTimeUnixNano"])), input_tokens, output_tokens)


def _requests_file(source: Path, path: str) -> Iterator[TraceLine]:
    """Requests of a run folder: columns in gzipped JSON. A run states the asked lengths; the counted ones go first."""
    try:
        with gzip.open(source) as file:
            text = file.read(_UNPACKED_LIMIT_BYTES + 1)
        if len(text) > _UNPACKED_LIMIT_BYTES:
            raise ValueError(f"it unpacks to more than {_UNPACKED_LIMIT_BYTES // 2**20} MiB")  # noqa: TRY301 - one message for all
        columns = json.loads(text)
        counted = zip(columns["prompt_tokens"], columns["asked_prompt_tokens"], strict=True)
        rows = zip(columns["intended_ns"], counted, columns["asked_output_tokens"], strict=True)
        for at, (prompt, length), output in rows:
            yield TraceLine(_whole_ns(at), _tokens(length if prompt is None else prompt, "prompt_tokens"),
                            _tokens(output, "asked_output_tokens"))
    except (EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise SpecError(f"trace: {path} is no requests file: {type(error).__name__}: {error}.") from error


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(text: object) -> object:
    """The integer in a text of digits; any other value unchanged."""
    return int(text) if isinstance(text, str) and text.strip().isdecimal() else text


def _tokens(value: object, name: str) -> int:
    if not _is_integer(value) or not 0 <= value <= _LARGEST_TOKENS:
        raise ValueError(f"{name} must be an integer from 0 to {_LARGEST_TOKENS:,}, got {value!r}")
    return value
