"""Recorded traffic as a stream of lines: one type for a line, one reader per published format.

A reader holds one line at a time, so the length of a trace does not change the memory that reading takes. Requests
files of run folders are the exception: they are one JSON document.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

from pytest_llmperf.bounded_file import MIB, open_regular, read_packed
from pytest_llmperf.errors import SpecError, echo

#: Nanoseconds of each unit that `trace(unit=)` takes.
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
BLOCK_TOKENS = 512  # of a block of a Mooncake trace
BAILIAN, BAILIAN_BLOCK_TOKENS = "Bailian JSONL", 16
_USUAL_BLOCKS = (8, 16, 32, 64, 128, 256, 512, 1024)
_LARGEST_TOKENS = 10_000_000
_LINE_LIMIT_BYTES = 16 * MIB
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?")
_EXPECTED = ("Mooncake JSONL, Bailian JSONL, BurstGPT CSV, Azure LLM inference CSV, OpenTelemetry spans (OTLP JSON "
             "lines) or a requests file of a run folder (….json.gz)")
_BROKEN = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError, csv.Error)


@dataclass(frozen=True, slots=True)
class Form:
    """How the numbers of a trace are read.

    Args:
        name: of the published format.
        unit: of timestamps, a key of `UNITS_NS`; None for dates and for times with a unit.
        block_tokens: prompt tokens of each block; None for a format without blocks.
        stated: whether the format or the user states the unit; a unit that was not stated can be wrong.
    """

    name: str
    unit: str | None = None
    block_tokens: int | None = None
    stated: bool = True

    @property
    def bailian(self) -> bool:
        return self.name == BAILIAN


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A recorded request.

    Args:
        at_ns: send time, in nanoseconds of the trace's own clock.
        input_tokens: number of prompt tokens.
        output_tokens: number of generated tokens; 0 for a failed request.
        blocks: id of each block of prompt tokens, where the trace has them. Equal ids at the start of two prompts mean
            equal tokens.
        chat: id of the request, where the trace links the turns of conversations.
        parent: id of the turn before; None for a first turn. Turns with one parent are branches.
        form: of the trace.
    """

    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    chat: str | None = None
    parent: str | None = None
    form: Form = Form("")

    @property
    def block_tokens(self) -> int:
        return self.form.block_tokens or BLOCK_TOKENS


def read_lines(path: str, unit: str | None = None, block: int | None = None) -> Iterator[TraceLine]:
    """The lines of a trace, in the order of the file; the first line of the file decides the format.

    Args:
        unit: of timestamps; None for the unit of the format.
        block: tokens of a block; None for the size of the format.

    Raises:
        SpecError: the file cannot be read, has no known format, or has a broken line. The message has its number.
    """
    source = Path(path).expanduser()
    try:
        with open_regular(source) as file:
            if file.peek(2)[:2] == b"\x1f\x8b":  # type: ignore[attr-defined]
                _refuse_options(path, "a requests file", unit, block)
                yield from _requests_file(source, path)
            else:
                yield from _text_lines(file, path, unit, block)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"trace: cannot read {path}: {error}. It must be {_EXPECTED}, in UTF-8.") from error


def _text_lines(file: BinaryIO, path: str, unit: str | None, block: int | None) -> Iterator[TraceLine]:
    reader: Callable[[str], Iterator[TraceLine]] | None = None
    number = 0
    while line := file.readline(_LINE_LIMIT_BYTES + 1):
        number += 1
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if not text.strip():
            continue
        reader = reader or _reader_of(text, path, unit, block)
        try:
            if len(line) > _LINE_LIMIT_BYTES:
                raise ValueError(f"it has more than {_LINE_LIMIT_BYTES // MIB} MiB")
            yield from reader(text)
        except _BROKEN as error:
            cause = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)
            remedy = "" if isinstance(error, _OtherBlocks) else " Correct or delete the line."
            raise SpecError(f"trace: {path}, line {number}: {cause}.{remedy} Nothing was sent.") from error


def _reader_of(first: str, path: str, unit: str | None, block: int | None) -> Callable[[str], Iterator[TraceLine]]:
    """The reader of the format that the first line shows."""
    columns = [column.strip().strip('"').lower() for column in first.split(",")]
    if {"timestamp", "request tokens", "response tokens"} <= set(columns):
        _refuse_options(path, "BurstGPT CSV", None, block)
        form = Form("BurstGPT CSV", unit or "s")
        return _csv_reader(columns, ("timestamp", "request tokens", "response tokens"), form)
    if {"timestamp", "contexttokens", "generatedtokens"} <= set(columns):
        _refuse_options(path, "Azure CSV", unit, block)
        return _csv_reader(columns, ("timestamp", "contexttokens", "generatedtokens"), Form("Azure CSV"))
    if first.lstrip().startswith("{"):
        if '"resourceSpans"' in first:
            _refuse_options(path, "OpenTelemetry", unit, block)
            return _spans
        return _json_reader(_form_of(first, unit, block))
    raise SpecError(f"trace: {path}, line 1: {echo(first[:60].strip())} begins no known format. "
                    f"The file must be {_EXPECTED}.")


def _refuse_options(path: str, name: str, unit: str | None, block: int | None) -> None:
    for option, value, what in (("unit", unit, "states the unit of its times"), ("block", block, "has no blocks")):
        if value is not None:
            raise SpecError(f"trace: {path} is {name}, which {what}. Leave out {option}={value!r}.")


