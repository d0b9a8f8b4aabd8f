"""Checks that LMCache is attached and works. An LMCache without hits costs time and looks like a slow engine."""

from __future__ import annotations

import random
from math import inf
from pathlib import Path

from pytest_llmperf.clock import attempts, seconds
from pytest_llmperf.engines.control.identity import generate_one_token
from pytest_llmperf.engines.control.json_answers import whole_number
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError
from pytest_llmperf.model.engine import EngineSpec

CHUNK_BY_DEFAULT = 256
CHUNK_SIZE = "LMCACHE_CHUNK_SIZE"
LENGTHS = ("max_model_len", "context_length")  # vLLM's, SGLang's
FIRST_TOKEN, TOKENS = 1000, 8000  # every model that we know has these
TRY_FOR_S = 10.0                  # storing goes on after the answer
PAUSE_NS = seconds(0.2)
IGNORED_KEY = "Unknown configuration key"


def prove_hits(server: Server, rng: random.Random, timeout_s: float) -> None:
    """Send a prompt, empty the engine's own cache, and send the prompt again. A part of the prompt must hit LMCache.

    Args:
        timeout_s: timeout of each answer, at least 10 s, because the first prompt may compile kernels.

    Raises:
        EngineError: the prompt has no hit, LMCache ignores a part of its configuration, no prompt can be as long as a
            chunk, or the server does not answer.
    """
    _check_configuration(server)
    prompt = tuple(FIRST_TOKEN + rng.randrange(TOKENS) for _ in range(_prompt_tokens(server)))
    _send(server, prompt, timeout_s)
    for _ in attempts(server.clock, TRY_FOR_S, 0):
        server.clock.sleep_ns(PAUSE_NS)
        hits_before = server.counters.read().get("external_cache_hits", 0.0)
        if not server.reset_cache(keep=("l1", "l2")):
            return  # without an empty cache of the engine, a hit proves nothing about LMCache
        _send(server, prompt, timeout_s)
        if server.counters.wait_idle(0.0, 0).get("external_cache_hits", 0.0) > hits_before:
            return
    raise EngineError(
        f"LMCache is attached and had no hit: {server.spec} serves, and a prompt of {len(prompt)} tokens sent twice "
        "was computed twice. Read the reason in the log of the server, then correct the connector, or detach "
        "LMCache.", server.unit.evidence,
    )


def _prompt_tokens(server: Server) -> int:
    """Length of the prompt: two whole chunks, or one if the model takes no more, and a token that is always
    computed."""
    chunk = _chunk_size(server.spec)
    limit = next((server.facts[name] for name in LENGTHS if name in server.facts), "")
    count = whole_number(limit)
    room = inf if count is None else count - 1  # the answer's token counts, too
    if room < chunk + 1:
        raise EngineError(
            f"LMCache stores whole chunks of {chunk} tokens, and {server.spec} takes {limit} with the answer's: no "
            f"prompt can ever be found. Lower chunk_size ({CHUNK_SIZE} in env where flags attach LMCache), or raise "
            "max_model_len, SGLang's context_length."
        )
    return 2 * chunk + 1 if room >= 2 * chunk + 1 else chunk + 1


def _chunk_size(spec: EngineSpec) -> int:
    """Chunk size in tokens. The spec's environment variable overrides the option if LMCache runs in the engine's
    process.
    """
    given = CHUNK_BY_DEFAULT if spec.lmcache is None else spec.lmcache.chunk_size
    from_env = "" if spec.lmcache is not None and not spec.lmcache.in_process else dict(spec.env).get(CHUNK_SIZE, "")
    return whole_number(from_env) or given


def _send(server: Server, prompt: tuple[int, ...], timeout_s: float) -> None:
    with server.control.answering(f"a token after a prompt of {len(prompt)} for LMCache"):
        generate_one_token(server, max(TRY_FOR_S, timeout_s), prompt)


def _check_configuration(server: Server) -> None:
    """Refuse a configuration that LMCache ignores in part. LMCache itself only logs a warning for unknown keys."""
    evidence = server.unit.evidence
    if evidence is None or evidence.log_path is None:
        return
    text = Path(evidence.log_path).read_text(encoding="utf-8", errors="replace")
    ignored = [line.strip() for line in text.splitlines() if IGNORED_KEY in line]
    if ignored:
        raise EngineError(f"LMCache ignores a part of its configuration: {ignored[0]}. Leave out the option of "
                          "with_lmcache() that sets it, or install another version of LMCache.", evidence)
