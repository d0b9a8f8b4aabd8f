"""Upper bound of the prefix-cache hit rate of a list of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_llmperf.model.request import Request


def ideal_hit_rate(requests: Iterable[Request], block_size: int) -> float:
    """Share of prompt tokens, 0 to 1, that an endless cache of whole blocks would have when each request comes.

    A block hits when it and everything before it was the start of an earlier prompt. The last token of a prompt is
    always computed, so a repeated prompt of P tokens hits floor((P - 1) / block_size) blocks. Generated tokens do not
    count: the workload does not know them. For text words stand for tokens, so there the bound is an estimate.
    """
    seen: set[int] = set()
    hits = total = 0
    for request in requests:
        prompt = request.prompt.split() if isinstance(request.prompt, str) else request.prompt
        chain = _chain(prompt, block_size)
        usable = (len(prompt) - 1) // block_size
        hits += block_size * next((i for i, key in enumerate(chain[:usable]) if key not in seen), usable)
        total += len(prompt)
        seen.update(chain)
    return hits / total if total else 0.0


def _chain(prompt: Sequence[object], block_size: int) -> list[int]:
    """One key per whole block that also stands for all blocks before it."""
    keys, key = [], 0
    for start in range(0, len(prompt) - block_size + 1, block_size):
        key = hash((key, tuple(prompt[start : start + block_size])))
        keys.append(key)
    return keys
