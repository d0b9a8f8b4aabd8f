"""Raw facts of a run's requests in one small file: gzipped JSON, a list a column, so `pandas.read_json` reads it.

Times are nanoseconds after the run's first intended send. Prompts, answers and error texts are never kept.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.bounded_file import read_packed
from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.results.strict_json import LARGEST_INTEGER, Node

# Five to six bytes each in the file, 110 in memory: more are kept only in part, so that a reader needs less than 1 GiB.
MOST_ARRIVALS = 4_000_000
# `itl_per_token` has a value for each token of a chunk.
MOST_TOKENS_PER_ARRIVAL = 5
LEVEL = 4  # twice as fast as 9, and 3 % larger
COUNTS = (
    "index", "asked_prompt_tokens", "asked_output_tokens", "prompt_tokens", "output_tokens", "cached_tokens",
    "coalesced_chunks",
)  # fmt: skip
TURNS = ("turn", "after")  # only in files of conversations
FLAGS = ("replaced_text", "whole")
#: Columns only of files in which a request has another value.
UNUSUAL: Mapping[str, object] = {"attempts": 1, "asked_model": "", "choices": 1, "text_tokens": None,
                                 "reason": ""}
STAMPS = ("intended_ns", "sent_ns", "ended_ns")
REPAIR = "Run the test again, or delete the file to go on without its distributions."


def encode(records: Sequence[RequestRecord], most_arrivals: int = MOST_ARRIVALS) -> bytes:
    """The columns of these requests.

    Args:
        most_arrivals: largest number of arrivals that are stored. With more, only every second (third, …) request
            keeps its arrivals; the others have null.
    """
    origin_ns = start_ns(records)
    tokens = sum(sum(record.chunk_tokens or ()) for record in records)
    arrivals = sum(len(record.arrivals_ns) for record in records)
    every = 1 + max(arrivals, tokens // MOST_TOKENS_PER_ARRIVAL) // (most_arrivals + 1)

    def since(stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns - origin_ns

    sampled_records = [record if position % every == 0 else None for position, record in enumerate(records)]
    names = (*COUNTS, *FLAGS)
    columns: dict[str, list[object]] = {name: [getattr(record, name) for record in records] for name in names}
    columns |= {
        "tag": [record.tag for record in records],
        "models": [list(record.models) for record in records],
        "outcome": [record.outcome.value for record in records],
        "intended_ns": [since(record.intended_ns) for record in records],
        "sent_ns": [since(record.sent_ns) for record in records],
        "ended_ns": [since(record.ended_ns) for record in records],
        "arrivals_ns": [
            None if sampled_record is None else [since(stamp) for stamp in sampled_record.arrivals_ns]
            for sampled_record in sampled_records
        ],
        "chunk_tokens": [
            None if sampled_record is None or sampled_record.chunk_tokens is None else list(sampled_record.chunk_tokens)
            for sampled_record in sampled_records
        ],
    }
    if any(record.turn > 1 for record in records):
        columns |= {name: [getattr(record, name) for record in records] for name in (*TURNS, "answer_hash")}
    columns |= {name: [getattr(record, name) for record in records] for name, usual in UNUSUAL.items()
                if any(getattr(record, name) != usual for record in records)}
    text = json.dumps(columns, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)


@dataclass(frozen=True, slots=True)
class Requests:
    """What a file holds.

    Args:
        records: requests with their arrivals, in the order of the file.
        left_out: how many have none, because the run had too many.
        flights_ns: of every request that was sent, when it was and when it ended.
    """

    records: tuple[RequestRecord, ...] = ()
    left_out: int = 0
    flights_ns: tuple[tuple[int, int], ...] = ()


def decode(path: Path) -> Requests:
    """Read a file back.

    Raises:
        BaselineError: the file cannot be read or believed.
    """
    top = Node(None, str(path), repair=REPAIR)
    try:
        columns = json.loads(read_packed(path))
        _check_numbers(columns)
        records = tuple(_records(columns))
        intervals = zip(columns["sent_ns"], columns["ended_ns"], strict=True)
        sent = tuple((int(sent_ns), int(ended_ns)) for sent_ns, ended_ns in intervals if sent_ns is not None)
        return Requests(records, len(columns["index"]) - len(records), sent)
    except OSError as error:
        top.refuse(f"this is no file of requests: {error.strerror or echo(str(error))}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        top.refuse(f"this is no file of requests: {type(error).__name__}: {echo(str(error))}")


def all_records(path: Path | None, run: str) -> tuple[RequestRecord, ...]:
    """All request records of a run.

    Args:
        path: the file of the requests; None if it was not kept.
        run: names the run in messages.

    Raises:
        UsageError: the records were not kept, or not all of them with their arrivals.
        BaselineError: the file cannot be read or believed.
    """
    requests = Requests() if path is None else decode(path)
    if not requests.records or requests.left_out:
        how = "stored only in part" if requests.records else "not stored"
        raise UsageError(f"{run}: the records of the requests were {how}. Use llmperf show, diff or the report, "
                         "which read the metrics of the run.")
    return requests.records


def _check_numbers(columns: Mapping[str, list[Any]]) -> None:
    """Raise ValueError unless each count and time is null or a whole number of at most 63 bits, and each list has
    numbers alone, with as many counts of tokens as arrivals."""
    for name in (*COUNTS, *STAMPS, *(name for name in (*TURNS, "attempts", "choices") if name in columns)):
        _check_column(name, columns[name])
    tokens = 0
    for arrivals_ns, counts in zip(columns["arrivals_ns"], columns["chunk_tokens"], strict=True):
        _check_column("arrivals_ns", arrivals_ns or (), or_none=False)
        _check_column("chunk_tokens", counts or (), or_none=False)
        if counts is not None and (len(counts) != len(arrivals_ns or ()) or min(counts, default=0) < 0):
            raise ValueError("chunk_tokens holds no count of tokens for each arrival")
        tokens += sum(counts or ())
    if tokens > (limit := MOST_TOKENS_PER_ARRIVAL * MOST_ARRIVALS):
        raise ValueError(f"chunk_tokens counts {tokens:,} tokens, more than {limit:,}")


def _check_column(name: str, values: Sequence[Any], *, or_none: bool = True) -> None:
    whole = set(map(type, values)) <= {int}  # a run has a million numbers, and a loop over each takes ten times as long
    if whole and -LARGEST_INTEGER < min(values, default=0) <= max(values, default=0) < LARGEST_INTEGER:
        return
    for value in values:
        if not (value is None and or_none) and (type(value) is not int or abs(value) >= LARGEST_INTEGER):
            raise ValueError(f"{name} holds {echo(value)}, which is no whole number of at most 63 bits")


def read_back(path: Path, origin_ns: int) -> Iterator[RequestRecord]:
    """The records as they were written, without the texts of failed requests.

    Args:
        path: the file.
        origin_ns: the first intended send of the run.

    Raises:
        BaselineError: the file cannot be read, or holds the arrivals of some requests only.
    """
    requests = decode(path)
    if requests.left_out:
        Node(None, str(path), repair=f"Measure with fewer requests: {MOST_ARRIVALS:,} content chunks are kept.").refuse(
            f"it holds the arrivals of {len(requests.records)} of {len(requests.records) + requests.left_out} requests"
        )
    for record in requests.records:
        yield replace(
            record,
            intended_ns=record.intended_ns + origin_ns,
            sent_ns=None if record.sent_ns is None else record.sent_ns + origin_ns,
            ended_ns=record.ended_ns + origin_ns,
            arrivals_ns=tuple([at_ns + origin_ns for at_ns in record.arrivals_ns]),
        )


def start_ns(records: Sequence[RequestRecord]) -> int:
    """The first intended send of a run; 0 for none."""
    return min((record.intended_ns for record in records), default=0)


def _records(columns: Mapping[str, list[Any]]) -> list[RequestRecord]:
    names = list(columns)
    records = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(names, values, strict=True))
        if row["arrivals_ns"] is None:
            continue
        tokens = row["chunk_tokens"]
        row |= {
            "outcome": Outcome(row["outcome"]),
            "detail": None if row["outcome"] == Outcome.OK.value else row["outcome"],
            "arrivals_ns": tuple(row["arrivals_ns"]),
            "chunk_tokens": None if tokens is None else tuple(tokens),
            "models": tuple(row.get("models", ())),
        }
        records.append(RequestRecord(**row))
    return records
