"""A workload as JSON lines in, records as JSON lines out, in virtual time.

A line is one request: {"prompt": text or token ids, or "prompt_tokens": how many, "max_tokens", "at_ns", "after",
"think_ns", "continues", "cache_salt"}; all but the prompt have defaults, and `index` is its position. With "continues"
the prompt is sent behind the prompt of `after` and its answer. A line {"concurrency": n} makes it a closed loop.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.emulator.virtual.client import Posted, simulate_client

if TYPE_CHECKING:
    from pytest_llmperf.emulator.http.service import Service

_KEYS = frozenset({
    "index", "prompt", "prompt_tokens", "max_tokens", "at_ns", "after", "think_ns", "continues", "cache_salt", "path",
    "body",
})  # fmt: skip


def run_workload(service: Service, lines: TextIO, records: TextIO) -> None:
    """Run it and write one record per request, by index.

    Raises:
        UsageError: a line that is no request; it names the line.
    """
    posts: list[Posted] = []
    concurrency = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            if set(given) == {"concurrency"}:
                concurrency = int(given["concurrency"])
                continue
            posts.append(_post(given, len(posts), service))
        except (ValueError, TypeError) as error:
            raise UsageError(f"line {number} of the workload: {error}") from None
    try:
        answered = simulate_client(service, posts, concurrency)
    except ValueError as error:
        raise UsageError(f"the workload: {error}") from None
    for request in answered:
        records.write(json.dumps(request.record(), separators=(",", ":")) + "\n")
    records.flush()


def _post(given: dict[str, Any], index: int, service: Service) -> Posted:
    if unknown := sorted(set(given) - _KEYS):
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(_KEYS))}")
    if given.get("index", index) != index:
        raise ValueError(f"index {given['index']} at position {index}")
    times: dict[str, Any] = {name: given[name] for name in ("at_ns", "after", "think_ns", "continues") if name in given}
    path = given.get("path", "/v1/completions")
    if "body" in given:
        return Posted(index, path, str(given["body"]).encode(), **times)
    prompt = given.get("prompt")
    if prompt is None:
        prompt = _unique_prompt(index, int(given.get("prompt_tokens", 1)), service.launch.config.shape.vocab)
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": given.get("max_tokens", 16), "stream": True}
    if "cache_salt" in given:
        body["cache_salt"] = given["cache_salt"]
    return Posted(index, path, json.dumps(body).encode(), **times)


def _unique_prompt(index: int, tokens: int, vocab: int) -> list[int]:
    """A prompt that shares no prefix with the prompt of any other index, because the prompt begins with its index."""
    start = [index % vocab, index // vocab % vocab]
    return (start + [(index + place) % vocab for place in range(tokens)])[:tokens]
