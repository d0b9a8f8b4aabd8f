"""Write seeded traces in the published formats: mooncake.jsonl, burstgpt.csv, azure.csv and spans.jsonl.

`write_requests` writes the same requests as a run folder has them: requests.json.gz.

    python tests/stubs/write_traces.py FOLDER [LINES] [SEED]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from pytest_llmperf.results.requests_file import encode
from pytest_llmperf.testing.records import make_record

BEGIN_S = 1_700_000_000
HEADERS = {"burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
           "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"}


def entries(count: int, seed: int) -> Iterator[tuple[int, int, int, list[int]]]:
    """Time in ms, input tokens, output tokens and block ids of one request after another.

    Every third request begins with a shared block.
    """
    rng, at_ms, next_id = Random(seed), 0, 10
    for index in range(count):
        at_ms += 1 + int(rng.random() * 400)
        input_tokens, output_tokens = 600 + int(rng.random() * 1400), 8 + int(rng.random() * 40)
        blocks = -(-input_tokens // 512)
        ids = [index % 3 if index % 3 == 0 else next_id, *range(next_id + 1, next_id + blocks)]
        next_id += blocks
        yield at_ms, input_tokens, output_tokens, ids


def lines(count: int, seed: int) -> Iterator[dict[str, str]]:
    """One request after another, as a line of each format."""
    for at_ms, input_tokens, output_tokens, ids in entries(count, seed):
        moment = datetime.fromtimestamp(BEGIN_S + at_ms // 1000, UTC)
        entry = {"timestamp": at_ms, "input_length": input_tokens, "output_length": output_tokens, "hash_ids": ids}
        total = input_tokens + output_tokens
        yield {
            "mooncake.jsonl": json.dumps(entry) + "\n",
            "burstgpt.csv": f"{at_ms / 1000},GPT-4,{input_tokens},{output_tokens},{total},Conversation log\n",
            "azure.csv": f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03}0000,{input_tokens},{output_tokens}\n",
            "spans.jsonl": json.dumps(span(at_ms, input_tokens, output_tokens)) + "\n",
        }


def span(at_ms: int, input_tokens: int, output_tokens: int) -> dict[str, object]:
    """An OTLP export with one span of generative AI, with a message in it, and one span of something else."""
    counts = {"input": input_tokens, "output": output_tokens}
    attributes = [{"key": f"gen_ai.usage.{name}_tokens", "value": {"intValue": str(n)}} for name, n in counts.items()]
    attributes.append({"key": "gen_ai.input.messages", "value": {"stringValue": "my private question"}})
    start = str((BEGIN_S * 1000 + at_ms) * 1_000_000)
    spans = [{"name": "chat", "startTimeUnixNano": start, "attributes": attributes},
             {"name": "SELECT", "startTimeUnixNano": start, "attributes": []}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def write(folder: Path, count: int = 300, seed: int = 0) -> None:
    """The four files, `count` requests each."""
    with ExitStack() as stack:
        files = {}
        for text in lines(count, seed):
            for name, line in text.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / name).open("w", encoding="utf-8"))
                    files[name].write(HEADERS.get(name, ""))
                files[name].write(line)


def write_requests(folder: Path, count: int = 300, seed: int = 0) -> None:
    """The file of a run in which the server served all of these requests."""
    records = [make_record(index, intended_ms=at_ms, prompt_tokens=input_tokens, chunks=output_tokens)
               for index, (at_ms, input_tokens, output_tokens, _) in enumerate(entries(count, seed))]
    (folder / "requests.json.gz").write_bytes(encode(records))


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
