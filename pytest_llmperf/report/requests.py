"""Raw facts of a run's requests in one small file: gzipped JSON, a list a column, so `pandas.read_json` reads it.

Times are nanoseconds after the run's first intended send. Prompts, answers and error texts are never kept.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmperf.baseline.checked import Node
from pytest_llmperf.model.record import Outcome, RequestRecord

# Five to six bytes each: a file stays near 2 MB.
MOST_ARRIVALS = 350_000
LEVEL = 4  # twice as fast as 9, and 3 % larger
COUNTS = (
    "index", "asked_prompt_tokens", "asked_output_tokens", "prompt_tokens", "output_tokens", "cached_tokens",
    "coalesced_chunks",
)  # fmt: skip
REPAIR = "Run the test again, or delete the file to go on without its distributions."


def encode(records: Sequence[RequestRecord], most_arrivals: int = MOST_ARRIVALS) -> bytes:
    """The columns of these requests.

    Args:
        most_arrivals: beyond so many, only every second (third, …) request keeps its arrivals; the others hold null.
    """
    origin_ns = start_ns(records)
    every = 1 + sum(len(record.arrivals_ns) for record in records) // (most_arrivals + 1)

    def since(stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns - origin_ns

    kept = [record if position % every == 0 else None for position, record in enumerate(records)]
    columns: dict[str, list[object]] = {name: [getattr(record, name) for record in records] for name in COUNTS}
    columns |= {
        "tag": [record.tag for record in records],
        "models": [list(record.models) for record in records],
        "outcome": [record.outcome.value for record in records],
        "intended_ns": [since(record.intended_ns) for record in records],
        "sent_ns": [since(record.sent_ns) for record in records],
        "ended_ns": [since(record.ended_ns) for record in records],
        "arrivals_ns": [None if one is None else [since(stamp) for stamp in one.arrivals_ns] for one in kept],
        "chunk_tokens": [None if one is None or one.chunk_tokens is None else list(one.chunk_tokens) for one in kept],
    }
    text = json.dumps(columns, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)


@dataclass(frozen=True, slots=True)
class Requests:
    """What a file holds.

    Args:
        kept: requests with their arrivals, in the order of the file.
        left_out: how many have none, because the run had too many.
        flights_ns: of every request that was sent, when it was and when it ended.
    """

    kept: tuple[RequestRecord, ...] = ()
    left_out: int = 0
    flights_ns: tuple[tuple[int, int], ...] = ()


def decode(path: Path) -> Requests:
    """Read a file back.

    Raises:
        BaselineError: the file cannot be read or believed.
    """
    top = Node(None, str(path), repair=REPAIR)
    try:
        columns = json.loads(gzip.decompress(path.read_bytes()))
        kept = tuple(_records(columns))
        flights = zip(columns["sent_ns"], columns["ended_ns"], strict=True)
        sent = tuple((int(sent_ns), int(ended_ns)) for sent_ns, ended_ns in flights if sent_ns is not None)
        return Requests(kept, len(columns["index"]) - len(kept), sent)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        top.refuse(f"this is no file of requests: {type(error).__name__}: {error}")


def start_ns(records: Sequence[RequestRecord]) -> int:
    """The first intended send of a run; 0 for none."""
    return min((record.intended_ns for record in records), default=0)


def _records(columns: Mapping[str, list[Any]]) -> list[RequestRecord]:
    names = list(columns)
    found = []
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
        found.append(RequestRecord(**row))
    return found
