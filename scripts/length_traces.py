#!/usr/bin/env python3
"""Write traces of prompt and answer lengths that the suites replay with random tokens.

    python scripts/length_traces.py suites/tasks

mixed_lengths.jsonl: answers of 8, 16, 32, 128 or 256 tokens in random order, prompts of 32 tokens. The lengths are half
of those that a course mixes to compare continuous with static batches. sharegpt_lengths.jsonl: log-normal lengths with
the means of the ShareGPT conversations that `vllm bench serve` samples, about 220 prompt and 200 answer tokens; the
conversations themselves are not redistributed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path

MIXED = (8, 16, 32, 128, 256)
MIXED_PROMPT = 32
MIXED_COUNT = 320
SHAREGPT_COUNT = 500
#: Mean and standard deviation of the logarithm, shortest, longest.
SHAREGPT_PROMPT = (4.4, 1.4, 4, 1024)
SHAREGPT_ANSWER = (4.8, 1.1, 4, 800)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write(folder / "mixed_lengths.jsonl", mixed())
    write(folder / "sharegpt_lengths.jsonl", sharegpt())
    return 0


def mixed() -> Iterable[tuple[int, int]]:
    """Every length equally often in each block of 40 requests, so that each run of 40 has the same work."""
    rng = random.Random(0)
    for _ in range(MIXED_COUNT // 40):
        block = list(MIXED) * 8
        rng.shuffle(block)
        yield from ((MIXED_PROMPT, length) for length in block)


def sharegpt() -> Iterable[tuple[int, int]]:
    """Independent log-normal lengths, clipped."""
    rng = random.Random(0)
    for _ in range(SHAREGPT_COUNT):
        yield drawn(rng, *SHAREGPT_PROMPT), drawn(rng, *SHAREGPT_ANSWER)


def drawn(rng: random.Random, mean: float, deviation: float, least: int, most: int) -> int:
    return min(most, max(least, round(math.exp(rng.gauss(mean, deviation)))))


def write(path: Path, lengths: Iterable[tuple[int, int]]) -> None:
    """One line a request, in the format of Mooncake's traces, a request each second."""
    lines = [json.dumps({"timestamp": 1000 * second, "input_length": prompt, "output_length": answer, "hash_ids": []})
             for second, (prompt, answer) in enumerate(lengths)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
