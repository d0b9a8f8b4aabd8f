"""Metrics from the server's own counters: differences over the run, and peaks of its gauges.

The input maps canonical names to values, independent of the engine's own names. A metric is None if one of its counters
is absent, None or decreased (the server restarted).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pytest_llmperf.metrics.units import Direction, Unit

Counters = Mapping[str, float | None]
_COUNTERS = "the server counters"
#: Counts of a server that no speed moves. A ratio with a value of 0 is an ERROR.
COUNTED = ("kv_blocks", "kv_cache_tokens", "spec_acceptance_rate", "spec_acceptance_length")
#: Where an engine finds the tokens of a cached prompt.
TIERS = {"device": "GPU memory", "host": "host memory", "disk": "a disk or another store",
         "p2p": "another server's memory"}
MOVED_BYTES = {
    "kv_loaded_bytes": "KV cache that came from host memory",
    "kv_stored_bytes": "KV cache that went to host memory",
    "kv_tier_read_bytes": "KV cache that came from a tier below host memory",
    "kv_tier_written_bytes": "KV cache that went to a tier below host memory",
    "transferred_bytes": "KV cache from another server, by NIXL",
}
#: Divisor of a ratio → what it means that this counter does not grow.
NOTHING_COUNTED = {
    "expected_transfer_bytes": "no decode server lacked a prompt token",
    "transfers": "nothing was transferred",
    "external_cache_queries": "no prompt was looked up outside of the GPU",
    "lmcache_lookup_tokens": "no prompt was looked up in LMCache",
    "engine_steps": "the engine ran no step",
    "queue_time_count": "no request left the queue",
    "expert_balance_steps": "no step was counted",
    "spec_draft_tokens": "nothing was drafted",
    "spec_drafts": "nothing was drafted",
}
#: Pools of a deployment with prefill servers and decode servers. Counters and metrics of a pool end with its name:
#: "prefill_tokens.decode".
POOLS = ("prefill", "decode")
POSITION = re.compile(r"spec_acceptance_rate_pos(\d+)")


@dataclass(frozen=True, slots=True)
class ServerFormula:
    """How a value comes from counters; see `Metric` for the words. A changed formula raises its version.

    Args:
        divisor: counter that a ratio is divided by, a key of `NOTHING_COUNTED`; "" for any other formula.
    """

    name: str
    unit: Unit
    direction: Direction
    take: Callable[[Counters], float | None]
    formula: str
    needs: str
    version: int = 1
    divisor: str = ""


def counter_difference(counters: Counters, name: str) -> float | None:
    """The increase of a counter over the run; None if the counter is absent or decreased."""
    value = counters.get(name)
    return value if value is not None and value >= 0 else None


def ratio(counters: Counters, part: str, whole: str) -> float | None:
    """part ÷ whole; None if either is unknown or the whole is 0."""
    top, bottom = counter_difference(counters, part), counter_difference(counters, whole)
    return None if top is None or not bottom else top / bottom


def _prefix_cache_hit_rate(counters: Counters) -> float | None:
    by_tokens = ratio(counters, "prompt_tokens_cached", "prompt_tokens")
    return ratio(counters, "prefix_cache_hits", "prefix_cache_queries") if by_tokens is None else by_tokens


def _prefill_tokens(counters: Counters) -> float | None:
    if "prompt_tokens_computed" in counters:
        return counter_difference(counters, "prompt_tokens_computed")
    prompt, cached = (counter_difference(counters, f"prompt_tokens{suffix}") for suffix in ("", "_cached"))
    return None if prompt is None or cached is None else prompt - cached


def _acceptance_rate(counters: Counters) -> float | None:
    """The acceptance rate. 0 if the server reports zero drafted tokens, so that a speculation that never runs is not
    reported as unmeasured."""
    drafted = counter_difference(counters, "spec_draft_tokens")
    return 0.0 if drafted == 0 else ratio(counters, "spec_accepted_tokens", "spec_draft_tokens")


def _acceptance_length(counters: Counters) -> float | None:
    accepted = ratio(counters, "spec_accepted_tokens", "spec_drafts")
    return None if accepted is None else 1 + accepted


def _plain(name: str, unit: Unit, direction: Direction, counter: str, formula: str) -> ServerFormula:
    return ServerFormula(name, unit, direction, lambda counters: counter_difference(counters, counter), formula,
                         f"{_COUNTERS} {counter}")


def _peak(name: str, unit: Unit, direction: Direction, formula: str) -> ServerFormula:
    needs = "a server that exports the gauge, and perf.measure(…, gauges=True)"
    return replace(_plain(name, unit, direction, name, formula), needs=needs)


def _searched(suffix: str, formula: str) -> tuple[ServerFormula, ServerFormula]:
    """The rate in requests, and for workloads of conversations the rate in conversations."""
    requests, conversations = f"max_rate{suffix}", f"max_conversation_rate{suffix}"
    per_request = "; of conversations their rate × requests of a conversation"
    of_requests = _plain(requests, Unit.REQUESTS_PER_S, Direction.HIGHER, requests, formula + per_request)
    of_conversations = _plain(conversations, Unit.CONVERSATIONS_PER_S, Direction.HIGHER, conversations,
                              f"{formula}, ÷ requests of a conversation")
    return (replace(of_requests, needs="a search: perf.max_rate(…)", version=2),
            replace(of_conversations, needs="a search with conversations: perf.max_rate(…)"))


def _of_replicas(name: str, value: str, words: str) -> ServerFormula:
    """Largest ÷ mean of a value of each replica; `telemetry.replicas.balance` makes both counters."""
    return ServerFormula(name, Unit.COUNT, Direction.LOWER,
                         lambda counters: ratio(counters, f"replica_largest_{value}", f"replica_mean_{value}"),
                         f"largest ÷ mean over the replicas of: {words}",
                         "replicas that count tokens")


def _mean_ms(name: str, sum_s: str, count: str) -> ServerFormula:
    def mean_ms(counters: Counters) -> float | None:
        mean_s = ratio(counters, sum_s, count)
        return None if mean_s is None else mean_s * 1000

    return ServerFormula(name, Unit.MS, Direction.LOWER, mean_ms, f"Δ{sum_s} ÷ Δ{count}",
                         f"{_COUNTERS} {sum_s} and {count}", divisor=count)


def _share(name: str, part: str, whole: str) -> ServerFormula:
    return ServerFormula(name, Unit.SHARE, Direction.HIGHER, lambda counters: ratio(counters, part, whole),
                         f"Δ{part} ÷ Δ{whole}", f"{_COUNTERS} {part} and {whole}", divisor=whole)


SERVER: dict[str, ServerFormula] = {formula.name: formula for formula in (
    ServerFormula("prefix_cache_hit_rate", Unit.SHARE, Direction.HIGHER, _prefix_cache_hit_rate,
                  "Δprompt_tokens_cached ÷ Δprompt_tokens, else Δprefix_cache_hits ÷ Δprefix_cache_queries",
                  f"{_COUNTERS} prompt_tokens_cached and prompt_tokens, or prefix_cache_hits and prefix_cache_queries"),
    ServerFormula("prefill_tokens", Unit.COUNT, Direction.LOWER, _prefill_tokens,
                  "Δprompt_tokens_computed, else Δprompt_tokens − Δprompt_tokens_cached",
                  f"{_COUNTERS} prompt_tokens_computed"),
    _plain("finished_requests", Unit.COUNT, Direction.NEITHER, "requests_finished", "Δrequests_finished"),
    _plain("generated_tokens", Unit.COUNT, Direction.NEITHER, "generation_tokens", "Δgeneration_tokens"),
    _plain("cached_tokens", Unit.COUNT, Direction.HIGHER, "prompt_tokens_cached", "Δprompt_tokens_cached"),
    _share("external_cache_hit_rate", "external_cache_hits", "external_cache_queries"),
    _plain("external_cached_tokens", Unit.COUNT, Direction.HIGHER, "external_cache_hits", "Δexternal_cache_hits"),
    *(_plain(f"cached_tokens_{tier}", Unit.COUNT, Direction.NEITHER, f"cached_tokens_{tier}",
             f"Δcached_tokens_{tier}: prompt tokens found in {place}") for tier, place in TIERS.items()),
    *(_plain(name, Unit.COUNT, Direction.NEITHER, name, f"Δ{name}: {text}") for name, text in MOVED_BYTES.items()),
    _plain("transfers", Unit.COUNT, Direction.NEITHER, "transfers", "Δtransfers"),
    replace(_share("transferred_ratio", "transferred_bytes", "expected_transfer_bytes"), unit=Unit.COUNT,
            formula="Δtransferred_bytes ÷ (bytes of a token's KV cache × tokens that decode servers lacked)",
            needs="prefill_decode(…)"),
    _mean_ms("transfer_time_mean", "transfer_s_sum", "transfers"),
    _plain("failed_transfers", Unit.COUNT, Direction.LOWER, "failed_transfers", "Δfailed_transfers"),
    _plain("expired_transfers", Unit.COUNT, Direction.LOWER, "expired_transfers", "Δexpired_transfers"),
    _share("lmcache_hit_rate", "lmcache_hit_tokens", "lmcache_lookup_tokens"),
    _share("lmcache_l1_hit_rate", "lmcache_l1_hit_tokens", "lmcache_lookup_tokens"),
    _share("lmcache_l2_hit_rate", "lmcache_l2_hit_tokens", "lmcache_lookup_tokens"),
    _plain("lmcache_l2_chunks", Unit.COUNT, Direction.NEITHER, "lmcache_l2_chunks",
           "chunks that LMCache read from disk; each GPU's part of a chunk counts separately"),
    _plain("lmcache_evictions", Unit.COUNT, Direction.LOWER, "lmcache_evictions",
           "number of times that LMCache dropped chunks because the host memory was full"),
    _plain("preemptions", Unit.COUNT, Direction.LOWER, "preemptions", "Δpreemptions"),
    _plain("admission_rejections", Unit.COUNT, Direction.LOWER, "admission_rejections",
           "Δadmission_rejections: requests that a limit of the server's queue refused"),
    ServerFormula("tokens_per_step", Unit.TOKENS_PER_STEP, Direction.HIGHER,
                  lambda counters: ratio(counters, "generation_tokens", "engine_steps"),
                  "Δgeneration_tokens ÷ Δengine_steps: mean number of answers that a step extends; a draft can add "
                  "several tokens to one answer", f"{_COUNTERS} generation_tokens and engine_steps",
                  divisor="engine_steps"),
    _mean_ms("queue_time_mean", "queue_time_s_sum", "queue_time_count"),
    _peak("kv_usage_peak", Unit.SHARE, Direction.NEITHER, "largest sampled share of KV blocks held"),
    _peak("running_peak", Unit.COUNT, Direction.NEITHER, "largest sampled number of running requests"),
    _peak("waiting_peak", Unit.COUNT, Direction.LOWER, "largest sampled number of waiting requests"),
    _plain("kv_blocks", Unit.COUNT, Direction.HIGHER, "kv_blocks",
           "blocks of the KV cache, as the server made them; of a hybrid model blocks of several kinds: see "
           "kv_cache_tokens"),
    _plain("kv_cache_tokens", Unit.COUNT, Direction.HIGHER, "kv_cache_tokens",
           "tokens that the KV cache holds, as the server states them; in vLLM of requests of the longest length"),
    _plain("chunk_budget", Unit.COUNT, Direction.NEITHER, "chunk_budget",
           "largest number of tokens of an engine step, as resolved by the server"),
    _plain("eager", Unit.COUNT, Direction.NEITHER, "eager",
           "1 if the server launches every kernel separately, 0 if the server replays CUDA graphs"),
    _plain("expert_parallel", Unit.COUNT, Direction.NEITHER, "expert_parallel",
           "1 where each GPU holds whole experts, 0 where each holds a part of every one: as the flags were read"),
    replace(_share("expert_balance", "expert_balance_sum", "expert_balance_steps"),
            formula="Δexpert_balance_sum ÷ Δexpert_balance_steps: mean over steps and layers of mean tokens per rank ÷ "
            "tokens of the busiest rank; 1 if all ranks get the same share",
            needs="SGLang with expert parallelism and --expert-balancedness-report-mode prometheus (0.5.15: "
            "--enable-expert-distribution-metrics and SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC=1); vLLM only logs it"),
    _plain("tensor_parallel", Unit.COUNT, Direction.NEITHER, "tensor_parallel",
           "number of ranks that share each layer, as resolved by the server"),
    _of_replicas("replica_imbalance", "computed_tokens",
                 "tokens that a replica computed and generated. 1 if all replicas did the same work, their number if "
                 "one did all of it"),
    _of_replicas("replica_slowdown", "tpot", "mean TPOT of a replica. 1 if all replicas are equally fast"),
    ServerFormula("startup_s", Unit.S, Direction.LOWER, lambda counters: counter_difference(counters, "startup_s"),
                  "launch of the server → its first generated token", "a server that this session started"),
    *_searched("", "highest offered rate that a search found to be within the SLO"),
    *_searched("_beyond", "lowest offered rate above it that was over the SLO, proven or not"),
    *_searched("_proven", "highest offered rate that the search proved to be within the SLO"),
    *_searched("_refuted", "lowest offered rate that the search proved to be over the SLO"),
    ServerFormula("spec_acceptance_rate", Unit.SHARE, Direction.HIGHER, _acceptance_rate,
                  "Δspec_accepted_tokens ÷ Δspec_draft_tokens; 0 where nothing was drafted",
                  f"{_COUNTERS} spec_accepted_tokens and spec_draft_tokens", divisor="spec_draft_tokens"),
    ServerFormula("spec_acceptance_length", Unit.TOKENS_PER_STEP, Direction.HIGHER, _acceptance_length,
                  "1 + Δspec_accepted_tokens ÷ Δspec_drafts", f"{_COUNTERS} spec_accepted_tokens and spec_drafts",
                  divisor="spec_drafts"),
)}


def acceptance_at(position: int) -> ServerFormula:
    """Share of drafts whose token at `position` (from 0) was accepted, whatever came before it."""
    return _share(f"spec_acceptance_rate_pos{position}", f"spec_accepted_pos_{position}", "spec_drafts")


def nothing_counted(name: str, counters: Counters) -> str | None:
    """Why a ratio is 0 or missing although the server counts: what the ratio is divided by did not grow.

    >>> nothing_counted("spec_acceptance_rate", {"spec_draft_tokens": 0.0})
    'nothing was drafted (spec_draft_tokens did not grow)'
    """
    formula = SERVER.get("spec_acceptance_length" if POSITION.fullmatch(name) else name)
    if formula is None or counters.get(formula.divisor) != 0:
        return None
    return f"{NOTHING_COUNTED[formula.divisor]} ({formula.divisor} did not grow)"


def of_pool(counters: Counters, pool: str) -> dict[str, float | None]:
    """The counters of one pool by their names without the pool; empty if the run has no such pool."""
    suffix = f".{pool}"
    return {name.removesuffix(suffix): value for name, value in counters.items() if name.endswith(suffix)}


def server_values(counters: Counters) -> dict[str, float | None]:
    """Every server metric by name; the positions of drafts as far as the counters name them."""
    prefix = "spec_accepted_pos_"
    positions = sorted(int(name.removeprefix(prefix)) for name in counters if name.startswith(prefix))
    formulas = [*SERVER.values(), *map(acceptance_at, positions)]
    return {formula.name: formula.take(counters) for formula in formulas}
