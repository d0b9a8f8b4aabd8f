"""Recorded traffic as a workload, and traces without their contents."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random

from pytest_llmperf.clock import seconds
from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import call_text, integer, keywords_only, number
from pytest_llmperf.workload.arrivals import Arrivals, Recorded
from pytest_llmperf.workload.base import FORMAT, Workload, check_arrivals
from pytest_llmperf.workload.multi_turn import Reply, check_reply
from pytest_llmperf.workload.prompts import draw_tokens, stream
from pytest_llmperf.workload.sharegpt import anonymise_conversations
from pytest_llmperf.workload.trace_file import BLOCK_TOKENS, UNITS_NS, TraceLine, read_lines


def conversations_of(
    lines: Sequence[TraceLine], times_ns: Sequence[int], prompt: Callable[[TraceLine, int], tuple[int, ...]], path: str
) -> tuple[Request, ...]:
    """The requests of a trace that links turns.

    A turn whose parent is not among the lines, or comes later, is a first turn. A turn with fewer tokens than its
    parent's prompt and answer was cut by its client: its prompt is new, and it waits for the parent all the same.

    Args:
        lines: by time.
        times_ns: when to send each line, after the start of the run.
        prompt: makes the tokens of a line, by its position.
        path: of the trace, for messages.

    Raises:
        SpecError: no line has a parent among the lines.
    """
    positions: dict[str, int] = {}
    made: list[Request] = []
    for index, line in enumerate(lines):
        parent = None if line.parent is None else positions.get(line.parent)
        request = Request(index, prompt(line, index), line.output_tokens, line.input_tokens, at_ns=times_ns[index])
        made.append(request if parent is None else _next_turn(request, made, parent))
        if line.chat is not None:
            positions[line.chat] = index
    if all(request.after is None for request in made):
        raise SpecError(f'trace: {path} has no parent_chat_id of a request that was asked for, and reply="server" '
                        'needs it. Write reply="seeded", or ask for more requests. Nothing was sent.')
    return tuple(made)


def _next_turn(request: Request, made: list[Request], parent: int) -> Request:
    before = made[parent]
    request = replace(request, after=parent, turn=before.turn + 1)
    history = (before.prompt_tokens or 0) + before.output_tokens
    new_tokens = (request.prompt_tokens or 0) - history
    if new_tokens < 1:
        return request
    made[parent] = replace(before, answer_used=True)
    return replace(request, prompt=request.prompt[-new_tokens:], continues=True)


#: Recorded rates outside of these, in requests/s, suggest another unit of the times; fewer gaps show no rate.
LOWEST_RATE, HIGHEST_RATE = 0.01, 100.0
LEAST_GAPS = 4


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Workload):
    """Built by `trace`."""

    path: str
    arrivals: Arrivals
    count: int = field(metadata={"argument": "requests"})
    begin_s: float = 0.0
    end_s: float | None = None
    most_tokens: int | None = None
    seed: int = 0
    reply: Reply = "seeded"
    unit: str | None = None
    block: int | None = None

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        seed, lines = self.seed + seed_offset, self._lines()
        if isinstance(self.arrivals, Recorded) and self.arrivals.rate is None:
            _check_rate(lines, self.path)
        offsets_ns = (self.arrivals.replayed_ns([line.at_ns for line in lines]) if isinstance(self.arrivals, Recorded)
                      else self.arrivals.offsets_ns(self.count, seed))
        if self.reply == "server" and offsets_ns is not None:
            return conversations_of(lines, offsets_ns, lambda line, index: _prompt(line, seed, index), self.path)
        return tuple(
            Request(index, _prompt(line, seed, index), line.output_tokens, line.input_tokens,
                    at_ns=None if offsets_ns is None else offsets_ns[index])
            for index, line in enumerate(lines)
        )

    @property
    def requests_per_arrival(self) -> float:
        """Always 1: the rate of a trace counts its requests, also the later turns of conversations."""
        return 1.0

    def digest(self) -> str:
        """As everywhere, but over the selected lines in place of the path and of the selection."""
        lines = [(line.at_ns, line.input_tokens, line.output_tokens, line.blocks) for line in self._lines()]
        definition = f"trace({lines}, {self.arrivals}, {self.seed})"
        if (block := self._lines()[0].block_tokens) != BLOCK_TOKENS:
            definition += f" blocks of {block}"
        if self.reply == "server":
            definition += f" {[(line.chat, line.parent) for line in self._lines()]}"
        return hashlib.sha256(f"workload format {FORMAT}: {definition}".encode()).hexdigest()

    def _lines(self) -> tuple[TraceLine, ...]:
        try:
            changed_ns = Path(self.path).expanduser().stat().st_mtime_ns
        except (OSError, ValueError):
            changed_ns = 0  # the reader names the cause
        return _selected(self.path, changed_ns, self.count, self.begin_s, end_s=self.end_s,
                         most_tokens=self.most_tokens, unit=self.unit, block=self.block)

    __str__ = call_text("trace")


@keywords_only
def trace(*, path: str | Path, arrivals: Arrivals, requests: int, begin_s: float = 0.0, end_s: float | None = None,
          most_tokens: int | None = None, seed: int = 0, reply: Reply = "seeded", unit: str | None = None,
          block: int | None = None) -> Workload:
    """Recorded requests: lengths, times and shared blocks of the trace, with random tokens as contents.

    The formats are Mooncake JSONL (times in milliseconds, blocks of 512 tokens), Bailian JSONL (seconds, blocks of 16
    tokens; lines with `chat_id`, `parent_chat_id` and `turn` or `type`), BurstGPT CSV (seconds), Azure LLM inference
    CSV (dates), OpenTelemetry spans (OTLP JSON lines) and the requests files of run folders. Two prompts share the
    tokens of each block whose id they share. Requests without input or output tokens (failed requests) are left out.

    Args:
        path: the file; read when the requests are made.
        arrivals: `recorded()` for the times of the trace; any other arrival process replaces these times.
        requests: how many: the first in the file that the other arguments select.
        begin_s: leave out requests before this time, in seconds after the first request of the trace.
        end_s: leave out requests from this time on.
        most_tokens: leave out requests with more tokens in prompt and answer together.
        seed: seed of the tokens. Lengths, times and shared blocks do not depend on the seed.
        reply: "server": a turn with `parent_chat_id` contains what the server answered to its parent, and is sent at
            its recorded time or, if the parent is answered later, after the answer. Tool calls and branches keep the
            order of the trace. "seeded": recorded blocks alone decide what prompts share.
        unit: of the timestamps, "s", "ms", "us" or "ns"; by default that of the format. Five and more recorded times in
            JSONL with a mean rate above 100 requests/s or below 1 in 100 s are refused unless the unit is given.
        block: prompt tokens of each block in `hash_ids`; by default that of the format.

    Raises:
        SpecError: an argument cannot be meant; once the requests are made also if the file cannot be read, has a broken
            line, or has too few requests.
    """
    call = "trace"
    try:
        Path(path)
    except TypeError:
        raise SpecError(f"trace: path must be a text or a path, got {path!r}.") from None
    count = integer(call, "requests", requests)
    check_reply(call, reply)
    if unit is not None and unit not in UNITS_NS:
        raise SpecError(f"{call}: unit must be one of {', '.join(UNITS_NS)}, got {echo(unit)}.")
    if not isinstance(arrivals, Recorded):
        check_arrivals(call, arrivals, count)
        if reply == "server":
            raise SpecError(f'{call}: reply="server" follows the times of the trace: write arrivals=recorded(), '
                            f"recorded(speed=2) or recorded(rate=8), got {echo(arrivals)}.")
    begin = number(call, "begin_s", begin_s, least=0)
    return Trace(str(path), arrivals, count, begin,
                 None if end_s is None else number(call, "end_s", end_s, above=begin),
                 None if most_tokens is None else integer(call, "most_tokens", most_tokens, least=2),
                 integer(call, "seed", seed, least=None), reply, unit,
                 None if block is None else integer(call, "block", block))


def anonymise(source: str, target: Path, unit: str | None = None, block: int | None = None) -> int:
    """Write a trace in the Mooncake format without contents, models and absolute times; the number of its requests.

    A Bailian trace stays a Bailian trace. A ShareGPT file (`….json`) stays a ShareGPT file, with random words in place
    of its texts.

    Lengths, times after the first request and equal blocks stay. Block ids become 63-bit numbers of a keyed hash. The
    key is random and is not stored, so memory does not grow with the number of ids.

    Raises:
        SpecError: the file cannot be read or has a broken line. Then `target` does not exist.
    """
    key, partial, count = secrets.token_bytes(32), target.with_name(f"{target.name}.partial"), 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            if Path(source).suffix == ".json":
                text, count = anonymise_conversations(source, Random(int.from_bytes(key, "big")))
                file.write(text)
            else:
                for line in _anonymous(source, key, unit, block):
                    file.write(line)
                    count += 1
        partial.replace(target)
    except OSError as error:
        raise SpecError(f"trace: cannot write {target}: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _anonymous(source: str, key: bytes, unit: str | None, block: int | None) -> Iterator[str]:
    origin_ns: int | None = None
    for line in read_lines(source, unit, block):
        origin_ns = line.at_ns if origin_ns is None else origin_ns
        entry: dict[str, object] = {
            "timestamp": max(0, line.at_ns - origin_ns) / (1e9 if line.form.bailian else 1e6),
            "input_length": line.input_tokens,
            "output_length": line.output_tokens,
        }
        if line.blocks:
            entry["hash_ids"] = [_other_id(block, key) for block in line.blocks]
        for name, chat in (("chat_id", line.chat), ("parent_chat_id", line.parent)):
            if chat is not None:
                entry[name] = _other_id(chat, key)
        if line.form.bailian:
            entry |= {"parent_chat_id": -1, "type": "text"} | entry
        yield json.dumps(entry) + "\n"


def _other_id(block: int | str, key: bytes) -> int:
    return int.from_bytes(blake2b(str(block).encode(), key=key, digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=8)  # every run asks, and a window may begin late in a long file
def _selected(path: str, changed_ns: int, count: int, /, begin_s: float, *,  # noqa: ARG001 - a changed file is new
              end_s: float | None, most_tokens: int | None, unit: str | None,
              block: int | None) -> tuple[TraceLine, ...]:
    """The first `count` requests of the selection, by time."""
    lines = tuple(islice(_within(read_lines(path, unit, block), begin_s, end_s, most_tokens), count))
    if len(lines) < count:
        raise SpecError(f"trace: {path} has {len(lines)} usable requests (input and output tokens, within begin_s, "
                        f"end_s and most_tokens), {count} were asked for. Ask for fewer requests or widen the "
                        "selection. Nothing was sent.")
    return tuple(sorted(lines, key=lambda line: line.at_ns))


def _check_rate(lines: Sequence[TraceLine], path: str) -> None:
    """Raise SpecError if the rate of the recorded times suggests that the unit of the times is wrong."""
    form, span_ns, gaps = lines[0].form, lines[-1].at_ns - lines[0].at_ns, len(lines) - 1
    if form.stated or gaps < LEAST_GAPS or not span_ns:
        return
    rate = gaps * 1e9 / span_ns
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise SpecError(f"trace: {path} has {rate:,.4g} requests/s as recorded, read as {form.name} with times in "
                        f"{form.unit}. If the times have another unit, write unit=\"s\" or unit=\"ms\"; if the rate is "
                        f"right, write unit=\"{form.unit}\". Nothing was sent.")


def _within(
    trace_lines: Iterable[TraceLine], begin_s: float, end_s: float | None, most_tokens: int | None
) -> Iterator[TraceLine]:
    """A line before the first line of the file belongs to a trace that is not sorted, and counts."""
    begin_ns, end_ns = seconds(begin_s), None if end_s is None else seconds(end_s)
    origin_ns: int | None = None
    for line in trace_lines:
        origin_ns = line.at_ns if origin_ns is None else origin_ns
        since_ns, tokens = line.at_ns - origin_ns, line.input_tokens + line.output_tokens
        if line.input_tokens == 0 or line.output_tokens == 0 or (most_tokens is not None and tokens > most_tokens):
            continue
        if max(0, since_ns) >= begin_ns and (end_ns is None or since_ns < end_ns):
            yield line


def _prompt(line: TraceLine, seed: int, index: int) -> tuple[int, ...]:
    """The tokens of each block depend on its id; a trace without blocks shares nothing."""
    if not line.blocks:
        return draw_tokens(stream(seed, "tokens", index), line.input_tokens)
    tokens: list[int] = []
    for block in line.blocks:
        tokens += draw_tokens(stream(seed, "block", block), line.block_tokens)
    return tuple(tokens[: line.input_tokens])