def _form_of(first: str, unit: str | None, block: int | None) -> Form:
    """Bailian or Mooncake, by the fields of the first line.

    The published Bailian traces link turns, number them, and have blocks of 16 tokens. A trace that links turns and has
    neither `turn` nor `type` is Bailian if its blocks have 16 tokens.
    """
    try:
        line = json.loads(first)
        linked = "chat_id" in line and "parent_chat_id" in line
        bailian = linked and ("turn" in line or "type" in line or _fits(line, BAILIAN_BLOCK_TOKENS))
    except _BROKEN:
        bailian = False  # the reader names the cause
    if bailian:
        return Form(BAILIAN, unit or "s", block or BAILIAN_BLOCK_TOKENS, unit is not None)
    return Form("Mooncake JSONL", unit or "ms", block or BLOCK_TOKENS, unit is not None)


def _fits(line: dict[str, Any], block: int) -> bool:
    blocks, tokens = line.get("hash_ids") or (), _tokens(line["input_length"], "input_length")
    return len(blocks) == -(-tokens // block) != -(-tokens // BLOCK_TOKENS)


def _csv_reader(
    columns: list[str], names: tuple[str, str, str], form: Form
) -> Callable[[str], Iterator[TraceLine]]:
    """A reader of CSV with a time, a number of input tokens and a number of output tokens.

    Args:
        names: of these three columns, in lower case.
        form: a form without a unit has dates.
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
        at_ns = _azure_ns(row[at]) if form.unit is None else _time_ns(_number(row[at]), form.unit)
        yield TraceLine(at_ns, sent, generated, form=form)

    return read


def _time_ns(value: object, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"timestamp must be a number of {_UNIT_WORDS[unit]}, got {echo(value)}")
    if not 0 <= value < 2**63 / UNITS_NS[unit]:
        raise ValueError(f"timestamp {echo(value)} is not from 0 to 2^63 ns")
    return round(value * UNITS_NS[unit])


def _whole_ns(value: int) -> int:
    return _time_ns(value, "ns")


def _azure_ns(text: str) -> int:
    """A date and time with up to nine digits of a second, in nanoseconds since 1970; UTC where no zone is given."""
    matched = _AZURE_TIME.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"{echo(text)} is no date and time such as 2023-11-16 18:15:46.6805900")
    whole, fraction, zone = matched.groups()
    moment = datetime.fromisoformat(whole + (zone or ""))
    since_1970 = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return _whole_ns(int(since_1970) * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0")))


def _json_reader(form: Form) -> Callable[[str], Iterator[TraceLine]]:
    """A reader of {"timestamp": time, "input_length": n, "output_length": n, "hash_ids": [id of each block]}.

    A line may link the turns of a conversation: {"chat_id": id, "parent_chat_id": id, or -1 or null for a first turn}.
    """

    def read(text: str) -> Iterator[TraceLine]:
        line = json.loads(text)
        blocks = tuple(line.get("hash_ids") or ())
        if not all(map(_is_integer, blocks)):
            raise TypeError("hash_ids must be integers")
        input_tokens = _tokens(line["input_length"], "input_length")
        if blocks and len(blocks) != -(-input_tokens // (form.block_tokens or 1)):
            _refuse_blocks(form, len(blocks), input_tokens)
        at_ns = _time_ns(line["timestamp"], form.unit or "ms")
        chat, parent = _chat_id(line, "chat_id"), _chat_id(line, "parent_chat_id")
        if parent is not None and (chat is None or parent == chat):
            raise ValueError(f"parent_chat_id is {echo(parent)} and chat_id is {echo(chat)}: "
                             "a turn has an id of its own")
        output_tokens = _tokens(line["output_length"], "output_length")
        yield TraceLine(at_ns, input_tokens, output_tokens, blocks, chat, parent, form)

    return read


class _OtherBlocks(ValueError):
    """The blocks of a line have another size than those of the format."""


def _refuse_blocks(form: Form, count: int, tokens: int) -> NoReturn:
    problem = (f"{count} hash_ids for {tokens} tokens, and a block has {form.block_tokens} tokens (the file is read as "
               f"{form.name} with times in {_UNIT_WORDS[form.unit or 'ms']})")
    if sizes := [size for size in _USUAL_BLOCKS if -(-tokens // size) == count]:
        raise _OtherBlocks(f"{problem}. Blocks of {' or '.join(map(str, sizes))} tokens fit: write block={sizes[0]}")
    raise ValueError(problem)


def _chat_id(line: dict[str, Any], name: str) -> str | None:
    value = line.get(name)
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{name} must be a number or a text, got {echo(value)}")
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
        columns = json.loads(read_packed(source))
        counted = zip(columns["prompt_tokens"], columns["asked_prompt_tokens"], strict=True)
        rows = zip(columns["intended_ns"], counted, columns["asked_output_tokens"], strict=True)
        for at, (prompt, length), output in rows:
            yield TraceLine(_whole_ns(at), _tokens(length if prompt is None else prompt, "prompt_tokens"),
                            _tokens(output, "asked_output_tokens"))
    except (OSError, *_BROKEN) as error:
        raise SpecError(f"trace: {path} is no requests file: {type(error).__name__}: {echo(str(error))}. Name "
                        "another file.") from error


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(text: object) -> object:
    """The number in a text; any other value unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _tokens(value: object, name: str) -> int:
    """A number of tokens; pandas writes 472 as 472.0 where a column has gaps."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if not _is_integer(whole) or not 0 <= whole <= _LARGEST_TOKENS:
        raise ValueError(f"{name} must be an integer from 0 to {_LARGEST_TOKENS:,}, got {echo(value)}")
    return whole
